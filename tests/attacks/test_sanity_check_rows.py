"""Signs that an attack is not to be believed, in rows made for the purpose. Healthy rows raise none."""

from securesgd.attacks.sanity_checks import check_rows

N = 100


def cell(attack, budget, broken, by=None, protocol="sound"):
    """Return rows of 100 examples in which the given ones are clearly broken."""
    return [
        {
            "attack": attack, "protocol": protocol, "norm": "linf", "budget": budget, "index": i, "draws": 1000,
            "label_votes": 5 if i in broken else 995, "other_votes": 995 if i in broken else 5,
            "broken_by": (by or attack) if i in broken else "",
        }
        for i in range(N)
    ]  # fmt: skip


def names(*cells):
    return [warning.name for warning in check_rows({str(i): rows for i, rows in enumerate(cells)})]


def test_healthy_rows_give_no_warning():
    cells = [cell(a, b, range(n)) for a in ("fgsm", "madry", "square", "auto") for b, n in ((0.1, 20), (0.2, 60))]
    assert names(*cells) == []


def test_stronger_at_smaller_budget():
    assert names(cell("mim", 0.1, range(30)), cell("mim", 0.2, range(20, 70))) == ["stronger-at-smaller-budget"]
    assert names(cell("mim", 0.1, range(30)), cell("mim", 0.2, range(1, 70))) == []  # one image may be chance
    assert names(cell("mim", 0.2, range(20, 70)), cell("ifgsm", 0.1, range(30))) == []  # another attack


def test_larger_budget_does_not_hurt():
    assert names(cell("mim", 0.1, range(30)), cell("mim", 0.3, range(30))) == ["larger-budget-does-not-hurt"]
    assert names(cell("mim", 0.1, range(97)), cell("mim", 0.3, range(97))) == []  # nothing left to break
    assert names(cell("mim", 0.1, range(0)), cell("mim", 0.3, range(0))) == []  # both too small to tell
    assert names(cell("mim", 0.1, range(30)), cell("mim", 0.11, range(30))) == []  # hardly larger


def test_black_box_beats_white_box():
    white = [cell("fgsm", 0.1, range(20)), cell("madry", 0.1, range(10, 40))]
    assert names(*white, cell("square", 0.1, range(30, 60))) == ["black-box-beats-white-box"]
    assert names(*white, cell("square", 0.1, range(41))) == []
    assert names(cell("square", 0.1, range(60))) == []  # nothing to compare with


def test_black_box_inside_auto():
    rows = cell("auto", 0.1, range(50))
    for row in rows[40:50]:
        row["broken_by"] = "square"
    assert names(rows) == ["black-box-beats-white-box"]
    assert names(cell("auto", 0.1, range(50))) == []


def test_words_say_what_was_seen_and_votes_that_prove_nothing_count_for_nothing():
    (warning,) = check_rows({"a": cell("mim", 0.1, range(30)), "b": cell("mim", 0.2, range(20, 70))})
    assert "20 of 100 images fall at budget 0.1 but stand at 0.2" in warning.words
    assert warning.json()["evidence"]["images"] == 20
    near = cell("mim", 0.1, range(30))
    for row in near:
        row["label_votes"], row["other_votes"] = 495, 505
    assert names(near, cell("mim", 0.2, range(40))) == []


def test_protocols_and_settings_are_not_mixed():
    assert names(cell("mim", 0.1, range(30)), cell("mim", 0.2, range(20, 70), protocol="as-published")) == []
    cells = {"long": cell("mim", 0.1, range(30)), "short": cell("mim", 0.2, range(20, 70))}
    assert check_rows(cells, {"long": "100 steps", "short": "2 steps"}) == []
    assert check_rows(cells, {"long": "2 steps", "short": "2 steps"})
