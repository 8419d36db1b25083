"""Gaussian mechanism: noise multiplier, epsilon and delta, each from the other two.

A query with l2 sensitivity Δ plus N(0, σ²) noise depends on (σ, Δ) only through the noise multiplier c = σ/Δ.
Three theorems say when it is (ε, δ)-differentially private. All three read "the argument a = 1/(2c) − εc is small
enough", so one change of variables serves them all:

    c(a, ε) = (√(a² + 2ε) − a) / (2ε) = 1 / (a + √(a² + 2ε))

=========  =====================================================================================  ============
theorem    largest admissible a                                                                   valid for
=========  =====================================================================================  ============
classic    (own formula) c = √(2 ln(1.25/δ)) / ε                                                  0 < ε <= 1
extended   −max(1, √(2 ln(√(2/π)/δ)))                                                             ε > 0
analytic   the root of Φ(a) − e^ε Φ(−√(a² + 2ε)) = δ                                              ε >= 0, exact
=========  =====================================================================================  ============

Guarantee: every returned number is on the safe side of the exact one — noise multipliers, epsilons and deltas are
never below it — and within 1e-9 of it (relative) for ε in [1e-4, 1e3] and δ in [1e-300, 0.9].

References: Dwork & Roth 2014, Theorem A.1 (classic); Phan et al. 2019 (HGM), Theorems 2 and 3 with Condition 1 of
the appendix, which the statement of the theorem drops (extended); Balle & Wang 2018, arXiv:1805.06530v2, Theorem 8
(analytic).
"""

__all__ = ["MECHANISMS", "delta_from", "epsilon_from", "noise_multiplier"]

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, log_ndtr, ndtr, ndtri, ndtri_exp

from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import Array, broadcast, like_input, nonnegative_array, open_probability_array, positive_array

Mechanism = Literal["classic", "extended", "analytic"]
MECHANISMS: tuple[str, ...] = get_args(Mechanism)

_ULP = float(np.finfo(np.float64).eps)
_TINY = float(np.nextafter(0, 1))  # a delta that underflows is small, not zero: that would claim pure DP
# Relative error of log δ(a) below: a handful of roundings, plus 1 − xR(x) >= 1/x² with x <= 40 loses three digits.
_LOG_DELTA_ERROR = 4e-12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def noise_multiplier(epsilon: ArrayLike, delta: ArrayLike, mechanism: Mechanism = "analytic") -> Any:
    """Return c = σ/Δ that makes the Gaussian mechanism (epsilon, delta)-DP; arrays broadcast.

    Guarantee: adding N(0, (cΔ)²) to each component of a query of l2 sensitivity Δ is (epsilon, delta)-DP.
    Raises: InvalidInputError outside the theorem's premises (classic: 0 < epsilon <= 1; extended: epsilon > 0;
    analytic: epsilon >= 0; all: 0 < delta < 1).
    """
    _check_mechanism(mechanism)
    eps, dlt = broadcast(
        epsilon=(nonnegative_array if mechanism == "analytic" else positive_array)("epsilon", epsilon),
        delta=open_probability_array("delta", delta),
    )
    if mechanism == "classic":
        _require_classic_epsilon(eps)
        return like_input(_up(np.sqrt(2 * (np.log(1.25) - np.log(dlt))) / eps))
    a = -_extended_tail(dlt) if mechanism == "extended" else _analytic_argument(eps, dlt)
    b = np.hypot(a, np.sqrt(2 * eps))
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(a < 0, (b - a) / (2 * eps), 1 / (a + b))
    return like_input(_up(c))


def epsilon_from(noise_multiplier: ArrayLike, delta: ArrayLike, mechanism: Mechanism = "analytic") -> Any:
    """Return the smallest epsilon the theorem proves for this noise multiplier and delta.

    Raises: InvalidInputError if `classic` would need epsilon > 1.
    """
    _check_mechanism(mechanism)
    c, dlt = broadcast(
        noise_multiplier=positive_array("noise_multiplier", noise_multiplier),
        delta=open_probability_array("delta", delta),
    )
    if mechanism == "classic":
        eps = np.sqrt(2 * (np.log(1.25) - np.log(dlt))) / c
        _require_classic_epsilon(eps)
        return like_input(np.minimum(_up(eps), 1.0))
    with np.errstate(over="ignore"):
        h = 1 / c
        a = -_extended_tail(dlt) if mechanism == "extended" else _analytic_argument_at(h, dlt)
        rounding = 4 * _ULP * (h / 2 + np.abs(a)) * h
        eps = (h / 2 - a) * h + np.where(np.isfinite(rounding), rounding, 0)
    if mechanism == "analytic":
        # δ(ε = 0) = 2Φ(h/2) − 1 may already be small enough, and then no epsilon is spent.
        free = _up(_log_delta(h / 2, h / 2, h)) <= np.log(dlt)
        eps = np.where(free, 0.0, eps)
    return like_input(np.maximum(eps, 0))


def delta_from(noise_multiplier: ArrayLike, epsilon: ArrayLike, mechanism: Mechanism = "analytic") -> Any:
    """Return the smallest delta the theorem proves for this noise multiplier and epsilon.

    Raises: InvalidInputError where the theorem proves no delta < 1 (classic, extended: too little noise).
    """
    _check_mechanism(mechanism)
    c, eps = broadcast(
        noise_multiplier=positive_array("noise_multiplier", noise_multiplier),
        epsilon=(nonnegative_array if mechanism == "analytic" else positive_array)("epsilon", epsilon),
    )
    if mechanism == "classic":
        _require_classic_epsilon(eps)
        dlt = 1.25 * np.exp(-((c * eps) ** 2) / 2 * (1 - 4 * _ULP))
        _require(dlt < 1, c, "classic proves no delta < 1 below noise_multiplier = 0.668 / epsilon")
        return like_input(_up(dlt) + _TINY)
    with np.errstate(over="ignore"):
        h = 1 / c
        # δ grows with a, so an argument rounded up gives a delta on the safe side.
        a = h / 2 - eps * c + 4 * _ULP * (h / 2 + eps * c)
    if mechanism == "extended":
        _require(a <= -1, c, "extended proves nothing below noise_multiplier = (1 + √(1 + 2ε)) / (2ε)")
        return like_input(_up(np.sqrt(2 / np.pi) * np.exp(-(a**2) / 2)) + _TINY)
    b = np.hypot(a, np.sqrt(2 * eps))
    log_delta = _log_delta(a, b, np.where(a < 0, 2 * eps / (b - np.minimum(a, 0) + 1e-300), a + b))
    return like_input(np.minimum(np.exp(log_delta) * (1 + _LOG_DELTA_ERROR) + _TINY, 1.0))


def _analytic_argument(eps: Array, dlt: Array) -> Array:
    """Return a with Φ(a) − e^ε Φ(−√(a² + 2ε)) just below δ: the slice of fixed ε."""

    def log_delta_and_slope(a: Array) -> tuple[Array, Array]:
        b = np.hypot(a, np.sqrt(2 * eps))
        h = np.where(a < 0, 2 * eps / (b + np.abs(a) + 1e-300), a + b)
        log_delta = _log_delta(a, b, h)
        # dδ/da = φ(a)·h/b
        return log_delta, np.exp(_log_phi(a) + np.log(h + 1e-300) - np.log(b + 1e-300) - log_delta)

    return _increasing_root(log_delta_and_slope, ndtri_exp(np.log(dlt)), -ndtri((1 - dlt) / 2), dlt)


def _analytic_argument_at(h: Array, dlt: Array) -> Array:
    """Return a with δ just below `dlt` at noise multiplier 1/h: the slice of fixed c, on which b = h − a."""

    def log_delta_and_slope(a: Array) -> tuple[Array, Array]:
        log_delta = _log_delta(a, h - a, h)
        # dδ/da = h·φ(a)·R(b)
        return log_delta, np.exp(_log_phi(a) + np.log(h * _mills(h - a) + 1e-300) - log_delta)

    low = ndtri_exp(np.log(dlt))
    return _increasing_root(log_delta_and_slope, np.minimum(low, h / 2), h / 2, dlt)


def _log_delta(a: Array, b: Array, h: Array) -> Array:
    """Return log(Φ(a) − φ(a)·R(b)), R the Mills ratio, for b = h − a >= |a|; e^ε is absorbed by φ(a) = e^ε φ(b).

    A short interval h is taken as φ(a) ∫ (1 − xR(x)) dx over [−a, b]: every term is positive, so nothing cancels.
    """
    shape = np.shape(a)
    a, b, h = np.ravel(a), np.ravel(b), np.ravel(h)
    log_delta = log_ndtr(a)  # an upper bound for every b, and equal to it in double precision beyond a = 30
    short, left = h < 1, a <= 0
    by_integral, by_mills, by_cdf = short & (a <= 30), ~short & left, ~short & ~left & (a <= 30)
    with np.errstate(divide="ignore"):
        x = -a[by_integral, None] + h[by_integral, None] * (1 + _NODES) / 2
        integral = h[by_integral] / 2 * ((1 - x * _mills(x)) @ _WEIGHTS)
        log_delta[by_integral] = _log_phi(a[by_integral]) + np.log(integral)
    difference = _mills(-a[by_mills]) - _mills(b[by_mills])
    log_delta[by_mills] = _log_phi(a[by_mills]) + np.log(difference)
    log_delta[by_cdf] = np.log(ndtr(a[by_cdf]) - np.exp(_log_phi(a[by_cdf])) * _mills(b[by_cdf]))
    return log_delta.reshape(shape)


def _mills(x: Array) -> Array:
    """Return R(x) = Φ(−x)/φ(x)."""
    return np.asarray(np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)))


def _log_phi(x: Array) -> Array:
    return -(x**2) / 2 - 0.5 * np.log(2 * np.pi)


def _increasing_root(
    log_delta_and_slope: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, dlt: Array
) -> Array:
    """Return a with log δ(a) in [log δ − 2·tolerance, log δ − tolerance]: Newton inside a bracket, all entries at once.

    log δ is concave in a, so a Newton step from anywhere lands on the safe side of the root.
    """
    target = np.log(dlt) - _LOG_DELTA_ERROR
    low = low - 1e-9 * (1 + np.abs(low))
    a = low
    for _ in range(200):
        value, slope = log_delta_and_slope(a)
        below = value <= target
        low, high = np.where(below, a, low), np.where(below, high, a)
        done = below & (value >= target - _LOG_DELTA_ERROR)
        if np.all(done | (high - low <= 2 * _ULP * np.abs(low))):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            step = a + (target - 0.5 * _LOG_DELTA_ERROR - value) / slope
        step = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        a = np.where(done, a, step)
    return low


def _extended_tail(dlt: Array) -> Array:
    """Return max(1, √(2s)) with s = ln(√(2/π)/δ): Conditions 1 and 2 of the appendix in one number."""
    s = 0.5 * np.log(2 / np.pi) - np.log(dlt)
    return np.asarray(np.maximum(1.0, np.sqrt(2 * np.maximum(s, 0.0))))


def _up(x: Array) -> Array:
    """Return x raised by the rounding errors of the formula that made it."""
    return x + 8 * _ULP * np.abs(x)


def _require(good: Any, value: Array, reason: str) -> None:
    if not np.all(good):
        first = np.asarray(value)[~np.asarray(good)].ravel()[0]
        raise InvalidInputError(f"{reason}; got noise_multiplier = {first:g}")


def _require_classic_epsilon(eps: Array) -> None:
    if np.any(eps > 1):
        raise InvalidInputError(
            f"the classic Gaussian mechanism is proven for 0 < epsilon <= 1 only, got epsilon = {np.max(eps):g}; "
            "use mechanism 'analytic' or 'extended'"
        )


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise InvalidInputError(f"unknown mechanism {mechanism!r}: {nearest(str(mechanism), MECHANISMS)}")
