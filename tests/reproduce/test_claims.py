"""What rows say about the paper's claims: the verdicts, the rows they come from, and the committed table."""

import csv
import shutil
from pathlib import Path

import pytest

from securesgd.reproduce.claims import CLAIMS, claim_rows, stated_gains, stated_rise, verdict
from securesgd.reproduce.reproduce import EXPERIMENTS, write_claims
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here

RESULTS = Path(__file__).parents[2] / "results"
FIGURES = ("fig2", "fig3", "fig4", "fig5")


@pytest.mark.parametrize(
    ("seeds", "lower", "upper", "answer"),
    [
        (1, None, None, "cannot be told"),
        (2, 0.05, 0.06, "cannot be told"),  # two seeds are too few, whatever the interval
        (3, 0.01, 0.06, "agrees"),
        (3, 0.01, 0.02, "agrees"),
        (3, -0.06, -0.01, "disagrees"),
        (3, -0.01, 0.01, "disagrees"),  # the stated gain is ruled out
        (3, -0.01, 0.06, "cannot be told"),
    ],
)
def test_a_verdict_needs_three_seeds_and_an_interval(seeds, lower, upper, answer):
    assert verdict(seeds, lower, upper, 0.038)[0] == answer


def rows(gain, spread, seeds=3):
    """Rows of figure 5: Secure-SGD above DP-SGD by `gain`, and no rise."""
    return [
        {
            "protocol": "sound", "way": "learned", "method": method, "network": "mnist-cnn", "seed": seed,
            "attack": attack, "epsilon": epsilon, "examples": 500.0,
            "attacked": 0.5 + (gain + spread * (seed - 1)) * (method == "secure-sgd"),
        }
        for method in ("secure-sgd", "dpsgd")
        for seed in range(seeds)
        for attack in ("fgsm", "mim")
        for epsilon in (0.2, 2.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "spread", "seeds", "answer"),
    [
        (0.11, 0.01, 3, "agrees"),
        (-0.05, 0.01, 3, "disagrees"),
        (0.03, 0.05, 3, "cannot be told"),
        (0.11, 0.01, 1, "cannot be told"),
    ],
)
def test_a_claim_is_computed_from_rows(gain, spread, seeds, answer):
    from securesgd.reproduce.figures import FIGURE_GAINS

    claims = claim_rows({"fig5": FIGURE_GAINS["fig5"](rows(gain, spread, seeds))})
    assert len(claims) == len(CLAIMS)
    (line,) = [row for row in claims if row["figure"] == "fig5" and "DP-SGD" in row["claim"]]
    assert (line["verdict"], line["seeds"], line["examples"], line["points"]) == (answer, seeds, 500, 4)
    assert line["gain"] == pytest.approx(gain if seeds > 1 else gain - spread)
    assert line["paper_gain"] == 0.1074
    others = [row for row in claims if row["figure"] != "fig5"]
    assert {(row["verdict"], row["reason"], row["seeds"]) for row in others} == {("cannot be told", "not measured", 0)}
    (rise,) = [row for row in claims if row["figure"] == "fig5" and "rises" in row["claim"]]
    assert rise["gain"] == pytest.approx(0)


def test_a_network_that_is_there_to_show_the_difference_has_no_part_in_a_gain():
    from securesgd.reproduce.figures import FIGURE_GAINS

    other = [{**row, "network": "cifar-cnn", "attacked": 0.0} for row in rows(0.1, 0.01) if row["method"] == "dpsgd"]
    assert FIGURE_GAINS["fig5"](rows(0.1, 0.01) + other) == FIGURE_GAINS["fig5"](rows(0.1, 0.01))


def test_every_claim_belongs_to_a_figure_and_to_its_gains():
    assert {claim.figure for claim in CLAIMS} == set(FIGURES) <= set(EXPERIMENTS)
    assert stated_gains("fig5") == {"secure-sgd-agm": (0.029, 8.79e-7), "dpsgd": (0.1074, 8.54e-14)}
    assert (stated_rise("fig4"), stated_rise("fig5")) == (0.1817, 0.2967)


def test_the_committed_table_is_that_of_the_committed_rows(tmp_path):
    for name in FIGURES:
        (tmp_path / name).mkdir()
        for file in ("rows.csv", "environment.json"):
            shutil.copy(RESULTS / name / file, tmp_path / name / file)
    result = run_here("reproduce", "claims", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    again, committed = (read_rows(path / "claims.csv") for path in (tmp_path, RESULTS))
    assert len(again) == len(committed)
    for ours, theirs in zip(again, committed, strict=True):
        for name, value in ours.items():
            same = pytest.approx(theirs[name], abs=1e-12) if isinstance(value, float) else theirs[name]
            assert value == same, name


def test_without_rows_nothing_is_claimed(tmp_path):
    with write_claims(tmp_path).open(newline="") as file:
        assert {row["verdict"] for row in csv.DictReader(file)} == {"cannot be told"}
