"""Calibration of the Gaussian mechanism: exact values, a 60-digit oracle, round trips, monotonicity, refusals."""

import time

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st

from securesgd.errors import InvalidInputError
from securesgd.theory import MECHANISMS, delta_from, epsilon_from, noise_multiplier

EPSILONS = (1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 2, 8, 30, 100, 1e3)
DELTAS = (1e-300, 1e-200, 1e-100, 1e-30, 1e-15, 1e-10, 1e-5, 1e-3, 0.05, 0.3, 0.49, 0.6, 0.9)

epsilons = st.floats(1e-4, 1e3)
deltas = st.floats(-300, -0.05).map(lambda x: 10**x)
multipliers = st.floats(-2, 5).map(lambda x: 10**x)


def exact_delta(c, epsilon):
    """Balle & Wang 2018, Theorem 8, with 60 digits."""
    c, epsilon = mp.mpf(c), mp.mpf(epsilon)
    return mp.ncdf(1 / (2 * c) - epsilon * c) - mp.exp(epsilon) * mp.ncdf(-1 / (2 * c) - epsilon * c)


def exact_multiplier(epsilon, delta, mechanism, start):
    epsilon, delta = mp.mpf(epsilon), mp.mpf(delta)
    if mechanism == "classic":
        return mp.sqrt(2 * mp.log(mp.mpf("1.25") / delta)) / epsilon
    if mechanism == "extended":
        s = mp.log(mp.sqrt(2 / mp.pi) / delta)
        terms = [(1 + mp.sqrt(1 + 2 * epsilon)) / (2 * epsilon)]
        if s >= 0:
            terms.append((mp.sqrt(s) + mp.sqrt(s + epsilon)) / (mp.sqrt(2) * epsilon))
        return max(terms)

    def excess(log_c):
        return mp.log(exact_delta(mp.exp(log_c), epsilon)) - mp.log(delta)

    root = mp.findroot(excess, mp.log(start), solver="secant", tol=1e-40, verify=False)
    assert abs(excess(root)) < mp.mpf("1e-30")
    return mp.exp(root)


@pytest.mark.parametrize(
    ("epsilon", "delta", "classic", "extended", "analytic"),
    [
        (0.1, 1e-5, 48.4481, 47.6174, 30.7496),
        (0.5, 1e-5, 9.6896, 9.6066, 7.0318),
        (1, 1e-5, 4.8448, 4.8542, 3.7306),
        (2, 1e-5, None, 2.4766, 1.9938),
        (4, 1e-5, None, 1.2851, 1.0812),
        (8, 1e-5, None, 0.6851, 0.6002),
        (16, 1e-5, None, 0.3793, 0.3442),
        (50, 1e-5, None, 0.1582, 0.1498),
        (1, 0.05, 2.5373, 2.5498, 1.3328),
        (4, 0.05, None, 0.7542, 0.5451),
    ],
)
def test_known_values(epsilon, delta, classic, extended, analytic):
    for mechanism, known in (("classic", classic), ("extended", extended), ("analytic", analytic)):
        if known is not None:
            assert noise_multiplier(epsilon, delta, mechanism) == pytest.approx(known, abs=5.1e-5)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_oracle_within_1e9_and_never_below(mechanism):
    with mp.workdps(60):
        for epsilon in EPSILONS:
            if mechanism == "classic" and epsilon > 1:
                continue
            for delta in DELTAS:
                c = noise_multiplier(epsilon, delta, mechanism)
                exact = exact_multiplier(epsilon, delta, mechanism, start=c)
                excess = (mp.mpf(c) - exact) / exact
                assert 0 <= excess <= 1e-9, (epsilon, delta, float(excess))


def test_inverse_questions_are_on_the_safe_side_of_the_oracle():
    with mp.workdps(60):
        for epsilon in EPSILONS:
            for c in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 300):
                exact = exact_delta(c, epsilon)
                if exact < mp.mpf("1e-290"):
                    continue
                ours = delta_from(c, epsilon)
                assert exact <= ours <= exact * (1 + mp.mpf("1e-9")), (epsilon, c)
                if ours < 1:
                    # ours is a hair above the exact delta, so its epsilon may be a hair below: ask at a delta below.
                    back = epsilon_from(c, float(exact) * (1 - 1e-11))
                    assert epsilon <= back <= epsilon + 1e-6 * max(epsilon, 1 / c**2), (epsilon, c)


def test_epsilon_zero_is_total_variation():
    assert noise_multiplier(0, 0.1) == pytest.approx(float(1 / (2 * mp.sqrt(2) * mp.erfinv(0.1))), rel=1e-10)
    assert epsilon_from(1e6, 0.1) == 0


@given(epsilon=epsilons, delta=deltas, mechanism=st.sampled_from(MECHANISMS))
def test_round_trip_epsilon(epsilon, delta, mechanism):
    if mechanism == "classic":
        epsilon = min(epsilon, 1.0)
    back = epsilon_from(noise_multiplier(epsilon, delta, mechanism), delta, mechanism)
    # c is rounded up by 1e-11 of δ, which near δ = 1 is up to 1e-8 of a small ε.
    assert back == pytest.approx(epsilon, rel=1e-6)


@given(c=multipliers, epsilon=st.floats(1e-3, 30), mechanism=st.sampled_from(MECHANISMS))
def test_round_trip_delta(c, epsilon, mechanism):
    epsilon = min(epsilon, 1.0) if mechanism == "classic" else epsilon
    try:
        delta = delta_from(c, epsilon, mechanism)
    except InvalidInputError:
        assert mechanism != "analytic"
        return
    if 1e-290 < delta < 0.999:
        assert noise_multiplier(epsilon, delta, mechanism) == pytest.approx(c, rel=1e-7)


@given(epsilon=epsilons, delta=deltas, factor=st.floats(1.001, 10), mechanism=st.sampled_from(MECHANISMS))
def test_monotone_in_every_argument(epsilon, delta, factor, mechanism):
    epsilon = min(epsilon, 0.1) if mechanism == "classic" else epsilon
    c = noise_multiplier(epsilon, delta, mechanism)
    assert noise_multiplier(epsilon * factor, delta, mechanism) < c
    assert noise_multiplier(epsilon, delta / factor, mechanism) >= c
    assert epsilon_from(c * factor, delta, mechanism) <= epsilon_from(c, delta, mechanism)
    assert delta_from(c * factor, epsilon, mechanism) <= delta_from(c, epsilon, mechanism)


def test_order_of_the_theorems():
    epsilon, delta = np.meshgrid(np.geomspace(1e-4, 1, 40), np.geomspace(1e-300, 0.99, 60))
    analytic = noise_multiplier(epsilon, delta)
    assert (noise_multiplier(epsilon, delta, "classic") >= analytic).all()
    assert (noise_multiplier(epsilon, delta, "extended") >= analytic).all()
    assert (noise_multiplier(epsilon * 1e3, delta, "extended") >= noise_multiplier(epsilon * 1e3, delta)).all()


def test_classic_beyond_one_is_refused_because_it_is_false():
    with pytest.raises(InvalidInputError, match=r"epsilon <= 1 only, got epsilon = 16"):
        noise_multiplier(16, 1e-5, "classic")
    for epsilon, delta in ((16, 1e-5), (8, 0.05)):
        formula = np.sqrt(2 * np.log(1.25 / delta)) / epsilon
        assert delta_from(formula, epsilon) > delta


def test_condition_one_binds_from_delta_048():
    """The paper drops it; without it the theorem's own proof fails, and at delta near 1 the claim itself."""
    epsilon, delta = 1.0, 0.6
    s = np.log(np.sqrt(2 / np.pi) / delta)
    printed = (np.sqrt(s) + np.sqrt(s + epsilon)) / (np.sqrt(2) * epsilon)
    assert noise_multiplier(epsilon, delta, "extended") > printed
    s = np.log(np.sqrt(2 / np.pi) / 0.48)
    printed = (np.sqrt(s) + np.sqrt(s + epsilon)) / (np.sqrt(2) * epsilon)
    assert noise_multiplier(epsilon, 0.48, "extended") == pytest.approx(printed, rel=1e-9)


def test_agrees_with_dp_accounting():
    for epsilon in (0.1, 1.0, 5.0):
        for delta in (1e-3, 1e-8):
            assert noise_multiplier(epsilon, delta) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)


def test_vectorised_equals_scalar_and_is_fast():
    rng = np.random.default_rng(1)
    epsilon, delta = 10 ** rng.uniform(-4, 3, 100_000), 10 ** rng.uniform(-300, -0.05, 100_000)
    started = time.perf_counter()
    c = noise_multiplier(epsilon, delta)
    assert time.perf_counter() - started < 3
    for i in range(0, 100_000, 9_973):
        assert c[i] == pytest.approx(noise_multiplier(epsilon[i], delta[i]), rel=1e-11)
    assert noise_multiplier([[1.0], [2.0]], [1e-5, 1e-6]).shape == (2, 2)
    assert isinstance(noise_multiplier(1, 1e-5), float)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_multiplier(0, 1e-5, "extended"), "epsilon is 0; valid: a finite number > 0"),
        (lambda: noise_multiplier(-1, 1e-5), "epsilon is -1; valid: a finite number >= 0"),
        (lambda: noise_multiplier(float("nan"), 1e-5), "epsilon is nan; valid: a"),
        (lambda: noise_multiplier(1, 0), r"delta is .*; valid: a number in \(0, 1\)"),
        (lambda: noise_multiplier(1, 1), r"delta is .*; valid: a number in \(0, 1\)"),
        (lambda: noise_multiplier([1, 2], [0.1, 0.2, 0.3]), "shapes do not fit"),
        (lambda: noise_multiplier("x", 0.1), "epsilon is 'x'; valid: a number"),
        (lambda: noise_multiplier(1, 0.1, "analitic"), "did you mean 'analytic'"),
        (lambda: epsilon_from(0, 1e-5), "noise_multiplier is .*; valid: a finite number > 0"),
        (lambda: epsilon_from(1, 1e-5, "classic"), "epsilon <= 1 only"),
        (lambda: delta_from(0.1, 1, "extended"), "extended proves nothing below"),
        (lambda: delta_from(0.1, 1, "classic"), "classic proves no delta"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_delta_that_underflows_is_not_zero(mechanism):
    assert delta_from(100, 1, mechanism) > 0
