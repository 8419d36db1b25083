"""The committed gains and t-tests, computed again from the committed rows by a few lines of their own."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(path.parent.name for path in RESULTS.glob("*/gains.csv"))
PAIRED = ("seed", "attack", "budget", "epsilon")


def read(name, file):
    with (RESULTS / name / file).open(newline="") as table:
        return list(csv.DictReader(table))


def test_there_are_tables():
    assert "attacks" in TABLES


@pytest.mark.parametrize("name", TABLES)
def test_gains_and_t_tests_are_those_of_the_rows(name):
    rows, gains = read(name, "rows.csv"), read(name, "gains.csv")
    assert gains
    for gain in gains:
        sides = []
        unpaired = {"attack"} if gain["value"] == "certified_clean" else set()  # no attack has a part in it
        for method in (gain["ours"], gain["against"]):
            chosen, _, epsilon = method.partition(" at epsilon ")
            paired = [k for k in PAIRED if k not in unpaired | ({"epsilon"} if epsilon else set())]
            sides.append(
                {
                    tuple(row.get(k) for k in paired): float(row[gain["value"]])
                    for row in rows
                    if row["method"] == chosen
                    and row["protocol"] == gain["protocol"]
                    and gain.get("attack", "all") in ("all", row["attack"])
                    and (not epsilon or float(row["epsilon"]) == float(epsilon))
                    and _same_line(row, gain, name)
                }
            )
        ours, theirs = sides
        by_seed = {}
        for key in ours.keys() & theirs.keys():
            by_seed.setdefault(key[0], []).append(ours[key] - theirs[key])
        difference = np.array([np.mean(values) for values in by_seed.values()])
        n, mean = len(difference), difference.mean()
        assert (n, len(ours.keys() & theirs.keys())) == (int(gain["seeds"]), int(gain["points"]) * n)
        assert mean == pytest.approx(float(gain["gain"]), abs=1e-12)
        if n == 1:  # attacks of one model are no evidence about trainings
            assert (gain["t"], gain["p_value"], gain["lower"], gain["upper"]) == ("",) * 4
            continue
        spread = difference.std(ddof=1)
        if spread > 1e-12:
            t = mean / (spread / math.sqrt(n))
            assert t == pytest.approx(float(gain["t"]), rel=1e-9)
            assert 2 * student.sf(abs(t), n - 1) == pytest.approx(float(gain["p_value"]), rel=1e-6, abs=1e-300)
        half = student.ppf(0.975, n - 1) * spread / math.sqrt(n)
        assert (float(gain["lower"]), float(gain["upper"])) == pytest.approx((mean - half, mean + half), abs=1e-9)


def _same_line(row, gain, name):
    """Figures 2 and 3 have several lines of one method: the gain is of one way and one robust_epsilon."""
    if name not in ("fig2", "fig3") or row["method"] == "pixeldp":
        return True
    return row["way"] == gain["way"] and float(row["robust_epsilon"]) == {"fig2": 8.0, "fig3": 4.0}[name]
