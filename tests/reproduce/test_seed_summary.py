"""Means over seeds, by hand."""

from securesgd.reproduce.gains import seed_summary


def test_mean_and_range_per_group_in_first_order():
    rows = [{"way": w, "seed": s, "a": a} for w, s, a in (("z", 0, 0.1), ("b", 0, 0.5), ("z", 1, 0.4))]
    assert seed_summary(rows, ["way"], ["a"]) == [
        {"way": "z", "seeds": 2, "a_mean": 0.25, "a_min": 0.1, "a_max": 0.4},
        {"way": "b", "seeds": 1, "a_mean": 0.5, "a_min": 0.5, "a_max": 0.5},
    ]
