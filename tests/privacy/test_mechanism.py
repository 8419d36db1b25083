"""HGM as a mechanism of its own: the right noise, fresh every time, and privacy measured from outside."""

import numpy as np
import pytest
from scipy.stats import chi2

from securesgd import HeterogeneousGaussianMechanism as Mechanism
from securesgd import InvalidInputError
from securesgd.theory import delta_from, sensitivity

R = np.array([0.1, 0.2, 0.7])


def released(mechanism, times, seed=0):
    generator = np.random.default_rng(seed)
    return np.array([mechanism.release(np.zeros(mechanism.std.size), generator).values for _ in range(times)])


def accepts(sample, std):
    """Two-sided chi-square test of each component's variance at 1e-7."""
    n = len(sample)
    statistic = (sample**2).sum(axis=0) / std**2
    return np.all((chi2.ppf(1e-7, n) < statistic) & (statistic < chi2.ppf(1 - 1e-7, n)))


def test_noise_is_heterogeneous_fresh_and_of_the_stated_size():
    mechanism = Mechanism(epsilon=2, delta=1e-5, sensitivity=1.5, r=np.tile(R / 100, 100))
    sample = released(mechanism, 200).reshape(20_000, 3)
    mechanism = Mechanism(epsilon=2, delta=1e-5, sensitivity=1.5, r=R)
    assert accepts(sample, mechanism.std)
    assert not accepts(sample, mechanism.std / 2)
    assert not accepts(sample, mechanism.std * 1.05)
    assert not accepts(sample, np.full(3, mechanism.sigma))
    lag = np.corrcoef(sample[:-1].ravel(), sample[1:].ravel())[0, 1]
    assert abs(lag) < 5 / np.sqrt(sample.size)
    assert mechanism.std == pytest.approx(mechanism.sigma * np.sqrt(3 * R))


@pytest.mark.parametrize("name", ["analytic", "extended"])
def test_privacy_of_the_whitened_worst_case(name):
    """For the worst neighbours the privacy is that of one Gaussian at distance Δ/σ: computed, not simulated."""
    bounds = np.array([1.0, 0.5, 2.0])
    mechanism = Mechanism.for_components(bounds, R, epsilon=1.3, delta=1e-6, mechanism=name)
    whitened = np.linalg.norm(bounds / mechanism.std)  # distance between neighbours in units of noise
    assert delta_from(1 / whitened, 1.3) <= 1e-6 * (1 + 1e-9)
    assert delta_from(0.5 / whitened, 1.3) > 1e-6  # half the noise would not do


def test_l2_sensitivity_uses_the_quietest_component():
    mechanism = Mechanism.for_l2_sensitivity(2.0, R, epsilon=1, delta=1e-5)
    assert mechanism.sensitivity == pytest.approx(2 / np.sqrt(3 * 0.1))
    for direction in np.eye(3):
        assert np.linalg.norm(2 * direction / np.sqrt(3 * R)) <= mechanism.sensitivity


def test_linear_query():
    matrix = np.random.default_rng(0).standard_normal((3, 4))
    mechanism = Mechanism.for_linear_query(matrix, "linf", R, epsilon=1, delta=1e-5, distance=0.1)
    assert mechanism.sensitivity == pytest.approx(0.1 * sensitivity(matrix, "linf", R).upper)
    release = mechanism.release(matrix @ np.ones(4), np.random.default_rng(1))
    assert release.values.shape == (3,)
    assert "(1, 1e-05)-differentially private" in release.statement
    assert "0.1 apart in linf" in release.statement
    assert (release.epsilon, release.delta) == (1.0, 1e-5)


def test_seeded_and_shaped():
    mechanism = Mechanism(epsilon=1, delta=1e-5, sensitivity=1, r=np.full(4, 0.25))
    first = mechanism.release(np.zeros((2, 2)), np.random.default_rng(7))
    again = mechanism.release(np.zeros((2, 2)), np.random.default_rng(7))
    assert first.values.shape == first.std.shape == (2, 2)
    assert np.array_equal(first.values, again.values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Mechanism(epsilon=0, delta=1e-5, sensitivity=1, r=R, mechanism="extended"),
            "epsilon is 0; valid: a finite number > 0",
        ),
        (
            lambda: Mechanism(epsilon=2, delta=1e-5, sensitivity=1, r=R, mechanism="classic"),
            "epsilon <= 1 only",
        ),
        (lambda: Mechanism(epsilon=2, delta=0, sensitivity=1, r=R), r"delta is .*; valid: a number in \(0, 1\)"),
        (lambda: Mechanism(epsilon=2, delta=0.1, sensitivity=0, r=R), "sensitivity is .*; valid: a finite number > 0"),
        (lambda: Mechanism(epsilon=2, delta=0.1, sensitivity=1, r=[1, 0]), "every r_k must be > 0"),
        (lambda: Mechanism.for_components([1, 2], R, epsilon=1, delta=0.1), "one entry per component"),
        (
            lambda: Mechanism(epsilon=2, delta=0.1, sensitivity=1, r=R).release([0, 0], np.random.default_rng()),
            "values must have 3 components",
        ),
        (
            lambda: Mechanism(epsilon=2, delta=0.1, sensitivity=1, r=R).release([0, 0, 0], 7),
            "generator must be",
        ),
        (
            lambda: Mechanism(epsilon=2, delta=0.1, sensitivity=1, r=R).release(
                [0, np.nan, 0], np.random.default_rng()
            ),
            "values is nan; valid: a",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_mechanism_keeps_its_own_r_and_small_bounds():
    r = np.array([0.5, 0.5])
    mechanism = Mechanism(epsilon=1, delta=1e-5, sensitivity=1, r=r)
    r[:] = [0.999999, 0.000001]
    assert mechanism.std == pytest.approx(np.full(2, mechanism.sigma))
    many = 10_001
    small = Mechanism.for_components(np.full(many, 1e-170), np.full(many, 1 / many), epsilon=1, delta=1e-5)
    assert small.sensitivity == pytest.approx(1e-170 * np.sqrt(many), rel=1e-9)


def test_what_is_released_lies_on_a_public_grid():
    """The grid depends on the noise alone, so the lowest bits of an answer are not in its release."""
    mechanism = Mechanism(epsilon=1, delta=1e-5, sensitivity=1, r=R)
    grid = 2.0 ** (np.floor(np.log2(mechanism.std)) - 32)
    for answer in ([0, 0, 0], [1 / 3, -2 / 7, 1e6 / 9], [1e-30, 5e-324, 1e-7]):
        steps = mechanism.release(answer).values / grid
        assert np.array_equal(steps, np.round(steps))
    assert not np.array_equal(mechanism.release([0, 0, 0]).values, mechanism.release([0, 0, 0]).values)


def test_a_given_generator_is_said_in_the_statement():
    mechanism = Mechanism(epsilon=1, delta=1e-5, sensitivity=1, r=R)
    assert "given generator" not in mechanism.release([0, 0, 0]).statement
    assert "given generator" in mechanism.release([0, 0, 0], np.random.default_rng(0)).statement
