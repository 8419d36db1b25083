import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from securesgd.errors import InvalidInputError
from securesgd.theory.comparison import gain_rows, paired_t_test


def test_paired_test_is_the_one_sample_test_of_the_differences():
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal(0.6, 0.1, 12), generator.normal(0.5, 0.1, 12)
    found, other = paired_t_test(ours, theirs), ttest_1samp(ours - theirs, 0)
    assert (found.t, found.p_value) == pytest.approx((other.statistic, other.pvalue), rel=1e-12)
    interval = other.confidence_interval(0.95)
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high))
    assert found.lower < found.gain < found.upper
    back = paired_t_test(theirs, ours)
    assert (back.gain, back.p_value) == pytest.approx((-found.gain, found.p_value))


def test_false_alarms_come_as_often_as_stated():
    """1,000 comparisons without a difference at level 0.05: 50 alarms, give or take 3 standard deviations (±21)."""
    generator = np.random.default_rng(1)
    pairs = generator.normal(size=(1000, 2, 6))
    alarms = sum(paired_t_test(a, b).p_value < 0.05 for a, b in pairs)
    assert 29 <= alarms <= 71


def test_differences_without_spread():
    assert paired_t_test([1, 2, 3], [1, 2, 3]).p_value == 1
    certain = paired_t_test([0.2, 0.3], [0.1, 0.2])
    assert (certain.p_value, certain.gain) == (0, pytest.approx(0.1))
    assert math.isinf(certain.t)


@pytest.mark.parametrize("theirs", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]])
def test_lists_that_are_no_pairs_are_refused(theirs):
    with pytest.raises(InvalidInputError, match="two lists of equal length >= 2"):
        paired_t_test([1.0, 2.0] if len(theirs) > 1 else [1.0], theirs)


def rows():
    """Two seeds and two attacks: ours is above by 0.1 and 0.2 with seed 0, by 0.1 and 0 with seed 1."""
    values = {"ours": (0.9, 0.8, 0.7, 0.5), "other": (0.8, 0.7, 0.5, 0.5)}
    conditions = [("fgsm", 0), ("fgsm", 1), ("mim", 0), ("mim", 1)]
    return [
        {"method": method, "attack": attack, "seed": seed, "accuracy": value}
        for method, measured in values.items()
        for (attack, seed), value in zip(conditions, measured, strict=True)
    ]


def test_a_pair_is_a_seed_and_not_an_attack_of_one_model():
    (gain,) = gain_rows(rows(), ours="ours", value="accuracy", points=("attack",))
    assert (gain["seeds"], gain["points"], gain["against"]) == (2, 2, "other")
    assert gain["gain"] == pytest.approx(0.1)
    assert gain["relative_gain"] == pytest.approx(0.1 / 0.625)
    by_seed = paired_t_test([0.8, 0.65], [0.65, 0.6])  # the means over the attacks
    assert (gain["p_value"], gain["lower"]) == pytest.approx((by_seed.p_value, by_seed.lower))
    more_attacks = [{**row, "attack": f"{row['attack']}-{k}"} for row in rows() for k in range(50)]
    (same,) = gain_rows(more_attacks, ours="ours", value="accuracy", points=("attack",))
    assert same["p_value"] == pytest.approx(gain["p_value"])  # attacks of the same models are no further evidence
    per_attack = gain_rows(rows(), ours="ours", value="accuracy", points=(), per=("attack",))
    assert [(g["attack"], round(g["gain"], 9), g["seeds"]) for g in per_attack] == [("fgsm", 0.1, 2), ("mim", 0.1, 2)]


def test_one_seed_has_a_gain_and_no_test():
    (gain,) = gain_rows([row for row in rows() if row["seed"] == 0], ours="ours", value="accuracy", points=("attack",))
    assert gain["gain"] == pytest.approx(0.15)
    assert (gain["lower"], gain["upper"], gain["t"], gain["p_value"]) == (None,) * 4


def test_a_measurement_without_partner_or_value_is_left_out():
    table = [*rows(), {"method": "ours", "attack": "madry", "seed": 0, "accuracy": 0.1}]
    table.append({"method": "other", "attack": "madry", "seed": 0, "accuracy": None})
    (gain,) = gain_rows(table, ours="ours", value="accuracy", points=("attack",))
    assert (gain["points"], gain["gain"]) == (2, pytest.approx(0.1))


def test_ambiguous_or_missing_rows_are_refused():
    with pytest.raises(InvalidInputError, match="two rows for seed 0"):
        gain_rows(rows(), ours="ours", value="accuracy", points=())
    with pytest.raises(InvalidInputError, match="no rows of 'mine'"):
        gain_rows(rows(), ours="mine", value="accuracy", points=("attack",))
