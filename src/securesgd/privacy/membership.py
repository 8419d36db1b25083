"""What epsilon means to an attacker: mu of Gaussian DP, and how often any attack can tell that somebody was there.

A membership attack says of one example whether it was among the training examples. Its false positive rate is how often
it says so wrongly, its true positive rate how often rightly. Of every pair of rates that differential privacy allows,
`true_positive_rate` gives the largest true one. The attacker may know everything else: all other examples, and every
intermediate model.

mu. A release is mu-Gaussian-DP if no attack on it does better than the best attack on one number with noise, N(0, 1)
against N(mu, 1). One number then says what a whole curve of (epsilon, delta) says. DP-SGD has tails that no mu of use
covers: with a probability far below delta, the example enters every batch. So mu is the smallest for which
    true positive rate <= Phi(Phi^-1(false positive rate) + mu) + slack      for every attack
where `slack` is a hundredth of delta. `regret` says how far the curve of mu is from the computed one (of both
directions and their mixtures): an attack of the one becomes one of the other if both of its rates are moved by so much.

Reference: Dong, Roth and Su 2019 (arXiv:1905.02383); the regret is the Delta-divergence of Kaissis et al. 2024
(arXiv:2406.08918), used to report mu by Gomez et al. 2025 (arXiv:2503.10945).
"""

__all__ = ["FALSE_POSITIVE_RATES", "MembershipBounds", "membership_bounds"]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from securesgd.errors import InvalidInputError
from securesgd.privacy.events import PrivacyEvent
from securesgd.privacy.group import protected_groups
from securesgd.privacy.loss_distribution import LossCurve
from securesgd.privacy.mixture_loss import loss_curves
from securesgd.validate import Array, validate_delta

FALSE_POSITIVE_RATES = (0.01, 0.001)
_SLACK = 100  # times smaller than delta
_KNOTS = 20_000
_LARGEST_MU = 1e4
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, kw_only=True)
class MembershipBounds:
    """How much any attack can learn about one training example; upper bounds."""

    mu: float
    slack: float
    regret: float
    true_positive_rates: tuple[tuple[float, float], ...]
    """Pairs of a false positive rate and the largest true positive rate at it."""


def membership_bounds(
    events: Iterable[PrivacyEvent], delta: float, false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES
) -> MembershipBounds:
    """Return mu, and the true positive rates of any membership attack, for one training example.

    Guarantee: upper bounds, in both directions: also for an attack that says that an example was *not* there. By
    privacy loss distributions, whatever the accountant of the run. mu is inf and the rates are 1 if an event has no
    noise or no guarantee. `delta` only sets the slack of mu.
    Raises: InvalidInputError for an event of another kind, a rate outside (0, 1), an invalid delta, or a loss beyond
    what the grid can hold.
    """
    composition, delta = protected_groups(events), validate_delta(delta)
    rates = tuple(_validate_rate(rate) for rate in false_positive_rates)
    if composition.unprotected:
        return no_bounds(rates)
    if not composition.groups:
        return MembershipBounds(
            mu=0.0, slack=0.0, regret=0.0, true_positive_rates=tuple(zip(rates, rates, strict=True))
        )
    curves = loss_curves(composition.groups)
    slack = max(delta / _SLACK, 10 * max(float(curve.deltas[-1]) for curve in curves))
    epsilons, deltas = _envelope(curves, slack)
    mu = _least_mu(epsilons, deltas, slack)
    return MembershipBounds(
        mu=mu,
        slack=slack,
        regret=_regret(mu, epsilons, deltas),
        true_positive_rates=tuple((rate, max(_true_positive_rate(curve, rate) for curve in curves)) for rate in rates),
    )


def no_bounds(false_positive_rates: Iterable[float] = FALSE_POSITIVE_RATES) -> MembershipBounds:
    """Return what holds without a guarantee: an attack may always be right."""
    rates = tuple((rate, 1.0) for rate in false_positive_rates)
    return MembershipBounds(mu=math.inf, slack=0.0, regret=0.0, true_positive_rates=rates)


def _validate_rate(value: float) -> float:
    rate = float(value)
    if not 0 < rate < 1:
        raise InvalidInputError(f"false positive rate is {value!r}; valid: a number in (0, 1)")
    return rate


def _true_positive_rate(curve: LossCurve, false_positive_rate: float) -> float:
    """Return the least delta + e^epsilon·rate: each point of the curve bounds the true positive rate by it."""
    exponents = np.minimum(curve.epsilons, _LARGEST_EXPONENT)
    return min(1.0, float(np.min(curve.deltas + np.exp(exponents) * false_positive_rate)))


def _envelope(curves: Sequence[LossCurve], slack: float) -> tuple[Array, Array]:
    """Return epsilons from 0 on and the larger divergence of both directions there, until it is below `slack`.

    The other half, of negative epsilon, says the same with the directions exchanged.
    """
    ends = [curve.lowest + int(np.argmax(curve.deltas <= slack)) for curve in curves]
    stride = max(1, max(ends) // _KNOTS)
    knots = np.arange(0, max(*ends, 1) + 2 * stride, stride)
    deltas = [curve.deltas[np.clip(knots - curve.lowest, 0, len(curve.deltas) - 1)] for curve in curves]
    return knots.astype(np.float64) * curves[0].interval, np.max(deltas, axis=0)


def _gaussian_curve(mu: float, epsilons: Array) -> tuple[Array, Array]:
    """Return the divergences of N(mu, 1) from N(0, 1), and minus their derivatives for epsilon."""
    slopes = np.exp(epsilons + special.log_ndtr(-epsilons / mu - mu / 2))
    return special.ndtr(mu / 2 - epsilons / mu) - slopes, slopes


def _least_mu(epsilons: Array, deltas: Array, slack: float) -> float:
    """Return a mu whose divergence is nowhere more than `slack` below the given ones, up to 1e-6 the smallest."""
    if np.all(deltas <= slack):
        return 0.0
    middles = (epsilons[1:] + epsilons[:-1]) / 2

    def covers(mu: float) -> bool:
        # Between two epsilons ours is below a line in e^epsilon, and the Gaussian one, being convex, above its tangent.
        heights, slopes = _gaussian_curve(mu, middles)
        left = heights - slopes * np.expm1(epsilons[:-1] - middles)
        right = heights - slopes * np.expm1(epsilons[1:] - middles)
        return bool(np.all(deltas[:-1] <= left + slack) and np.all(deltas[1:] <= right + slack))

    low, high = 0.0, 1.0
    while not covers(high):
        low, high = high, 2 * high
        if high > _LARGEST_MU:
            return math.inf
    while high - low > 1e-6 * high and high > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


def _regret(mu: float, epsilons: Array, deltas: Array) -> float:
    """Return the largest (delta of mu - delta) / (1 + e^epsilon)."""
    if mu == 0 or math.isinf(mu):
        return 0.0
    gap = _gaussian_curve(mu, epsilons)[0] - deltas
    return max(0.0, float(np.max(gap * special.expit(-epsilons))))
