"""Lower bounds of epsilon from one run: m canaries, each in the data by a fair coin, and v right of r guesses.

The game. Canary i is in the data if its coin says so; all coins are independent and fair. Somebody who sees what is
released, but no coin, guesses r of the m coins and abstains from the others. r is fixed before the run; which canaries
are guessed, and how, may depend on everything that was released. A mechanism that is private for one example at a time
bounds the number V of right guesses:

- `simple_p_value`: of an (ε, δ)-private mechanism, V exceeds a Binomial(r, e^ε/(1 + e^ε)) by little more than m·δ.
- `tradeoff_p_value`: of a mechanism with a whole trade-off curve g, which bounds P[M(D) ∈ E] <= g(P[M(D') ∈ E]) for
  every event E and all neighbours D, D' (in both orders). Let p_j = P[V = j], and draw a canary at random. With
  A_i = P[it is guessed right, and V >= i]   = Σ_{j >= i} (j/m)·p_j and
  B_i = P[it is guessed wrong, and V >= i−1] = Σ_{j >= i−1} ((r−j)/m)·p_j,
  flipping its coin turns one event into the other, and the guesses for all other canaries do not change. So
  A_i <= g(B_i) for i = 1..r, g being concave. P[V >= v] is at most the largest Σ_{j >= v} p_j of all distributions p
  with these inequalities.

A lower bound is the largest privacy parameter that the p-value rejects. It is honest by construction: if the mechanism
is as private as claimed, the bound exceeds the claim with probability at most `failure_prob`, however the guesses were
made; and if the canaries were never in the data, V is Binomial(r, 1/2), and the bound is 0 with 1 − `failure_prob`.

References: Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846), Theorem 5.2; Mahloujifar, Melis, Chaudhuri 2024
(arXiv:2410.22235), Algorithm 3, with p_i >= 0 kept when an inequality is slack.
"""

__all__ = [
    "GaussianTradeoff",
    "LineTradeoff",
    "Tradeoff",
    "gaussian_epsilon_bound",
    "gaussian_mu",
    "largest_rejected",
    "simple_epsilon_bound",
    "simple_p_value",
    "tradeoff_p_value",
    "tradeoff_rejects",
]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from securesgd.errors import InvalidInputError
from securesgd.theory.gaussian import delta_from, epsilon_from
from securesgd.validate import Array, finite_array, probability_array, validate_count, validate_delta

LARGEST_EPSILON = 50.0
"""Above any bound that guesses can prove: 2²⁰ right guesses prove less than 14."""
MOST_CANARIES = 2**20
_TOLERANCE = 1e-4


class Tradeoff(Protocol):
    """A curve g that bounds the probability of an event by that of the same event on neighbouring data."""

    def least(self, probability: float) -> float:
        """Return the smallest b with g(b) >= probability."""


@dataclass(frozen=True)
class GaussianTradeoff:
    """The curve of a Gaussian mechanism with sensitivity/sigma = mu: g(b) = Φ(Φ⁻¹(b) + mu)."""

    mu: float

    def least(self, probability: float) -> float:
        """Return the smallest b with g(b) >= probability."""
        if probability >= 1:
            return 1.0
        return float(ndtr(ndtri(probability) - self.mu)) if probability > 0 else 0.0


class LineTradeoff:
    """The curve that follows from several (epsilon, delta) guarantees that hold at once.

    Each gives g(b) <= e^ε·b + δ and, for the complement of the event, g(b) <= 1 − e^−ε·(1 − δ − b).
    """

    def __init__(self, epsilons: ArrayLike, deltas: ArrayLike) -> None:
        epsilon, delta = finite_array("epsilons", epsilons), probability_array("deltas", deltas)
        self._slope: Array = np.concatenate([np.exp(-epsilon), np.exp(epsilon)])
        self._start: Array = np.concatenate([-delta * np.exp(-epsilon), 1 - delta - np.exp(epsilon)])

    def least(self, probability: float) -> float:
        """Return the smallest b with g(b) >= probability."""
        return max(0.0, float(np.max(self._start + self._slope * probability)))


def simple_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses or more, if the mechanism is (epsilon, delta)-private.

    Reference: Steinke et al. 2023, Theorem 5.2.
    """
    _validate(canaries, guesses, right)
    if right == 0:
        return 1.0
    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, share))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))  # P[right − i <= Binomial < right]
    alpha = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, tail + 2 * canaries * delta * alpha)


def simple_epsilon_bound(canaries: int, guesses: int, right: int, delta: float, failure_prob: float) -> float:
    """Return an epsilon that the mechanism does not keep at `delta`, by the theorem for (epsilon, delta); 0 if none.

    Guarantee: an (epsilon, delta)-private mechanism gives a larger bound with probability at most `failure_prob`.
    Assumes: the game of this module; `guesses` was fixed before the run.
    Raises: InvalidInputError for counts that do not fit.
    """
    _validate(canaries, guesses, right)
    validate_delta(failure_prob)
    return largest_rejected(
        lambda epsilon: simple_p_value(canaries, guesses, right, epsilon, delta) <= failure_prob, LARGEST_EPSILON
    )


def tradeoff_rejects(canaries: int, guesses: int, right: int, curve: Tradeoff, failure_prob: float) -> bool:
    """Return whether so many right guesses or more have a probability below `failure_prob` under the curve.

    With the mass `failure_prob` at V = right, the least mass that the inequalities then demand at right − 1, right − 2,
    … is added up; if all together exceeds 1, there is no such distribution.
    """
    _validate(canaries, guesses, right)
    validate_delta(failure_prob)
    a, b = failure_prob * right / canaries, failure_prob * (guesses - right) / canaries
    limit = guesses / canaries * (1 + 1e-9)
    for j in range(right - 1, -1, -1):  # a is A_{j+1}, b is Σ over V > j
        more = curve.least(a) - b
        if more > 0:
            a, b = a + j / (guesses - j) * more, b + more
        if a + b > limit:
            return True
    return False


def tradeoff_p_value(canaries: int, guesses: int, right: int, curve: Tradeoff) -> float:
    """Return a bound on the probability of so many right guesses or more, for a mechanism with this curve."""
    low, high = -30.0, 0.0  # of its logarithm
    if not tradeoff_rejects(canaries, guesses, right, curve, 1 - 1e-12):
        return 1.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        rejects = tradeoff_rejects(canaries, guesses, right, curve, math.exp(middle) * (1 - 1e-12))
        low, high = (low, middle) if rejects else (middle, high)
    return math.exp(high)


def gaussian_epsilon_bound(canaries: int, guesses: int, right: int, delta: float, failure_prob: float) -> float:
    """Return the epsilon at `delta` of the least noisy Gaussian mechanism that the guesses reject; 0 if none.

    Guarantee: as `simple_epsilon_bound`, for a mechanism with the trade-off curve of a Gaussian one.
    """

    def rejects(mu: float) -> bool:
        return tradeoff_rejects(canaries, guesses, right, GaussianTradeoff(mu), failure_prob)

    return _gaussian_epsilon(largest_rejected(rejects, 10.0), delta)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return sensitivity/sigma of the Gaussian mechanism that is exactly (epsilon, delta)-private."""
    return float(brentq(lambda mu: float(delta_from(1 / mu, epsilon)) - delta, 1e-6, 60.0, xtol=1e-9))


def largest_rejected(rejects: Callable[[float], bool], highest: float, *, tolerance: float = _TOLERANCE) -> float:
    """Return a number that `rejects`, `tolerance` below one that it does not; 0 if it rejects nothing above.

    Assumes: what rejects a number rejects all smaller ones.
    """
    if not rejects(tolerance):
        return 0.0
    low, high = tolerance, highest
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _gaussian_epsilon(mu: float, delta: float) -> float:
    return 0.0 if mu <= 0 else float(epsilon_from(1 / mu, delta))


def _validate(canaries: int, guesses: int, right: int) -> None:
    validate_count("canaries", canaries, at_least=1, at_most=MOST_CANARIES)
    validate_count("guesses", guesses, at_least=1, at_most=canaries)
    if not 0 <= right <= guesses:
        raise InvalidInputError(f"right is {right!r}; valid: an integer from 0 to {guesses:,}, the number of guesses")
