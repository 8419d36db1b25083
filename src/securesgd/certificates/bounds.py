"""From what the classes got to bounds on the top class's expected score and on the best other's.

Everything that is chosen by looking at draws is chosen on the selection draws, which are not counted afterwards: the
class, how the other classes are bounded, and where the confidence sequence places its bet. So each bound has the
failure probability it states.

======  =============================================  ==============================================================
others  bounds                                         pays off
======  =============================================  ==============================================================
rest    p by all of the failure probability; q = 1 − p the top class has nearly all votes, or one rival has the rest
each    p by a half; each other class by its share     several rivals: then 1 − p is far above each of them
======  =============================================  ==============================================================
"""

__all__ = ["Bounds", "Pilot", "anytime", "fixed"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securesgd.theory import anytime_bounds, clopper_pearson_lower, clopper_pearson_upper, whitened_radius
from securesgd.validate import Array


@dataclass(frozen=True)
class Bounds:
    """Of the top class's expected score (p) and the largest other one (q), an entry per example.

    What was not asked for is trivially true: 1 for p_upper, 0 for q_lower.
    """

    p_lower: Array
    q_upper: Array
    p_upper: Array
    q_lower: Array

    def and_also(self, other: "Bounds") -> "Bounds":
        """Return what both say together."""
        return Bounds(
            np.maximum(self.p_lower, other.p_lower),
            np.minimum(self.q_upper, other.q_upper),
            np.minimum(self.p_upper, other.p_upper),
            np.maximum(self.q_lower, other.q_lower),
        )

    def radius(self) -> Array:
        """Return the whitened radius that is proven."""
        return np.atleast_1d(whitened_radius(self.p_lower, self.q_upper))

    def radius_cap(self) -> Array:
        """Return a whitened radius above which no number of draws will get."""
        return np.atleast_1d(whitened_radius(self.p_upper, self.q_lower))


@dataclass(frozen=True)
class Pilot:
    """What the selection draws chose, an entry per example."""

    totals: Array
    draws: int
    top: NDArray[np.int64]
    each: NDArray[np.bool_]
    """Whether the other classes are bounded one by one."""

    @classmethod
    def of(cls, totals: Array, draws: int, others: str, counted: int, failure_prob: float) -> "Pilot":
        """Return the choices for `counted` draws to come."""
        top = np.argmax(totals, axis=1)
        nobody = np.zeros(len(top), dtype=bool)
        if others != "auto" or totals.shape[1] == 2:
            return cls(totals, draws, top, nobody | (others == "each"))
        expected = np.floor(totals * (counted / draws))
        rest, each = (
            fixed(expected, counted, cls(totals, draws, top, chosen), failure_prob).radius()
            for chosen in (nobody, ~nobody)
        )
        return cls(totals, draws, top, (each > rest) | (rest == 0))

    def shares(self, totals: Array, draws: int) -> tuple[Array, Array]:
        """Return the shares that p and q are bounds of: the top class's, and the best other's or the rest's."""
        p = _at(totals, self.top) / draws
        return p, np.where(self.each, np.max(_without(totals, self.top), axis=1) / draws, 1 - p)

    def take(self, examples: NDArray[np.int64]) -> "Pilot":
        """Return the choices of some of the examples."""
        return Pilot(self.totals[examples], self.draws, self.top[examples], self.each[examples])


def fixed(totals: Array, draws: int, pilot: Pilot, failure_prob: float) -> Bounds:
    """Return Clopper–Pearson bounds from vote counts at a number of draws fixed in advance.

    Guarantee: for each example both bounds hold together with probability >= 1 − failure_prob.
    """
    top = _at(totals, pilot.top)
    p = np.asarray(clopper_pearson_lower(top, draws, np.where(pilot.each, failure_prob / 2, failure_prob)))
    share = failure_prob / 2 / (totals.shape[1] - 1)
    other = np.max(_without(clopper_pearson_upper(totals, draws, share), pilot.top), axis=1)
    return Bounds(p, np.where(pilot.each, other, 1 - p), np.ones_like(p), np.zeros_like(p))


def anytime(totals: Array, draws: int, pilot: Pilot, failure_prob: float) -> Bounds:
    """Return bounds from totals of votes or soft scores that hold at all numbers of draws at once.

    Guarantee: for each example, with probability >= 1 − failure_prob, all four bounds hold together whenever one looks.
    """
    priors = pilot.totals + 0.5, pilot.draws - pilot.totals + 0.5
    top, prior = _at(totals, pilot.top), (_at(priors[0], pilot.top), _at(priors[1], pilot.top))
    together = np.array(anytime_bounds(top, draws, failure_prob, prior))
    if not pilot.each.any():
        lower, upper = together
        return Bounds(lower, 1 - lower, upper, 1 - upper)
    alone = np.array(anytime_bounds(top, draws, failure_prob / 2, prior))
    lower, upper = np.where(pilot.each, alone, together)
    share = failure_prob / 2 / (totals.shape[1] - 1)
    below, above = (
        np.max(_without(bound, pilot.top), axis=1) for bound in anytime_bounds(totals, draws, share, priors)
    )
    return Bounds(lower, np.where(pilot.each, above, 1 - lower), upper, np.where(pilot.each, below, 1 - upper))


def _at(values: Array, column: NDArray[np.int64]) -> Array:
    return np.take_along_axis(values, column[:, None], axis=1)[:, 0]


def _without(values: Array, column: NDArray[np.int64]) -> Array:
    """Return the values with the top class's set to 0, for a maximum over the others."""
    others = np.array(values)
    np.put_along_axis(others, column[:, None], 0.0, axis=1)
    return others
