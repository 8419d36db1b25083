"""Coverage by simulation, powerful both ways: a valid bound passes, the same bound at a too small cost is caught.

Each simulation has a fixed seed. Over random seeds the stated flake rate of every test here is below 1e-6: the number
of failures is binomial, and the limit is its 1 − 1e-6 quantile at the promised failure probability.
"""

import numpy as np
import pytest
from scipy.special import betaln
from scipy.stats import binom

from securesgd.errors import InvalidInputError
from securesgd.theory import (
    anytime_bounds,
    anytime_log_evidence,
    clopper_pearson_lower,
    clopper_pearson_upper,
    hoeffding_bounds,
)

ALPHA = 0.05
TRIALS = 4000
MOST_FAILURES = int(binom.ppf(1 - 1e-6, TRIALS, ALPHA))


@pytest.mark.parametrize("truth", [0.02, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("draws", [20, 500])
def test_clopper_pearson_coverage(truth, draws):
    votes = np.random.default_rng(0).binomial(draws, truth, TRIALS)
    assert np.sum(clopper_pearson_lower(votes, draws, ALPHA) > truth) <= MOST_FAILURES
    assert np.sum(clopper_pearson_upper(votes, draws, ALPHA) < truth) <= MOST_FAILURES


def test_ignoring_the_failure_probability_is_caught():
    """The same simulation goes red for a bound computed at 1.5 times the promised failure probability."""
    draws, truth = 500, 0.5
    votes = np.random.default_rng(0).binomial(draws, truth, 20 * TRIALS)
    most = int(binom.ppf(1 - 1e-6, 20 * TRIALS, ALPHA))
    assert np.sum(clopper_pearson_lower(votes, draws, 1.5 * ALPHA) > truth) > most
    assert np.sum(clopper_pearson_lower(votes, draws, ALPHA) > truth) <= most


def test_clopper_pearson_exact_at_the_ends():
    assert clopper_pearson_lower(1000, 1000, 0.005) == pytest.approx(0.005 ** (1 / 1000), rel=1e-11)
    assert clopper_pearson_upper(0, 1000, 0.005) == pytest.approx(1 - 0.005 ** (1 / 1000), rel=1e-8)
    assert clopper_pearson_lower(0, 10, 0.1) == 0
    assert clopper_pearson_upper(10, 10, 0.1) == 1


@pytest.mark.parametrize(("draws", "cap"), [(1_000, 2.62), (2_000, 2.97), (10_000, 3.77), (100_000, 4.92)])
def test_votes_cap_the_usable_epsilon(draws, cap):
    p, q = clopper_pearson_lower(draws, draws, 0.005), clopper_pearson_upper(0, draws, 0.005)
    assert 0.5 * np.log(p / q) == pytest.approx(cap, abs=0.005)


def test_hoeffding_covers_all_classes_at_once():
    rng = np.random.default_rng(1)
    truth, draws = np.array([0.5, 0.3, 0.1, 0.06, 0.04]), 200
    means = rng.multinomial(draws, truth, TRIALS) / draws
    lower, upper = hoeffding_bounds(means, draws, ALPHA)
    inside = ((lower <= truth) & (truth <= upper)).all(axis=1)
    assert np.sum(~inside) <= MOST_FAILURES
    # The formula itself: union over 5 classes and 2 sides. Without the union it would be narrower.
    assert (upper - means)[0, 0] == pytest.approx(np.sqrt(np.log(10 / ALPHA) / (2 * draws)), rel=1e-6)
    narrow = np.sqrt(np.log(2 / 0.9) / (2 * draws))  # a bound that ignores failure_prob
    assert np.sum((np.abs(means - truth) > narrow).any(axis=1)) > MOST_FAILURES


def each_pair_once(function, totals):
    """A function of the number of right votes and of draws, asked once for each pair that occurs in the sequences."""
    draws = np.arange(1, totals.shape[1] + 1)
    codes = totals * (len(draws) + 1) + draws
    occurs = np.zeros((len(draws) + 1) ** 2, dtype=bool)
    occurs[codes] = True
    pairs, answers = np.flatnonzero(occurs), np.empty(occurs.size)
    answers[pairs] = function(pairs // (len(draws) + 1), pairs % (len(draws) + 1))
    return answers[codes]


def crossings(values, truth, alpha):
    """How many sequences ever exclude the truth, at any number of draws."""
    totals, draws = np.cumsum(values, axis=1), np.arange(1, values.shape[1] + 1)
    if values.dtype == bool:
        evidence = each_pair_once(lambda total, n: anytime_log_evidence(total, n, truth), totals)
    else:
        evidence = anytime_log_evidence(totals, draws, truth)
    return np.sum((evidence > -np.log(alpha)).any(axis=1))


@pytest.mark.parametrize("truth", [0.03, 0.5, 0.95])
def test_anytime_bound_holds_at_every_stopping_time(truth):
    rng = np.random.default_rng(2)
    votes = rng.random((TRIALS, 3000)) < truth
    scores = rng.beta(3 * truth, 3 * (1 - truth), (TRIALS, 1000))
    assert crossings(votes, truth, ALPHA) <= MOST_FAILURES
    assert crossings(scores, truth, ALPHA) <= MOST_FAILURES


def test_a_fixed_time_bound_used_at_every_time_is_caught():
    """Peeking with Clopper–Pearson breaks its promise; the simulation above would see it."""
    rng = np.random.default_rng(3)
    totals = np.cumsum(rng.random((TRIALS, 1000)) < 0.5, axis=1)
    excluded = each_pair_once(lambda total, n: clopper_pearson_lower(total, n, ALPHA), totals) > 0.5
    assert np.sum(excluded.any(axis=1)) > MOST_FAILURES


def test_anytime_evidence_is_a_fair_bet_for_votes_and_unfavourable_for_scores():
    """E[wealth after one draw] = 1 for a vote of mean m and <= 1 for any score of mean m: the martingale property."""
    for m in (0.1, 0.5, 0.8):
        wealth = np.exp(anytime_log_evidence([0, 1], 1, m))
        assert (1 - m) * wealth[0] + m * wealth[1] == pytest.approx(1)
        low, high = max(0.0, 2 * m - 1), min(1.0, 2 * m)
        assert np.exp(anytime_log_evidence([low, high], 1, m)).mean() <= 1 + 1e-12
    assert anytime_log_evidence(7, 10, 0.5) == pytest.approx(betaln(7.5, 3.5) - betaln(0.5, 0.5) - 10 * np.log(0.5))


def test_anytime_bounds_agree_with_the_evidence_and_narrow():
    total, draws = np.array([0, 3, 900, 1000]), 1000
    lower, upper = anytime_bounds(total, draws, 0.01)
    assert (lower <= total / draws).all()
    assert (total / draws <= upper).all()
    for bound, s in zip(np.r_[lower[1:], upper[:-1]], np.r_[total[1:], total[:-1]], strict=True):
        assert anytime_log_evidence(s, draws, bound) == pytest.approx(np.log(100), abs=1e-3)
    assert anytime_bounds(0, 0, 0.01) == (0.0, 1.0)
    widths = [np.subtract(*anytime_bounds(0.9 * n, n, 0.01)[::-1]) for n in (100, 1_000, 10_000)]
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
    assert anytime_bounds(900, 1000, 0.001)[0] < anytime_bounds(900, 1000, 0.1)[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clopper_pearson_lower(11, 10, 0.05), "successes must be between 0 and draws"),
        (lambda: clopper_pearson_lower(5, 10, 0), r"failure_prob is .*; valid: a number in \(0, 1\)"),
        (lambda: clopper_pearson_lower(5.5, 10, 0.1), "whole numbers"),
        (lambda: hoeffding_bounds(0.5, 10, 0.1), "classes along its last axis"),
        (lambda: hoeffding_bounds([0.5, 1.5], 10, 0.1), r"means is 1.5; valid: a number in \[0, 1\]"),
        (lambda: hoeffding_bounds([0.5, 0.5], 0, 0.1), "draws must be >= 1"),
        (lambda: anytime_bounds(11, 10, 0.1), "cannot exceed the number of draws"),
        (lambda: anytime_bounds(np.nan, 10, 0.1), "total is nan; valid: a"),
        (lambda: anytime_bounds(1, 10, 1), r"failure_prob is .*; valid: a number in \(0, 1\)"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_bounds_near_one_and_for_many_draws_are_rounded_outwards():
    upper = clopper_pearson_upper(24_661, 24_662, 1.56e-12)
    assert upper**24_662 >= 1 - 1.56e-12  # P(fewer than all) at the bound; rounded inwards it would be 1 − 2.7e-12
    lower, _ = anytime_bounds(0.5e9, 1e9, 0.05)
    assert anytime_log_evidence(0.5e9, 1e9, lower) >= -np.log(0.05) + 1e-5


def test_a_bet_placed_anywhere_is_fair_and_placed_well_is_tighter():
    """Any prior gives a supermartingale; one near the truth narrows the bounds, one far from it widens them."""
    for prior in ((0.5, 0.5), (90.5, 10.5), (3.0, 200.0)):
        for m in (0.1, 0.8):
            wealth = np.exp(anytime_log_evidence([0, 1], 1, m, prior))
            assert (1 - m) * wealth[0] + m * wealth[1] == pytest.approx(1)
    widths = [np.subtract(*anytime_bounds(900, 1_000, 0.01, prior)[::-1]) for prior in ((90, 10), (0.5, 0.5), (10, 90))]
    assert widths == sorted(widths)
    with pytest.raises(InvalidInputError, match=r"prior is .*; valid: a finite number > 0"):
        anytime_bounds(9, 10, 0.01, (0.0, 1.0))
