"""The losses on a grid are dp-accounting's own, epsilon is that of its slow path, calibration finds the same noise."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from securesgd.privacy import GaussianRelease, calibrated_noise_multiplier, pld
from securesgd.privacy.composition import Group
from securesgd.privacy.loss_distribution import TAIL_MASS, LossDistribution, step_distribution
from securesgd.privacy.pld import FFT_ERROR_BASE, FFT_ERROR_PER_STEP, pld_epsilon


def reference_step(rate, noise, interval):
    return reference.from_gaussian_mechanism(
        noise,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rate=st.one_of(st.floats(1e-6, 0.5), st.sampled_from([0.5, 0.999, 1.0])),
    noise=st.floats(0.3, 30),
    interval=st.sampled_from([1e-2, 1e-3]),
)
def test_one_step_has_the_masses_of_dp_accounting(rate, noise, interval):
    theirs = reference_step(rate, noise, interval)
    for removal, pmf in ((True, theirs._pmf_remove), (False, theirs._pmf_add)):
        pmf, ours = pmf.to_dense_pmf(), step_distribution(rate, noise, interval, removal=removal)
        assert ours.lowest == pmf._lower_loss
        assert ours.infinite == pmf._infinity_mass
        # a unit in the last place of a divergence, over the interval
        assert np.abs(ours.masses - pmf._probs).max() <= 4 * 2.0**-53 / interval


@settings(max_examples=12, deadline=None, derandomize=True)
@given(rate=st.floats(1e-4, 0.3), noise=st.floats(0.7, 10), count=st.integers(2, 3000), other=st.floats(2, 50))
def test_epsilon_is_that_of_the_slow_path_and_its_divergences_agree(rate, noise, count, other):
    groups, delta = (Group(rate, noise, count), Group(1.0, other, 1)), 1e-5
    size = pld.rdp_epsilon(groups, delta, pld.SIZING_ORDERS)
    interval = 10 * pld._interval(groups, size)
    total = reference_step(rate, noise, interval).self_compose(count).compose(reference_step(1.0, other, interval))
    reachable = delta - FFT_ERROR_BASE - FFT_ERROR_PER_STEP * (count + 1)
    slow, fast = total.get_epsilon_for_delta(reachable), pld_epsilon(groups, delta, coarser=10)
    assert fast == pytest.approx(slow, rel=1e-8, abs=1e-8)
    assert total.get_delta_for_epsilon(fast) <= delta
    assert pld_epsilon(groups, delta, coarser=10, removal_only=True) <= fast


def test_a_convolution_keeps_the_rounding_that_is_allowed_for():
    """In numbers of 64 bits more exact than float64, the delta of 20,000 steps is the same to 1e-16 per step."""
    from scipy import fft

    count, step = 20_000, step_distribution(0.002, 1.1, 1e-4, removal=True)
    ours = step.repeated(count)
    first = ours.lowest - count * step.lowest
    size = fft.next_fast_len(max(len(ours.masses), len(step.masses)))
    spectrum = fft.rfft(step.masses.astype(np.longdouble), size)
    power = np.ones_like(spectrum)
    for bit in f"{count:b}":
        power = power * power * (spectrum if bit == "1" else 1)
    exact = np.roll(fft.irfft(power, size), -first)[: len(ours.masses)].astype(float)
    for epsilon in (0.5, 1.0, 1.5):
        truth = LossDistribution(ours.interval, ours.lowest, exact, ours.infinite).curve().divergence(epsilon)
        assert abs(ours.curve().divergence(epsilon) - truth) <= 0.2 * FFT_ERROR_PER_STEP * count


def test_what_a_convolution_cuts_off_counts_as_infinite():
    step = step_distribution(0.01, 1.0, 1e-3, removal=True)
    ours = step.repeated(500)
    assert ours.infinite >= TAIL_MASS
    assert 1 - 1e-12 <= ours.masses.sum() + ours.infinite <= 1 + 1e-9
    both = ours.plus(step_distribution(1.0, 5.0, 1e-3, removal=True))
    assert both.infinite >= ours.infinite
    assert 1 - 1e-12 <= both.masses.sum() + both.infinite <= 1 + 1e-9  # masses below 0 were set to 0
    assert both.curve().epsilon(1e-5) > ours.curve().epsilon(1e-5)


@pytest.mark.parametrize(
    ("masses", "infinite", "delta", "expected"),
    [
        ([1.0], 0.0, 1e-5, 0.0),
        ([0.5, 0.5], 1e-4, 1e-5, math.inf),
        ([0.0, 0.0, 1.0], 0.0, 0.5, math.log(0.5 / math.exp(-2))),
        ([0.9, 0.0, 0.1], 0.0, 0.2, 0.0),
    ],
)
def test_epsilon_of_small_distributions(masses, infinite, delta, expected):
    loss = LossDistribution(1.0, 0, np.array(masses), infinite)
    assert loss.curve().epsilon(delta) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("epsilon", [-3.0, 0.0, 0.9, 1.0, 1.2, 1.75, 2.0, 5.0])
def test_the_divergence_is_the_sum_at_between_and_beyond_the_points_and_epsilon_its_inverse(epsilon):
    masses, losses = np.array([0.2, 0.5, 0.25]), np.array([1.0, 1.5, 2.0])
    curve = LossDistribution(0.5, 2, masses, 0.05).curve()
    truth = 0.05 + masses @ np.maximum(0, -np.expm1(epsilon - losses))
    assert curve.divergence(epsilon) == pytest.approx(truth, abs=1e-15)
    assert curve.epsilon(truth) == pytest.approx(min(2.0, max(0.0, epsilon)), abs=1e-14)


RECORDED = [  # by version 0.2.0, whose search made thirty of the slow evaluations
    (3.0, 250 / 60000, 4700, (), 0.7534323846338107),
    (3.0, 256 / 60000, 500, (), 0.6131191438641682),
    (3.0, 0.0170667, 700, (), 0.959025130059906),
    (8.0, 0.0170667, 700, (), 0.6541752480771531),
    (1.0, 0.01, 1000, (), 1.4146328111508137),
    (0.1, 0.01, 1000, (), 9.796880317027584),
    (3.0, 0.0170667, 700, (GaussianRelease(noise_multiplier=20.0, label="r"),), 0.9600748776594306),
    (0.4, 1 / 600, 10, (), 0.6451360849640912),
    (50.0, 0.1, 50, (), 0.35379557655698546),
    (500.0, 0.3, 50, (), 0.17013755875256287),
    (0.001, 0.01, 100, (), 172.9371095858814),
]


@pytest.mark.parametrize(("epsilon", "rate", "steps", "extra", "noise"), RECORDED)
def test_calibration_finds_the_same_number_as_ever_in_few_evaluations(epsilon, rate, steps, extra, noise, monkeypatch):
    """Seeded runs depend on every bit of it."""
    evaluations, real = [], pld._compose
    monkeypatch.setattr(pld, "_compose", lambda *args: evaluations.append(args) or real(*args))
    assert calibrated_noise_multiplier(epsilon, 1e-5, rate, steps, extra_events=extra) == noise
    finest = min(interval for _, interval, _ in evaluations)
    assert sum(interval == finest and not removal_only for _, interval, removal_only in evaluations) <= 3
    assert len(evaluations) <= 16
