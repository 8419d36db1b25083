"""Adaptive sampling: the decisions of all draws, with a tenth of them."""

import itertools

import numpy as np
import pytest
from scipy.special import ndtri

from securesgd.certificates.bounds import fixed_bounds, running_bounds, select_class
from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.sampling import StoppingRule, count_votes, look_schedule
from securesgd.certificates.votes import BLOCK

from .test_soundness import Multinomial


@pytest.mark.parametrize("most", [1, 31, 32, 33, 100, 10_000, 100_001])
def test_looks_are_whole_blocks_that_grow_and_end_with_the_last_draw(most):
    found = list(look_schedule(most))
    assert found[-1] == most
    assert all(look % BLOCK == 0 for look in found[:-1])
    assert all(a < b <= max(a + BLOCK, 1.25 * a) for a, b in itertools.pairwise(found))


def population(count, seed=0):
    """Vote probabilities of many examples with three classes: whitened radii from 0 to about 3."""
    generator = np.random.default_rng(seed)
    top = np.clip(0.5 + 0.5 * generator.beta(1.5, 0.4, count), 0, 1 - 1e-6)
    split = generator.random(count)
    return np.stack([top, (1 - top) * split, (1 - top) * (1 - split)], axis=1)


def certified(probabilities, settings, seed):
    generator = np.random.default_rng(seed)
    first = generator.multinomial(settings.selection_draws, probabilities).astype(float)
    selection = select_class(first, settings.selection_draws, settings.others, settings.draws, settings.failure_prob)
    votes = Multinomial(probabilities[0], len(probabilities), generator)
    votes.probabilities = probabilities
    return count_votes(votes, selection, StoppingRule(radius=settings.radius, tolerance=settings.tolerance), settings)


def radius_of(found):
    return np.where(found.p_lower > found.q_upper, (ndtri(found.p_lower) - ndtri(found.q_upper)) / 2, 0)


@pytest.mark.parametrize("radius", [0.3, 0.8, 1.3])
@pytest.mark.parametrize("others", ["rest", "auto"])
def test_a_tenth_of_the_draws_gives_the_same_decisions(radius, others):
    """As the same as two runs with all draws are: an example at the edge falls on either side by chance."""
    probabilities = population(2_000)
    everything = [
        radius_of(certified(probabilities, CertifySettings(others=others), seed)) >= radius for seed in (1, 2)
    ]
    asked = certified(probabilities, CertifySettings(others=others, radius=radius), 3)
    yes = asked.answer == "yes"
    assert (yes != everything[0]).mean() <= (everything[1] != everything[0]).mean() + 0.01
    assert abs(yes.mean() - everything[0].mean()) < 0.01
    assert (asked.draws.mean() + 100) * 10 < 10_100
    assert (radius_of(asked)[yes] >= radius * (1 - 1e-9)).all()
    assert asked.draws.max() <= 10_000
    assert set(asked.answer) == {"yes", "no", "open"}


def test_clear_cases_are_answered_at_once():
    clear = certified(np.array([[0.999999, 1e-6, 0.0], [0.4, 0.3, 0.3]] * 50), CertifySettings(radius=0.7), 0)
    assert (clear.answer == np.array(["yes", "no"] * 50)).all()
    assert clear.draws[::2].max() == BLOCK
    assert clear.draws[1::2].max() <= 8 * BLOCK


def test_no_means_that_no_number_of_draws_would_do():
    """Upper bounds are proven too: a no for an example whose true radius is larger is as rare as stated."""
    failure_prob = 0.05
    probabilities = np.tile([0.8, 0.2, 0.0], (2_000, 1))
    asked = certified(probabilities, CertifySettings(radius=float(ndtri(0.8)) * 0.999, failure_prob=failure_prob), 0)
    assert 0 < (asked.answer == "no").mean() <= failure_prob


@pytest.mark.parametrize("tolerance", [0.3, 0.15])
def test_tolerance_stops_when_the_radius_is_known(tolerance):
    probabilities = population(300)
    found = certified(probabilities, CertifySettings(tolerance=tolerance, draws=20_000, others="rest"), 0)
    stopped = found.draws < 20_000
    exact = np.maximum(ndtri(probabilities[:, 0]), 0)
    assert stopped.any()
    assert (radius_of(found) <= exact).all()
    assert (exact - radius_of(found))[stopped].max() <= tolerance
    tighter = certified(probabilities, CertifySettings(tolerance=tolerance / 2, draws=20_000, others="rest"), 0)
    assert found.draws.mean() < tighter.draws.mean()


def test_anytime_bounds_contain_the_fixed_ones_shares():
    totals = np.array([[70.0, 20.0, 10.0], [400.0, 350.0, 250.0]])
    for others in ("rest", "each"):
        for row in totals:
            draws = int(row.sum())
            selection = select_class(row[None] / draws * 100, 100, others, draws, 0.01)
            running, once = (
                running_bounds(row[None], draws, selection, 0.01),
                fixed_bounds(row[None], draws, selection, 0.01),
            )
            p, q = selection.shares(row[None], draws)
            assert running.p_lower < once.p_lower < p < running.p_upper
            assert running.q_lower < q < once.q_upper < running.q_upper + 0.02


def test_one_network_from_start_to_end(smoothed_digits, digits):
    """On a real network: the answers of the question are those of all draws, but for examples at the edge."""
    inputs = digits.test_inputs[:60]
    everything = certify(smoothed_digits, inputs, CertifySettings(norm="l2", draws=4_000, seed=0))
    for radius in (0.1, 0.25):
        asked = certify(smoothed_digits, inputs, CertifySettings(norm="l2", draws=4_000, radius=radius, seed=0))
        agree = (asked.answer == "yes") == (everything.radius["tight"] >= radius)
        assert agree.mean() >= 0.95
        assert (asked.radius["tight"][asked.answer == "yes"] >= radius).all()
        assert (asked.radius["tight"][asked.answer != "yes"] < radius).all()
        assert asked.draws.mean() < 1_500
