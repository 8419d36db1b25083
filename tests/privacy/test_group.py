"""Epsilon for a person with several examples, against integrals of the densities themselves."""

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, stats

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    epsilon_spent,
    group_epsilon,
    mixture_loss,
)
from securesgd.privacy.composition import compose
from securesgd.theory.gaussian import delta_from


def steps(rate, noise, count):
    return SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=count)


def release(noise):
    return GaussianRelease(noise_multiplier=noise, label="r")


def densities(rate, noise, examples, points):
    """The two densities of one step at some points, written down from the definition."""
    counts = np.arange(examples + 1)
    weights = stats.binom.pmf(counts, examples, rate)
    present = sum(w * stats.norm.pdf(points, count / noise) for w, count in zip(weights, counts, strict=True))
    return present, stats.norm.pdf(points)


def true_delta(rate, noise, examples, count, epsilon):
    """The larger divergence of both directions, by the midpoint rule in one or two dimensions."""
    cells = 200_000 if count == 1 else 3000
    low, high = -9.0, 9.0 + examples / noise
    width = (high - low) / cells
    points = low + (np.arange(cells) + 0.5) * width
    present, absent = densities(rate, noise, examples, points)
    if count == 2:
        present, absent = np.multiply.outer(present, present), np.multiply.outer(absent, absent)
    factor = math.exp(epsilon)
    gaps = (np.maximum(present - factor * absent, 0).sum(), np.maximum(absent - factor * present, 0).sum())
    return max(gaps) * width**count


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("rate", "noise", "examples"), [(0.1, 1.0, 2), (0.3, 1.5, 3), (0.02, 0.8, 5), (1.0, 4.0, 3)])
def test_one_and_two_steps_are_the_integral_of_the_densities(rate, noise, examples, count):
    delta = 1e-4
    epsilon = group_epsilon([steps(rate, noise, count)], delta, examples)
    found = true_delta(rate, noise, examples, count, epsilon)
    assert found <= delta * (1 + 1e-6), "the epsilon is too small"
    assert found >= delta * (1 - 2e-3), "the epsilon is needlessly large"


def convolved_epsilon(rate, noise, examples, count, delta):
    """Three and more steps by convolving the losses on a fine grid, each split between its neighbours; no bound."""
    width, points = 2e-4, np.linspace(-9, 9 + examples / noise, 300_001)
    present, absent = (values * (points[1] - points[0]) for values in densities(rate, noise, examples, points))
    losses = np.log(present) - np.log(absent)
    results = []
    for weights, signed in ((present, losses), (absent, -losses)):
        lowest = math.floor(signed.min() / width)
        place = signed / width - lowest
        cell, share = place.astype(int), place % 1
        masses = np.bincount(cell, weights * (1 - share), cell.max() + 2)
        masses += np.bincount(cell + 1, weights * share, cell.max() + 2)
        total = np.fft.irfft(np.fft.rfft(masses, count * len(masses)) ** count, count * len(masses))
        grid = (np.arange(len(total)) + count * lowest) * width

        def gap(epsilon, grid=grid, total=total):
            above = grid > epsilon
            return float(total[above] @ -np.expm1(epsilon - grid[above])) - delta

        results.append(optimize.brentq(gap, 0, grid[-1]))
    return max(results)


@pytest.mark.parametrize("examples", [1, 3])
def test_three_steps_are_the_convolution(examples):
    found = group_epsilon([steps(0.2, 1.0, 3)], 1e-5, examples)
    assert found == pytest.approx(convolved_epsilon(0.2, 1.0, examples, 3, 1e-5), rel=2e-5)


def test_dp_accounting_has_the_same_mixture():
    probabilities = stats.binom.pmf(np.arange(4), 3, 0.05)
    other = privacy_loss_distribution.from_mixture_gaussian_mechanism(1.0, [0, 1, 2, 3], probabilities, True, 5e-3)
    expected = other.self_compose(50).get_epsilon_for_delta(1e-5)
    assert group_epsilon([steps(0.05, 1.0, 50)], 1e-5, 3) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    "events",
    [[steps(0.017, 1.0, 600)], [steps(0.034, 1.2, 300), release(20.0)], [release(1.0)], [steps(1.0, 20.0, 100)]],
)
def test_one_example_costs_the_ordinary_epsilon(events):
    assert group_epsilon(events, 1e-5, 1) == pytest.approx(epsilon_spent(events, 1e-5), rel=1e-4)


@pytest.mark.parametrize("examples", [1, 2, 10])
def test_a_release_without_sampling_is_a_gaussian_of_so_many_times_the_sensitivity(examples):
    epsilon = group_epsilon([release(5.0), release(7.0), steps(1.0, 30.0, 9)], 1e-6, examples)
    noise = (1 / 25 + 1 / 49 + 9 / 900) ** -0.5 / examples
    assert delta_from(noise, epsilon) == pytest.approx(1e-6, rel=1e-3)
    assert delta_from(noise, epsilon) <= 1e-6


def test_more_examples_cost_more_and_more_than_their_number():
    """At one delta the cost grows faster than in proportion: k·epsilon would be a false claim."""
    events = [steps(0.0171, 0.9, 700), release(20.0)]
    found = [group_epsilon(events, 1e-5, examples) for examples in (1, 2, 3, 5, 10)]
    assert all(first < second for first, second in pairwise(found))
    assert all(value > k * found[0] for value, k in zip(found[1:], (2, 3, 5, 10), strict=True))


@pytest.mark.parametrize("examples", [2, 3])
def test_the_general_rule_for_groups_bounds_it(examples):
    """(epsilon, delta) for one is (k·epsilon, k·e^((k-1)·epsilon)·delta) for k, whatever the mechanism."""
    events, small = [steps(0.02, 2.0, 200)], 1e-9
    epsilon = epsilon_spent(events, small)
    delta = examples * math.exp((examples - 1) * epsilon) * small
    assert group_epsilon(events, delta, examples) <= examples * epsilon


@pytest.mark.parametrize("cells", [200, 1000])
def test_a_coarse_grid_errs_upwards(monkeypatch, cells):
    groups = compose([steps(0.1, 1.0, 100)]).groups
    fine = [curve.epsilon(1e-5) for curve in mixture_loss.loss_curves(groups, 2)]
    monkeypatch.setattr(mixture_loss, "_MOST_CELLS", cells)
    monkeypatch.setattr(mixture_loss, "_LEAST_CELLS", cells)
    monkeypatch.setattr(mixture_loss, "_EXCESS", 1.0)
    coarse = [curve.epsilon(1e-5) for curve in mixture_loss.loss_curves.__wrapped__(groups, 2)]
    assert all(first > second for first, second in zip(coarse, fine, strict=True))


def test_rounding_losses_down_would_be_noticed(monkeypatch):
    """The same integral as above says so: this is what makes the bounds bounds."""
    monkeypatch.setattr(mixture_loss, "_split", lambda mass, *_: np.zeros_like(mass))
    groups = compose([steps(0.1, 1.0, 1)]).groups
    epsilon = max(curve.epsilon(1e-4) for curve in mixture_loss.loss_curves.__wrapped__(groups, 2))
    assert true_delta(0.1, 1.0, 2, 1, epsilon) > 1e-4 * (1 + 1e-4)


def test_no_protection_costs_everything_and_nothing_nothing():
    lost = UnprotectedRelease(label="r", reason="as published")
    assert group_epsilon([steps(0.1, 1.0, 10), lost], 1e-5, 2) == math.inf
    assert group_epsilon([steps(0.1, 0.0, 10)], 1e-5, 2) == math.inf
    assert group_epsilon([], 1e-5, 2) == 0


@pytest.mark.parametrize("examples", [0, 101, 2.5, True, "2"])
def test_a_wrong_number_of_examples(examples):
    with pytest.raises(InvalidInputError, match="valid: an integer from 1 to 100"):
        group_epsilon([release(1.0)], 1e-5, examples)


def test_what_cannot_be_computed_says_so():
    class RepeatedSelection:
        pass

    with pytest.raises(InvalidInputError, match="RepeatedSelection is not known here"):
        group_epsilon([release(1.0), RepeatedSelection()], 1e-5, 2)
    with pytest.raises(InvalidInputError, match=r"valid: from .* what floating point resolves"):
        group_epsilon([steps(0.1, 1.0, 100)], 1e-15, 2)
    with pytest.raises(InvalidInputError, match="more noise"):
        group_epsilon([release(0.02)], 1e-5, 10)
