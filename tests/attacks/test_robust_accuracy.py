"""Summaries of attack rows, and the sandwich: broken on purpose, it must be noticed."""

import pytest

from securesgd.attacks.robust_accuracy import attack_balance, attack_summary
from securesgd.errors import InvalidInputError


def row(index, clean=(990, 10), attacked=(990, 10), radius=0.2, budget=0.1, draws=1000, after=0.0):
    radii = {"clean_radius": radius, "radius": after, "clean_radius_published": radius, "radius_published": after}
    return {
        "index": index, "budget": budget, "draws": draws, "success": int(attacked[0] <= attacked[1]), **radii,
        "clean_label_votes": clean[0], "clean_other_votes": clean[1],
        "label_votes": attacked[0], "other_votes": attacked[1],
    }  # fmt: skip


def test_the_two_accuracies_of_the_paper():
    rows = [
        row(0, after=0.15),  # right and proven at both images
        row(1, radius=0.05),  # right, proven nowhere
        row(2, attacked=(10, 990), radius=0.05),  # broken
        row(3, clean=(10, 990), attacked=(10, 990)),  # wrong before: its radius is of another class
    ]
    summary = attack_summary(rows, classes=10)
    assert summary["clean_accuracy"]["share"] == 0.75
    assert summary["accuracy"]["share"] == 0.5
    assert summary["success"] == 0.5
    assert summary["certified_accuracy"]["tight"]["clean"]["share"] == 0.25
    assert summary["certified_accuracy"]["tight"]["attacked"]["share"] == 0.25
    assert summary["accuracy"]["lower"] < 0.5 < summary["accuracy"]["upper"]
    assert summary["undecided"] == 0
    assert summary["sandwich"]["holds"]
    assert "0.250 certified <= 0.500 under attack <= 0.750 clean" in summary["sandwich"]["in_words"]


def test_a_broken_certificate_is_caught():
    fine = [row(i) for i in range(20)]
    broken = [row(i, attacked=(200, 800)) for i in (20, 21, 22)]
    summary = attack_summary(fine + broken, classes=10)["sandwich"]
    assert not summary["holds"]
    assert summary["contradictions"] == [20, 21, 22]
    assert "not true" in summary["in_words"]
    assert attack_summary(fine, classes=10)["sandwich"]["holds"]


def test_votes_that_prove_nothing_contradict_nothing():
    rows = [row(i) for i in range(20)] + [row(i, attacked=(490, 510)) for i in range(20, 26)]
    summary = attack_summary(rows, classes=10)
    assert summary["sandwich"]["holds"]
    assert summary["undecided"] == pytest.approx(6 / 26)


def test_a_certificate_below_the_budget_promises_nothing():
    rows = [row(i, radius=0.0999, attacked=(0, 1000)) for i in range(10)]
    assert attack_summary(rows, classes=10)["sandwich"]["holds"]


def test_more_right_under_attack_than_without_is_caught():
    rows = [row(i) for i in range(10)] + [row(i, clean=(100, 900), radius=0.0) for i in range(10, 14)]
    summary = attack_summary(rows, classes=10)["sandwich"]
    assert not summary["holds"]
    assert "the measurement is wrong" in summary["in_words"]


def test_a_model_without_noise_votes_once_and_has_no_certificates():
    rows = [row(i, (1, 0), (0, 1), radius="", after="", draws=1) for i in range(4)]
    rows += [row(i, (1, 0), (1, 0), radius="", after="", draws=1) for i in range(4, 8)]
    summary = attack_summary(rows, classes=10)
    assert summary["accuracy"]["share"] == 0.5
    assert summary["undecided"] == 0
    assert "certified_accuracy" not in summary
    assert summary["sandwich"]["holds"]


def test_failure_probability_is_read():
    rows = [row(i) for i in range(5)] + [row(i, attacked=(440, 560)) for i in range(5, 12)]
    assert attack_summary(rows, classes=2, failure_prob=0.05)["sandwich"]["contradictions"]
    assert not attack_summary(rows, classes=2, failure_prob=1e-9)["sandwich"]["contradictions"]


def test_failure_probability_is_shared_by_images_and_classes():
    rows = [row(i) for i in range(5)] + [row(i, attacked=(440, 560)) for i in range(5, 12)]  # p = 8e-5 each
    assert not attack_summary(rows, classes=10, failure_prob=0.001)["sandwich"]["contradictions"]
    assert attack_summary(rows, classes=2, failure_prob=0.001)["sandwich"]["contradictions"]


def test_no_rows_are_refused():
    with pytest.raises(InvalidInputError, match="no rows"):
        attack_summary([], classes=10)


def test_the_balance_counts_what_the_summary_counts_and_a_tie_is_no_answer():
    votes = [(0, 9, 1, 0), (0, 5, 5, 0), (1, 5, 5, 0), (1, 2, 8, 0), (1, 8, 2, 1)]
    rows = [
        {"budget": 0.1, "index": i, "label": label, "draws": 10, "success": 0, "clean_radius": "", "radius": "",
         "clean_radius_published": "", "radius_published": ""}
        | {f"{prefix}{name}": value for prefix in ("clean_", "") for name, value in
           (("label_votes", own), ("other_votes", other), ("prediction", answer))}
        for i, (label, own, other, answer) in enumerate(votes)
    ]  # fmt: skip
    for place, accuracy in (("clean", "clean_accuracy"), ("attacked", "accuracy")):
        balance = attack_balance(rows, place, classes=3)
        assert (balance.examples, balance.right, balance.answers) == ((2, 3, 0), (1, 1, 0), (3, 1, 0))
        assert balance.json()["accuracy"] == attack_summary(rows, classes=3)[accuracy]
