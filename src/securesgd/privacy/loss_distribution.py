"""The privacy loss of one step on a grid, and of many: what epsilon is read from.

Of one example this is dp-accounting's "connect the dots" on whole arrays. The divergences come from its formulas for
the Gaussian mechanism, and the masses agree with its own to the last bits (tests/privacy/test_loss_distribution.py);
its loop in Python over grid points took most of the time of an epsilon. What does not depend on the number of steps is
kept: the masses, and their moment generating function, by which the convolution is cut. Of several examples of one
person, `mixture_loss` makes the distribution of a step.
"""

__all__ = ["LossCurve", "LossDistribution", "step_distribution"]

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray
from scipy import fft, signal

Array = NDArray[np.float64]
TAIL_MASS = 1e-15
"""What a convolution may cut off; it is counted as an infinite loss."""
_MOST_ORDER = 20
_ORDERS = np.concatenate((np.arange(-_MOST_ORDER, 0), np.arange(1, _MOST_ORDER + 1)))
_LARGEST_RISE = 1e-12  # of divergences that must fall; dp-accounting refuses more, too


class LossCurve(NamedTuple):
    """The divergence at every point of the grid: P(S) <= e^epsilon·Q(S) + delta for every set S.

    Between two points, and below the first, the divergence is at most the straight line in e^epsilon; at e^epsilon = 0
    it is 1.
    """

    lowest: int
    """The first point is interval·lowest."""
    interval: float
    deltas: Array
    """Not increasing; the last is the mass of an infinite loss and the allowance for rounding."""

    @property
    def epsilons(self) -> Array:
        """The points of the grid, increasing; negative ones too."""
        return (self.lowest + np.arange(len(self.deltas), dtype=np.float64)) * self.interval

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 whose divergence is at most `delta`; inf if the last one is larger."""
        if self.deltas[-1] > delta:
            return math.inf
        after = int(np.argmax(self.deltas <= delta))
        if after == 0:
            least = self.lowest * self.interval
            return max(0.0, least + math.log1p(-delta) - math.log1p(-float(self.deltas[0]))) if delta < 1 else 0.0
        above, below = float(self.deltas[after - 1]), float(self.deltas[after])
        share = (above - delta) / (above - below)
        start = (self.lowest + after - 1) * self.interval
        return max(0.0, start + math.log1p(share * math.expm1(self.interval)))

    def divergence(self, epsilon: float) -> float:
        """Return the delta at which what has this loss is (epsilon, delta)-DP."""
        before = math.floor(epsilon / self.interval) - self.lowest
        if before >= len(self.deltas) - 1:
            return float(self.deltas[-1])
        if before < 0:
            return 1 - math.exp(epsilon - self.lowest * self.interval) * (1 - float(self.deltas[0]))
        share = math.expm1(epsilon - (self.lowest + before) * self.interval) / math.expm1(self.interval)
        above, below = float(self.deltas[before]), float(self.deltas[before + 1])
        return above - share * (above - below)


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """A distribution of privacy losses: `masses[i]` at (lowest + i)·interval, `infinite` at infinity."""

    interval: float
    lowest: int
    masses: Array
    infinite: float

    @cached_property
    def log_moments(self) -> Array:
        """log Σ masses[i]·exp(i·order/len(masses)) for the orders by which a convolution is cut: nothing overflows."""
        factor = np.exp(np.arange(len(self.masses)) / len(self.masses))
        moments = []
        for weight in (1 / factor, factor):
            term, of_orders = self.masses, []
            for _ in range(_MOST_ORDER):
                term = term * weight
                of_orders.append(math.log(term.sum()))
            moments.append(of_orders)
        return np.array(moments[0][::-1] + moments[1])

    def repeated(self, count: int) -> "LossDistribution":
        """Return the loss of `count` independent draws; at most `TAIL_MASS` is cut off and counted as infinite."""
        if count == 1:
            return self
        first, last = self._kept(count)
        size = fft.next_fast_len(max(last - first + 1, len(self.masses)))
        masses = fft.irfft(_power(fft.rfft(self.masses, size), count), size)
        infinite = TAIL_MASS - math.expm1(count * math.log1p(-self.infinite))
        return LossDistribution(
            self.interval, self.lowest * count + first, np.roll(masses, -first)[: last - first + 1], infinite
        )

    def plus(self, other: "LossDistribution") -> "LossDistribution":
        """Return the loss of both together. Assumes: the same interval."""
        masses = signal.fftconvolve(self.masses, other.masses)
        first = int(np.argmax(np.cumsum(masses) > TAIL_MASS / 2))
        after = max(len(masses) - int(np.argmax(np.cumsum(masses[::-1]) > TAIL_MASS / 2)), first + 1)
        infinite = self.infinite + other.infinite - self.infinite * other.infinite + masses[after:].sum()
        kept = masses[first:after]
        kept[0] += masses[:first].sum()  # small losses count as larger ones, the largest as infinite
        return LossDistribution(self.interval, self.lowest + other.lowest + first, kept, float(infinite))

    def curve(self, rounding: float = 0.0) -> LossCurve:
        """Return the divergences, raised by `rounding`: infinite + sum over j > i of mass_j·(1 - e^(h·i - h·j))."""
        # delta_i = e^-h·delta_(i+1) + (1 - e^-h)·(mass above i), without a difference of large numbers
        above = np.concatenate([[0.0], np.cumsum(self.masses[:0:-1])])
        share = -math.expm1(-self.interval)
        finite = signal.lfilter([share], [1, share - 1], above)
        deltas = np.clip(finite[::-1] + self.infinite + rounding, 0, 1)
        return LossCurve(self.lowest, self.interval, np.minimum.accumulate(deltas))

    def _kept(self, count: int) -> tuple[int, int]:
        """Return the first and last place of a convolution with all mass but `TAIL_MASS` between (Chernoff's bound)."""
        first, last = 0, (len(self.masses) - 1) * count
        for order, moment in zip(_ORDERS / len(self.masses), self.log_moments, strict=True):
            bound = (count * moment + math.log(2 / TAIL_MASS)) / order
            if math.isfinite(bound) and order > 0:
                last = min(last, math.ceil(bound))
            elif math.isfinite(bound):
                first = max(first, math.floor(bound))
        return first, last


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Return the values, of size up to 1, to the power of `count`; those that vanish (below exp(-100)) as 0 at once."""
    result = np.zeros_like(values)
    large = np.abs(values) > math.exp(-100 / count)
    result[large] = values[large] ** count
    return result


@lru_cache(maxsize=32)
def step_distribution(
    sampling_rate: float, noise_multiplier: float, interval: float, *, removal: bool
) -> LossDistribution:
    """Return the loss of one Poisson-sampled Gaussian release when an example is removed, or else added.

    Guarantee: it dominates the true loss, for any interval. Without sampling both directions are the same.
    Reference: Doroshenko et al. 2022 (arXiv:2207.04380v1), Alg. 1.
    Raises: ValueError or ArithmeticError if the formulas leave the range of floating point.
    """
    direction = AdjacencyType.REMOVE if removal or sampling_rate == 1 else AdjacencyType.ADD
    mechanism = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_rate, adjacency_type=direction)
    ends = mechanism.connect_dots_bounds()
    lowest, highest = math.floor(ends.epsilon_lower / interval), math.ceil(ends.epsilon_upper / interval)
    deltas = _divergences(mechanism, noise_multiplier, np.arange(lowest, highest + 1) * interval)
    if bool((np.diff(deltas) > _LARGEST_RISE).any()):
        raise ValueError("the divergence does not fall with epsilon")
    deltas = np.minimum.accumulate(deltas)
    falls = np.diff(deltas)
    masses = np.empty_like(deltas)
    if len(deltas) == 1:
        masses[0] = 1 - deltas[0]
    else:
        masses[0] = 1 - deltas[0] + falls[0] / math.expm1(interval)
        masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(interval)) / math.expm1(interval)
        masses[-1] = falls[-1] / math.expm1(-interval)
    masses = np.maximum(0.0, masses)
    return LossDistribution(interval, lowest, masses, float(deltas[-1]))


def _divergences(mechanism: GaussianPrivacyLoss, noise: float, epsilons: Array) -> Array:
    """Return the divergence of one step at each epsilon: `mechanism.get_delta_for_epsilon` without its loop."""
    rate, removes = mechanism.sampling_prob, mechanism.adjacency_type == AdjacencyType.REMOVE
    deltas = np.zeros_like(epsilons)
    inner = np.ones(len(epsilons), bool)
    if rate < 1:
        limit = math.log1p(-rate)
        inner = epsilons > limit if removes else epsilons < -limit
        if removes:
            deltas[~inner] = -np.expm1(epsilons[~inner])
    cutoffs = _cutoffs(mechanism, noise, epsilons[inner])
    deltas[inner] = mechanism.mu_upper_cdf(cutoffs) - np.exp(epsilons[inner] + mechanism.mu_lower_log_cdf(cutoffs))
    return np.clip(deltas, 0, 1)


def _cutoffs(mechanism: GaussianPrivacyLoss, noise: float, losses: Array) -> Array:
    """Return the outcomes at which the privacy loss has these values, infinite for a loss at the limit of sampling."""
    rate, removes = mechanism.sampling_prob, mechanism.adjacency_type == AdjacencyType.REMOVE
    variance = noise**2
    if rate == 1:
        return -0.5 - losses * variance
    signed, limit = (losses if removes else -losses), math.log(1 - rate)
    at_limit = np.abs(signed - limit) <= 1e-9 * np.maximum(np.abs(signed), abs(limit))
    # log(1 + (exp(loss) - 1) / rate), which is the loss of the same outcome without sampling
    scaled, constant = signed[~at_limit] + np.log(1 / rate), np.log(1 / rate - 1)
    if bool((scaled <= constant).any()):
        raise ValueError("a privacy loss is beyond what sampling allows")
    unsampled = np.full(len(losses), -math.inf)
    unsampled[~at_limit] = scaled + np.log1p(-np.exp(constant - scaled))
    unsampled[signed == 0] = 0.0
    return -0.5 - unsampled * variance if removes else 1 + (-0.5 + unsampled * variance)
