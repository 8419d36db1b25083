"""The privacy loss of a composition, for one person with one or several training examples, on a grid.

One step. A person has k examples; each enters the step by its own coin of rate q, so j of them do with probability
Binomial(k, q)(j), and move the sum by at most j. The worst case is one-dimensional, in units of the noise:
    with the person      M = sum over j of Binomial(k, q)(j) · N(j/c, 1),  c the noise multiplier
    without              N = N(0, 1)
(Choquette-Choo et al. 2023, arXiv:2310.15526, Cor. 4.7: vectors are dominated by their lengths.) A release without
sampling is q = 1: N(k/c, 1). The loss log dM/dN grows with the point where it is taken, and is minus the loss of the
other direction; `LossCurves` has both, since neither dominates the other.

The grid. Points are sorted into cells by their loss, between multiples h·i of the interval. In a cell, P and Q are
replaced by two points with the losses of its ends, and with the same masses under P and under Q. The cell's own
distributions are a function of those two points and of coins, so nothing gets more private by it: every figure that is
taken from the result is an upper bound, for any interval (Doroshenko et al. 2022, arXiv:2207.04380, "connect the dots",
computed from masses instead of divergences). Tails of mass 1e-16 over all steps become an infinite loss. With T steps
epsilon grows by about T·h², which the interval is chosen for.

Rounding. Convolutions by FFT make a tail too light by about 2e-17 per step; `pld` says how that was measured. All
divergences are raised by `rounding`, fifty times as much.
"""

__all__ = ["LARGEST_GROUP", "loss_curves"]

import math
from functools import lru_cache, reduce

import numpy as np
from scipy import special

from securesgd.errors import InvalidInputError
from securesgd.privacy.composition import Group
from securesgd.privacy.loss_distribution import LossCurve, LossDistribution
from securesgd.privacy.pld import FFT_ERROR_BASE, FFT_ERROR_PER_STEP
from securesgd.validate import Array, validate_count

LARGEST_GROUP = 100
"""The most examples of one person: the time grows with their number."""
_TAIL = 1e-16  # mass that becomes an infinite loss, over all steps
_EXCESS = 1e-5  # of epsilon per example of the person, which the interval is chosen for
_MOST_CELLS = 400_000  # of one step; a longer range has a wider interval
_LEAST_CELLS = 4_000
_MOST_POINTS = 2_000_000  # about, of the composition
_WIDEST = 0.1
_SPLIT_ERROR = 1e-7  # of a cell's mass; differences of masses lose at most 1e-8 by rounding
_SMALLEST, _LARGEST_EXPONENT = 1e-280, 600.0
_BLOCK = 1 << 15


@lru_cache(maxsize=16)
def loss_curves(groups: tuple[Group, ...], examples: int = 1) -> tuple[LossCurve, LossCurve]:
    """Return the divergences of the composed groups for a person with so many examples, in both directions.

    The first is with the person against without, the second the reverse.
    Guarantee: each delta is an upper bound of the true divergence, for adding or removing the examples and for
    replacing them by ones that contribute nothing.
    Assumes: `groups` are those of a `Composition`, at least one.
    Raises: InvalidInputError for a number of examples outside 1 to 100, or a privacy loss beyond what a grid can hold.
    """
    examples = validate_count("examples", examples, at_least=1, at_most=LARGEST_GROUP)
    steps = sum(group.steps for group in groups)
    mixtures = [_Mixture(group, examples) for group in groups]
    cut = _TAIL / steps
    spans = [mixture.span(cut) for mixture in mixtures]
    longest = max(high - low for low, high in spans)
    interval = min(examples * math.sqrt(_EXCESS / steps), longest / _LEAST_CELLS, _WIDEST)
    rough = [mixture.losses(longest / _LEAST_CELLS, *span) for mixture, span in zip(mixtures, spans, strict=True)]
    variance = (
        sum(group.steps * max(map(_variance, pair)) for group, pair in zip(groups, rough, strict=True))
        * (longest / _LEAST_CELLS) ** 2
    )
    interval = max(interval, longest / _MOST_CELLS, 20 * math.sqrt(variance) / _MOST_POINTS)
    if interval > _WIDEST:
        raise InvalidInputError(
            f"one step can lose {longest:.3g} of privacy for {examples} examples; valid: up to "
            f"{_WIDEST * _MOST_CELLS:,.0f}, less over many steps: with more noise"
        )
    pairs = [mixture.losses(interval, *span) for mixture, span in zip(mixtures, spans, strict=True)]
    rounding = FFT_ERROR_BASE + FFT_ERROR_PER_STEP * steps
    first, second = (
        reduce(
            LossDistribution.plus, (pair[way].repeated(group.steps) for group, pair in zip(groups, pairs, strict=True))
        ).curve(rounding)
        for way in (0, 1)
    )
    return first, second


class _Mixture:
    """The two distributions of one step, and the loss between them."""

    def __init__(self, group: Group, examples: int) -> None:
        rate, noise = group.sampling_rate, group.noise_multiplier
        counts = np.array([examples]) if rate == 1 else np.arange(examples + 1)
        self._means = counts / noise
        if rate == 1:
            self._log_weights = np.zeros(1)
        else:
            ways = special.gammaln(examples + 1) - special.gammaln(counts + 1) - special.gammaln(examples - counts + 1)
            self._log_weights = ways + counts * math.log(rate) + (examples - counts) * math.log1p(-rate)
        self._least = -math.inf if rate == 1 else float(self._log_weights[0])

    def span(self, cut: float) -> tuple[float, float]:
        """Return the points below and above which neither distribution has more mass than `cut`, as losses."""
        lowest = float(special.ndtri(cut))
        low, high = lowest, float(np.max(self._means)) - lowest
        for _ in range(60):  # halving down to the point where the mixture's own tail is that light
            middle = low + (high - low) / 2
            tail = float(np.exp(self._log_weights) @ special.ndtr(self._means - middle))
            low, high = (low, middle) if tail <= cut else (middle, high)
        ends = self._loss(np.array([lowest, high]))[0]
        return float(ends[0]), float(ends[1])

    def _loss(self, points: Array) -> tuple[Array, Array]:
        """Return the loss and its derivative at some points."""
        terms = self._log_weights + self._means * points[:, None] - self._means**2 / 2
        largest = terms.max(axis=1)
        parts = np.exp(terms - largest[:, None])
        total = parts.sum(axis=1)
        return largest + np.log(total), parts @ self._means / total

    def _points(self, losses: Array) -> Array:
        """Return where the loss has these values, increasing; -inf where it is always larger."""
        points = np.full(len(losses), -math.inf)
        reached = losses > self._least
        wanted = losses[reached]
        if not len(wanted):
            return points
        low, high = -50.0, 50.0 + float(np.max(self._means))
        while self._loss(np.array([low]))[0][0] > wanted[0] and low > -1e4:
            low *= 2
        while self._loss(np.array([high]))[0][0] < wanted[-1]:
            high *= 2
        table = np.linspace(low, high, 20_001)
        known = np.concatenate([self._loss(part)[0] for part in np.array_split(table, 1 + len(table) // _BLOCK)])
        guess = np.interp(wanted, known, table)
        for _ in range(50):  # Newton; the loss is convex, so that from the second round on it comes from above
            parts = np.array_split(guess, 1 + len(guess) // _BLOCK)
            loss, slope = (np.concatenate(values) for values in zip(*map(self._loss, parts), strict=True))
            move = np.clip((loss - wanted) / np.maximum(slope, 1e-300), -1, 1)
            guess = guess - move
            if np.max(np.abs(move) / (1 + np.abs(guess))) < 1e-13:
                break
        points[reached] = np.maximum.accumulate(guess)
        return points

    def _masses(self, points: Array) -> tuple[Array, Array]:
        """Return the masses with and without the person between neighbouring points; relative errors are small."""
        with_person = np.zeros(len(points) - 1)
        for weight, mean in zip(np.exp(self._log_weights), self._means, strict=True):
            with_person += weight * _normal_masses(points - mean)
        return with_person, _normal_masses(points)

    def losses(self, interval: float, low: float, high: float) -> tuple[LossDistribution, LossDistribution]:
        """Return the loss of one step on the grid, (with, without) and (without, with)."""
        first, last = math.floor(low / interval), math.ceil(high / interval)
        last = max(last, first + 1)
        ends = np.arange(first, last + 1, dtype=np.float64) * interval
        points = np.concatenate([[-math.inf], self._points(ends), [math.inf]])
        added, null = self._masses(points)
        inner, outer = added[1:-1], null[1:-1]
        # of P(cell) and Q(cell): x at the upper end, P - x at the lower, x·e^-upper + (P - x)·e^-lower = Q
        share = -math.expm1(-interval)
        upper = _split(inner, outer, ends[:-1], share)
        lower = _split(outer, inner, -ends[1:], share)
        forward, backward = np.zeros(len(ends)), np.zeros(len(ends))
        forward[1:] += upper
        forward[:-1] += inner - upper
        backward[:-1] += lower  # at the loss -ends
        backward[1:] += outer - lower
        forward[0] += added[0]
        backward[-1] += null[-1]
        return (
            LossDistribution(interval, first, forward, float(added[-1])),
            LossDistribution(interval, -last, backward[::-1].copy(), float(null[0])),
        )


def _variance(loss: LossDistribution) -> float:
    """Return the variance of a loss in units of the squared interval."""
    places = np.arange(len(loss.masses), dtype=np.float64)
    mean = float(loss.masses @ places)
    return float(loss.masses @ (places - mean) ** 2)


def _split(mass: Array, other: Array, lower: Array, share: float) -> Array:
    """Return how much of a cell's mass goes to the end with the larger loss; rounded up.

    All of it where the other mass, or its factor, is near the end of the floating-point range.
    """
    other = np.where((other > _SMALLEST) & (lower < _LARGEST_EXPONENT), other, 0)
    scaled = other * np.exp(np.minimum(lower, _LARGEST_EXPONENT))
    return np.clip((mass - scaled) / share + _SPLIT_ERROR * mass, 0, mass)


def _normal_masses(points: Array) -> Array:
    """Return the standard normal masses between neighbouring points, from the nearer tail."""
    tails = special.ndtr(-np.abs(points))
    below, above = tails[:-1], tails[1:]
    masses = np.where(points[:-1] >= 0, below - above, above - below)
    return np.maximum(np.where((points[:-1] < 0) & (points[1:] > 0), 1 - below - above, masses), 0)
