"""Certified accuracy from rows: exact numbers, intervals, words, and a picture."""

import pytest

from securesgd.certificates.summary import (
    certificate_balance,
    certified_accuracy,
    certified_summary,
    guarantee_in_words,
)
from securesgd.report.plots import certified_curves_figure
from securesgd.theory.confidence import wilson_interval

RULES = ("tight", "analytic", "extended", "classic", "as-published")


def row(index, right=True, abstained=0, radius=0.1, norm="linf"):
    radii = {f"radius_{rule}": 0.0 if abstained else radius / (i + 1) for i, rule in enumerate(RULES)}
    named = {"norm": norm, "index": index, "label": 3, "prediction": 3 if right else 4, "abstained": abstained}
    return {**named, "draws": 100, **radii}


ROWS = [row(0, radius=0.1), row(1, radius=0.05), row(2, right=False, radius=0.3), row(3, abstained=1)]


def test_only_examples_that_are_right_and_proven_count():
    assert certified_accuracy(ROWS, "tight", 0.05)["share"] == 0.5
    assert certified_accuracy(ROWS, "tight", 0.06)["share"] == 0.25
    assert certified_accuracy(ROWS, "tight", 0.2)["share"] == 0.0  # the wrong one has 0.3
    assert certified_accuracy(ROWS, "tight", 0.0)["share"] == 0.5  # the abstained one is not proven at 0 either
    found = certified_accuracy(ROWS, "analytic", 0.05)
    assert found["share"] == 0.25
    assert (found["lower"], found["upper"]) == pytest.approx(wilson_interval(1, 4))


def test_summary():
    found = certified_summary(ROWS, [0.05])
    assert found["examples"] == 4
    assert found["accuracy"]["share"] == 0.5
    assert found["abstained"] == 0.25
    assert found["draws_mean"] == 100
    assert found["average_certified_radius"]["tight"] == pytest.approx(0.15 / 4)
    assert list(found["certified_accuracy"]) == list(RULES)
    assert list(found["certified_accuracy"]["tight"]) == ["0.05"]


def test_words_name_every_premise():
    settings = {"failure_prob": 0.01, "norm": "l2"}
    words = guarantee_in_words(
        settings, {"upper": 4.0, "lower": 3.5, "method": "gram"}, certified_summary(ROWS, [0.05])
    )
    for claim in (
        "at least 0.99 ",
        "l2",
        "at most 4 ",
        "at least 3.5",
        "50.0 % at 0.05",
        "as-published are without guarantee",
    ):
        assert claim in words
    assert "\n" not in words


@pytest.mark.parametrize("rows", [ROWS, [row(0, right=False)], [*ROWS, row(0, norm="l2")]], ids=["some", "none", "two"])
def test_picture(rows, tmp_path):
    certified_curves_figure(rows, tmp_path / "sub" / "curves.png")
    assert (tmp_path / "sub" / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_the_balance_counts_what_the_summary_counts_and_an_abstention_is_no_answer():
    balance = certificate_balance(ROWS)
    assert balance.json()["accuracy"] == certified_summary(ROWS)["accuracy"]
    assert balance.json()["abstained"] == sum(bool(row["abstained"]) for row in ROWS) > 0
