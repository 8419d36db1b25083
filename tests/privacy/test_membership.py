"""mu and true positive rates, against closed forms and attacks that are carried out by numerical integration."""

import math
from functools import lru_cache

import numpy as np
import pytest
from scipy import stats

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    membership_bounds,
    mixture_loss,
)
from securesgd.privacy.composition import compose

DELTA = 1e-5


def steps(rate, noise, count):
    return SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=count)


def release(noise):
    return GaussianRelease(noise_multiplier=noise, label="r")


def gaussian_rate(mu, rate):
    return stats.norm.cdf(stats.norm.ppf(rate) + mu)


@pytest.mark.parametrize(
    ("events", "mu"),
    [
        ([release(1.0)], 1.0),
        ([release(2.0)], 0.5),
        ([release(50.0)], 0.02),
        ([release(0.25)], 4.0),
        ([release(3.0), release(4.0)], 5 / 12),
        ([steps(1.0, 20.0, 100)], 0.5),
    ],
)
def test_gaussian_releases_have_their_closed_form_from_above(events, mu):
    found = membership_bounds(events, 1e-7, (0.1, 0.01, 0.001))
    assert found.slack == pytest.approx(1e-9)
    assert mu * (1 - 1e-6) <= found.mu <= mu * (1 + 1e-5)
    assert found.regret < 1e-6
    for rate, bound in found.true_positive_rates:
        assert gaussian_rate(mu, rate) <= bound <= gaussian_rate(mu, rate) * (1 + 1e-5)


def best_attack(rate, noise, false_positives):
    """True positive rates of the best attack on one step: a threshold, on either side, found by its definition."""
    high = stats.norm.isf(false_positives)
    found = (1 - rate) * stats.norm.sf(high) + rate * stats.norm.sf(high - 1 / noise)

    # The reverse: say that the example was *not* there. Threshold where the mixture has that much mass below.
    points = np.linspace(-9, 9, 400_001)
    below = (1 - rate) * stats.norm.cdf(points) + rate * stats.norm.cdf(points - 1 / noise)
    return found, float(stats.norm.cdf(np.interp(false_positives, below, points)))


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 0.5), (0.5, 1.0), (0.9, 0.7), (0.01, 0.3)])
def test_one_sampled_step_is_the_best_threshold(rate, noise):
    found = membership_bounds([steps(rate, noise, 1)], DELTA, (0.2, 0.01, 0.001))
    for false_positives, bound in found.true_positive_rates:
        truth = max(best_attack(rate, noise, false_positives))
        assert truth <= bound * (1 + 1e-9)
        assert bound <= truth * (1 + 1e-4)


@lru_cache
def roc_of_two_steps(rate, noise, cells=1500):
    """Exact rates of likelihood-ratio attacks on two steps: cells of the plane, sorted by the ratio."""
    edges = np.linspace(-8, 8 + 1 / noise, cells + 1)
    absent = np.diff(stats.norm.cdf(edges))
    present = (1 - rate) * absent + rate * np.diff(stats.norm.cdf(edges - 1 / noise))
    absent, present = np.multiply.outer(absent, absent).ravel(), np.multiply.outer(present, present).ravel()
    order = np.argsort(-present / np.maximum(absent, 1e-300))
    return np.cumsum(absent[order]), np.cumsum(present[order])


def test_no_attack_on_two_steps_beats_the_bounds():
    rate, noise = 0.3, 0.8
    rates = (0.1, 0.01, 0.001)
    bounds = membership_bounds([steps(rate, noise, 2)], 1e-2, rates)
    false, true = roc_of_two_steps(rate, noise)
    for (wanted, bound), reverse in zip(bounds.true_positive_rates, rates, strict=True):
        forward = np.interp(wanted, false, true)
        backward = 1 - np.interp(1 - reverse, true, false)
        assert max(forward, backward) <= bound * (1 + 1e-5)
        assert bound <= max(forward, backward) * (1 + 1e-3)
    # mu: no attack at all is better than telling two Gaussians apart, up to the slack, and a smaller mu would not do
    allowed = gaussian_rate(bounds.mu, false) + bounds.slack
    assert np.all(true <= allowed + 1e-7)
    assert np.all(1 - false <= gaussian_rate(bounds.mu, 1 - true) + bounds.slack + 1e-7)
    smaller = bounds.mu * 0.998
    beaten = np.max(true - gaussian_rate(smaller, false)), np.max(1 - false - gaussian_rate(smaller, 1 - true))
    assert max(beaten) > bounds.slack + 1e-6


def test_the_regret_is_how_far_mu_is_from_the_curve():
    """Of both rates, in the same direction as the slope of the curve; divergences are those of the attacks above."""
    rate, noise = 0.3, 0.8
    bounds = membership_bounds([steps(rate, noise, 2)], 1e-2)
    false, true = roc_of_two_steps(rate, noise)
    gaps = []
    for epsilon in np.linspace(0, 2, 41):
        factor = math.exp(epsilon)
        ours = max(np.max(true - factor * false), np.max(1 - false - factor * (1 - true)))
        low, high = (stats.norm.cdf(sign * bounds.mu / 2 - epsilon / bounds.mu) for sign in (-1, 1))
        gaps.append((high - factor * low - ours) / (1 + factor))
    assert 1e-3 < bounds.regret < 0.2
    assert bounds.regret == pytest.approx(max(gaps), rel=1e-3)


# riskcal 1.5.1: 1 - get_beta_from_pld at 1 % and 0.1 %, of a PLD of dp-accounting 0.6.0 with an interval of 1e-3. With
# 1e-4 and 2e-5 its rates get smaller, below those of the divergences of the same PLD: it joins the masses of both
# directions, whose rounding does not cancel.
RISKCAL = {
    (0.017, 1.0, 600): [0.03942682, 0.006138098],
    (0.0342, 1.3, 600): [0.05914697, 0.0103426],
    (0.1, 2.0, 100): [0.03771502, 0.0056805],
}


@pytest.mark.parametrize(("setting", "rates"), RISKCAL.items())
def test_another_program_finds_the_same_rates(setting, rates):
    found = membership_bounds([steps(*setting)], DELTA)
    assert [true for _, true in found.true_positive_rates] == pytest.approx(rates, rel=5e-4)


def test_mu_does_not_contradict_epsilon():
    """From mu follows an epsilon, at 1.01 delta; it must not be smaller than the one that was computed."""
    events = [steps(0.017, 1.0, 600), release(20.0)]
    bounds = membership_bounds(events, DELTA)
    epsilon = max(curve.epsilon(1.01 * DELTA) for curve in mixture_loss.loss_curves(compose(events).groups))
    mu = bounds.mu
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta + bounds.slack >= 1.01 * DELTA * (1 - 1e-6)


def test_a_coarse_grid_errs_upwards(monkeypatch):
    fine = membership_bounds([steps(0.1, 1.0, 100)], DELTA)
    monkeypatch.setattr(mixture_loss, "_MOST_CELLS", 300)
    monkeypatch.setattr(mixture_loss, "_LEAST_CELLS", 300)
    mixture_loss.loss_curves.cache_clear()
    coarse = membership_bounds([steps(0.1, 1.0, 100)], DELTA)
    mixture_loss.loss_curves.cache_clear()
    assert coarse.mu > fine.mu
    for (_, first), (_, second) in zip(coarse.true_positive_rates, fine.true_positive_rates, strict=True):
        assert first > second


def test_rounding_losses_down_would_be_noticed(monkeypatch):
    monkeypatch.setattr(mixture_loss, "_split", lambda mass, *_: np.zeros_like(mass))
    mixture_loss.loss_curves.cache_clear()
    found = membership_bounds([release(1.0)], 1e-7)
    mixture_loss.loss_curves.cache_clear()
    assert found.mu < 1 - 1e-6
    assert found.true_positive_rates[0][1] < gaussian_rate(1.0, 0.01)


def test_more_noise_or_fewer_steps_mean_less():
    base, noisier, shorter = (membership_bounds([steps(0.05, *x)], DELTA) for x in ((1.0, 200), (1.1, 200), (1.0, 150)))
    assert noisier.mu < base.mu
    assert shorter.mu < base.mu
    assert noisier.true_positive_rates < base.true_positive_rates


def test_no_protection_and_nothing():
    lost = membership_bounds([steps(0.1, 1.0, 10), UnprotectedRelease(label="r", reason="as published")], DELTA)
    assert (lost.mu, lost.true_positive_rates) == (math.inf, ((0.01, 1.0), (0.001, 1.0)))
    nothing = membership_bounds([], DELTA)
    assert (nothing.mu, nothing.true_positive_rates) == (0, ((0.01, 0.01), (0.001, 0.001)))


@pytest.mark.parametrize("rate", [0, 1, -1, 2, math.nan])
def test_a_wrong_rate(rate):
    with pytest.raises(InvalidInputError, match="false positive rate"):
        membership_bounds([release(1.0)], DELTA, (rate,))


def test_an_event_of_another_kind_is_refused():
    with pytest.raises(InvalidInputError, match="the trade-off curve of object is not known here"):
        membership_bounds([release(1.0), object()], DELTA)
