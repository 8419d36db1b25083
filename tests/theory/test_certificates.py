"""Certificates: known values, order of the rules, soundness on a half-space, and the printed equation's error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from securesgd.errors import InvalidInputError
from securesgd.theory import (
    RULES,
    as_published_radius,
    certified_radius,
    epsilon_from,
    noise_multiplier,
    whitened_radius,
)

P = np.array([0.6, 0.8, 0.9, 0.99, 0.999, 0.9995])


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        ("classic", [0.059, 0.235, 0.390, 0.555, 0.569, 0.570]),
        ("extended", [0.062, 0.241, 0.390, 0.741, 0.978, 1.038]),
        ("analytic", [0.251, 0.771, 1.049, 1.318, 1.420, 1.454]),
        ("tight", [0.253, 0.842, 1.282, 2.326, 3.090, 3.291]),
    ],
)
def test_known_values(rule, known):
    assert whitened_radius(P, 1 - P, rule) == pytest.approx(known, abs=5.1e-4)


@given(p=st.floats(0.02, 0.99999), share=st.floats(1e-6, 1))
def test_rules_are_ordered_and_monotone(p, share):
    q = share * min(1 - p, p)
    radii = {rule: whitened_radius(p, q, rule) for rule in RULES}
    slack = 1 + 1e-6  # the search over epsilon stops at a grid point
    assert 0 <= radii["extended"] <= radii["analytic"] * slack
    assert radii["analytic"] <= radii["tight"] * slack + 1e-13  # tight gives up 1e-14 for the rounding of Φ⁻¹
    assert 0 <= radii["classic"] <= radii["analytic"] * slack
    for rule in RULES:
        assert whitened_radius(p * 0.9, q, rule) <= radii[rule] * slack
        assert whitened_radius(p, min(1, q * 1.1 + 0.01), rule) <= radii[rule] * slack


@given(distance=st.floats(0.01, 4.5), sigma=st.floats(0.05, 5), delta=st.sampled_from([None, 1e-4, 0.05]))
def test_half_space_classifier_is_never_over_certified(distance, sigma, delta):
    """sign(w·x + b) + N(0, σ²): the smoothed prediction flips exactly at the distance to the plane."""
    p, q = norm.cdf(distance / sigma) - 2**-52, norm.sf(distance / sigma)  # a double near 1 may be rounded up
    for rule in RULES:
        d = None if rule == "tight" else delta
        assert certified_radius(p, q, sigma=sigma, sensitivity=1, rule=rule, delta=d) <= distance * (1 + 1e-9)
    if 0.51 < p < 0.9999:
        assert certified_radius(p, q, sigma=sigma, sensitivity=1) == pytest.approx(distance, rel=1e-6)


@given(p=st.floats(0.55, 0.9999), rule=st.sampled_from(["classic", "extended", "analytic"]))
def test_search_over_epsilon_beats_a_dense_scan(p, rule):
    epsilon = np.linspace(1e-3, min(0.5 * np.log(p / (1 - p)), 1 if rule == "classic" else 99), 2000)
    delta = (p - np.exp(2 * epsilon) * (1 - p)) / (1 + np.exp(epsilon))
    usable = delta > 0
    scan = np.max(1 / noise_multiplier(epsilon[usable], delta[usable], rule), initial=0)
    assert whitened_radius(p, 1 - p, rule) >= scan * (1 - 1e-3)


def test_a_fixed_delta_satisfies_the_condition_and_never_beats_the_search():
    for rule in ("classic", "extended", "analytic"):
        for delta in (1e-5, 0.05, 0.2):
            fixed = whitened_radius(P, 1 - P, rule, delta)
            assert (fixed <= whitened_radius(P, 1 - P, rule) * (1 + 1e-3)).all()
            certified = fixed > 0
            # From 1/c back to epsilon: the condition p > e^{2ε} q + (1 + e^ε) δ must hold there.
            epsilon = epsilon_from(1 / fixed[certified], delta, rule)
            p = P[certified]
            assert (p >= np.exp(2 * epsilon) * (1 - p) + (1 + np.exp(epsilon)) * delta - 1e-9).all()
            assert certified.sum() >= (2 if delta < 0.2 else 1)


def test_printed_equation_overstates_the_radius():
    """Eq. RobustCon4 divides by epsilon twice: beyond epsilon = 1 it exceeds the exact radius of a half-space."""
    p = 0.999
    exact = norm.ppf(p)
    assert as_published_radius(p, 1 - p) > exact
    assert whitened_radius(p, 1 - p, "extended") < exact
    # At one epsilon > 1 the ratio is that epsilon: the second division.
    delta = 1e-3
    epsilon = np.log(2 * (p - delta) / (delta + np.sqrt(delta**2 + 4 * (1 - p) * (p - delta))))
    assert epsilon > 1
    ratio = as_published_radius(p, 1 - p, delta) / whitened_radius(p, 1 - p, "extended", delta)
    assert ratio == pytest.approx(epsilon, rel=1e-6)


def test_nothing_is_certified_without_a_margin():
    for rule in RULES:
        assert whitened_radius([0.5, 0.4, 0.0], [0.5, 0.6, 0.0], rule).tolist() == [0, 0, 0]
    for rule in RULES:  # rounding can turn a bound into 1 or 0; that must not certify everything
        assert 0 < whitened_radius(1, 0, rule) < 8.2


def test_every_parameter_changes_the_radius():
    base = certified_radius(0.9, 0.1, sigma=1, sensitivity=2)
    assert certified_radius(0.9, 0.1, sigma=2, sensitivity=2) == pytest.approx(2 * base)
    assert certified_radius(0.9, 0.1, sigma=1, sensitivity=4) == pytest.approx(base / 2)
    assert certified_radius(0.8, 0.1, sigma=1, sensitivity=2) < base
    assert certified_radius(0.9, 0.05, sigma=1, sensitivity=2) > base
    assert whitened_radius(0.9, 0.1, "analytic", 0.05) < whitened_radius(0.9, 0.1, "analytic")


def test_vectorised_over_examples():
    p = np.linspace(0.3, 0.999, 60).reshape(3, 20)
    for rule in RULES:
        together = whitened_radius(p, 0.2, rule)
        assert together.shape == (3, 20)
        assert together[1, 7] == pytest.approx(whitened_radius(p[1, 7], 0.2, rule), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: whitened_radius(1.2, 0.1), r"p is 1.2; valid: a number in \[0, 1\]"),
        (lambda: whitened_radius(0.9, np.nan), "q is nan; valid: a"),
        (lambda: whitened_radius(0.9, 0.1, "tigt"), "did you mean 'tight'"),
        (lambda: whitened_radius(0.9, 0.1, "tight", 0.1), "the tight rule has no delta"),
        (lambda: whitened_radius(0.9, 0.1, "classic", 1.0), r"delta is .*; valid: a number in \(0, 1\)"),
        (lambda: whitened_radius([0.9, 0.8], [0.1, 0.1, 0.1]), "shapes do not fit"),
        (lambda: certified_radius(0.9, 0.1, sigma=0, sensitivity=1), "sigma is .*; valid: a finite number > 0"),
        (lambda: certified_radius(0.9, 0.1, sigma=1, sensitivity=-1), "sensitivity is .*; valid: a finite number > 0"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_tiny_margins_are_not_rounded_up():
    """p − e^{2ε} q cancels when p and q almost agree; what is lost must not turn up as radius."""
    for p, q in ((0.44557087505470716, 0.4455708750547071), (0.5 + 1e-12, 0.5), (0.3 + 1e-8, 0.3), (0.9, 0.9 - 1e-15)):
        truth = (p - q) / (2 * norm.pdf(norm.ppf(q)))  # the tight radius to first order
        for rule in RULES:
            assert whitened_radius(p, q, rule) <= truth * (1 + 1e-6)
    p, q, delta = 0.4340374467123459, 0.29484738600302646, 0.06959503012165018
    assert whitened_radius(p, q, "extended", delta) <= 3.2002386e-10
