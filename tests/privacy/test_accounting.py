"""Epsilon: known values, other accountants, the safe side, speed."""

import math
import time
import warnings

import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from opacus.accountants import RDPAccountant as OpacusRDPAccountant
from scipy.special import log_ndtr

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    dp_event,
    epsilon_spent,
    pld,
)
from securesgd.privacy.composition import Group
from securesgd.privacy.pld import pld_epsilon
from securesgd.privacy.rdp import rdp_epsilon

MNIST = 1024 / 60000


def steps(sampling_rate, noise_multiplier, count):
    return SampledGaussianSteps(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=count)


def gaussian(noise_multiplier):
    return GaussianRelease(noise_multiplier=noise_multiplier, label="r")


def exact_gaussian_delta(epsilon, noise_multiplier):
    """Balle and Wang 2018 (arXiv:1805.06530v2), Theorem 8."""
    c = noise_multiplier
    upper = math.exp(log_ndtr(1 / (2 * c) - epsilon * c))
    return upper - math.exp(epsilon + log_ndtr(-1 / (2 * c) - epsilon * c))


# MATH.md section 1: epsilon and its exact (analytic) noise multiplier at delta = 1e-5.
@pytest.mark.parametrize(
    ("epsilon", "noise_multiplier"),
    [(0.1, 30.7496), (0.5, 7.0318), (1, 3.7306), (2, 1.9938), (4, 1.0812), (8, 0.6002), (16, 0.3442)],
)
def test_one_gaussian_release_has_the_analytic_epsilon(epsilon, noise_multiplier):
    assert epsilon_spent([gaussian(noise_multiplier)], 1e-5) == pytest.approx(epsilon, rel=3e-4)


@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_composed_gaussians_are_never_below_the_exact_value_and_close_to_it(count):
    events = [steps(1.0, 2 * math.sqrt(count), count), gaussian(2.0)]  # together: multiplier sqrt(2)
    epsilon = epsilon_spent(events, 1e-5)
    assert exact_gaussian_delta(epsilon, math.sqrt(2)) <= 1e-5
    assert exact_gaussian_delta(epsilon - 1e-3, math.sqrt(2)) > 1e-5


@pytest.mark.parametrize(
    ("count", "delta"), [(10**4, 1e-3), (10**4, 1e-9), (10**5, 1e-10), (10**5, 2.5e-11), (10**4, 1e-14), (100, 1e-30)]
)
def test_fft_rounding_does_not_make_a_small_delta_optimistic(count, delta):
    # Steps without sampling, convolved one by one (epsilon_spent would merge them), have an exact answer. Without
    # the allowance the epsilon at (1e5, 2.5e-11) is too small: its true delta is 1.03 times the one asked for.
    epsilon = pld_epsilon([Group(1.0, math.sqrt(count), count)], delta)
    assert exact_gaussian_delta(epsilon, 1.0) <= delta


@pytest.mark.parametrize(
    ("rate", "noise", "count"), [(MNIST, 0.9, 700), (0.0025, 4.0, 5000), (0.2, 1.0, 50), (0.01, 0.7, 300)]
)
def test_agrees_with_dp_accounting_and_with_opacus(rate, noise, count):
    event, delta = steps(rate, noise, count), 1e-5
    tight, loose = epsilon_spent([event], delta, "pld"), epsilon_spent([event], delta, "rdp")
    direct = PLDAccountant(value_discretization_interval=1e-4).compose(dp_event(event)).get_epsilon(delta)
    # A finer grid than dp-accounting's default may be used: lower by the discretisation excess, never higher.
    assert direct - 5e-4 <= tight <= direct + 1e-6
    assert loose == pytest.approx(RdpAccountant().compose(dp_event(event)).get_epsilon(delta), rel=1e-12)

    theirs = OpacusRDPAccountant()
    prv = PRVAccountant()
    for accountant in (theirs, prv):
        accountant.history = [(noise, rate, count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert loose == pytest.approx(theirs.get_epsilon(delta), rel=1e-2)
        # Opacus' PRV returns its estimate plus its error bound of 0.01
        assert prv.get_epsilon(delta) - 0.01 == pytest.approx(tight, rel=1e-2)
    assert tight <= loose


def test_rdp_equals_opacus_at_equal_orders():
    orders = [2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64]
    theirs = OpacusRDPAccountant()
    theirs.history = [(1.1, 0.01, 1000)]
    groups = [Group(0.01, 1.1, 1000)]
    ours = rdp_epsilon(groups, 1e-5, orders)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5, alphas=orders), rel=1e-3)


def test_published_figures():
    # DP-CERT's MNIST setting, recomputed in FIELD.md 4.1: 2.58 at 1e-5 and 2.89 at 1e-6 by RDP.
    cert = [steps(512 / 60000, 1.23, 40 * 60000 // 512)]
    assert epsilon_spent(cert, 1e-5, "rdp") == pytest.approx(2.58, abs=0.01)
    assert epsilon_spent(cert, 1e-6, "rdp") == pytest.approx(2.89, abs=0.01)
    assert epsilon_spent(cert, 1e-5) < 2.58


def test_order_and_splitting_do_not_matter():
    one = [steps(0.01, 1.0, 300), gaussian(5.0), steps(0.02, 1.5, 10)]
    other = [steps(0.01, 1.0, 100), steps(0.02, 1.5, 10), steps(0.01, 1.0, 200), gaussian(5.0)]
    assert epsilon_spent(one, 1e-5) == epsilon_spent(other, 1e-5)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(rate=st.floats(1e-4, 0.05), noise=st.floats(0.8, 20), count=st.integers(1, 2000))
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_more_release_costs_more(accountant, rate, noise, count):
    def cost(*events):
        return epsilon_spent(events, 1e-5, accountant)

    base = cost(steps(rate, noise, count))
    slack = 1e-7 + base * 1e-7
    assert 0 <= base < math.inf
    assert cost(steps(rate, noise, count + 50)) >= base - slack
    assert cost(steps(rate, noise * 1.1, count)) <= base + slack
    assert cost(steps(min(1.0, rate * 1.1), noise, count)) >= base - slack
    assert cost(steps(rate, noise, count), gaussian(5.0)) >= base - slack
    assert epsilon_spent([steps(rate, noise, count)], 1e-4, accountant) <= base + slack


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("noise", [1e-300, 1e-160, 1e-9, 1e-5, 1e-3, 0.02, 0.05, 0.2, 1e3, 1e9, 1e300])
def test_extreme_noise_gives_a_number_on_the_safe_side(noise, accountant):
    for event in (gaussian(noise), steps(0.01, noise, 100)):
        epsilon = epsilon_spent([event], 1e-5, accountant)
        assert epsilon >= 0
        assert epsilon > 100 if noise <= 0.05 else epsilon < 200
    if noise <= 0.2:
        assert epsilon_spent([gaussian(noise)], 1e-5, accountant) >= 0.5 / max(noise, 1e-9) ** 2


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_no_noise_and_no_guarantee_are_infinite_and_nothing_is_free(accountant):
    assert epsilon_spent([], 1e-5, accountant) == 0
    assert epsilon_spent([gaussian(0)], 1e-5, accountant) == math.inf
    assert epsilon_spent([steps(0.1, 0, 1)], 1e-5, accountant) == math.inf
    unprotected = UnprotectedRelease(label="r", reason="as published")
    assert epsilon_spent([gaussian(1.0), unprotected], 1e-5, accountant) == math.inf


def test_a_numerical_failure_is_infinite_with_a_warning(monkeypatch):
    def fails(*_):
        raise OverflowError("too large")

    monkeypatch.setattr(pld, "_compose", fails)
    with pytest.warns(UserWarning, match="infinite"):
        assert epsilon_spent([steps(0.0123, 1.77, 3)], 1e-5) == math.inf


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (([gaussian(1)], 0), "delta is 0"),
        (([gaussian(1)], 1.0), "delta is 1.0"),
        (([gaussian(1)], float("nan")), "delta is nan"),
        (([gaussian(1)], 1e-5, "pdl"), "did you mean 'pld'"),
        ((["r"], 1e-5), "event is 'r'"),
    ],
)
def test_bad_input_is_one_line(arguments, shows):
    with pytest.raises(InvalidInputError) as caught:
        epsilon_spent(*arguments)
    assert shows in str(caught.value)
    assert "\n" not in str(caught.value)


def test_asking_while_training_is_cheap():
    epsilon_spent([steps(MNIST, 0.91, 1)], 1e-5)  # the single step's distribution is now kept
    start = time.perf_counter()
    for done in range(100, 600, 100):
        epsilon_spent([steps(MNIST, 0.91, done)], 1e-5)
    fresh = (time.perf_counter() - start) / 5
    start = time.perf_counter()
    epsilon_spent([steps(MNIST, 0.91, 500)], 1e-5)
    again = time.perf_counter() - start
    assert fresh < 1.5  # measured 0.2 s on two cores
    assert again < 0.01
