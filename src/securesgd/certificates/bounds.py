"""From vote counts to bounds on the top class's expected score and on the best other class's.

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

__all__ = ["Bounds", "Selection", "fixed_bounds", "running_bounds", "select_class"]

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securesgd.theory import anytime_bounds, clopper_pearson_lower, clopper_pearson_upper, whitened_radius
from securesgd.validate import Array


@dataclass(frozen=True)
class Bounds:
    """Bounds on the top class's expected score (p) and on the largest other one (q), an entry per example.

    A bound that was not computed is trivially true: 1 for p_upper, 0 for q_lower.
    """

    p_lower: Array
    q_upper: Array
    p_upper: Array
    q_lower: Array

    def intersect(self, other: "Bounds") -> "Bounds":
        """Return what both sets of bounds say together."""
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
        """Return a whitened radius that no number of draws will exceed."""
        return np.atleast_1d(whitened_radius(self.p_upper, self.q_lower))


@dataclass(frozen=True)
class Selection:
    """What the selection draws chose, an entry per example."""

    totals: Array
    draws: int
    top: NDArray[np.int64]
    """The class whose expected score is bounded from below."""
    each: NDArray[np.bool_]
    """Whether the other classes are bounded one by one."""

    def shares(self, totals: Array, draws: int) -> tuple[Array, Array]:
        """Return the shares that p and q are bounds of: the top class's, and the best other's or the rest's."""
        p = _at(totals, self.top) / draws
        return p, np.where(self.each, np.max(_without(totals, self.top), axis=1) / draws, 1 - p)

    def take(self, examples: NDArray[np.int64]) -> "Selection":
        """Return the choices for some of the examples."""
        return Selection(self.totals[examples], self.draws, self.top[examples], self.each[examples])


def select_class(totals: Array, draws: int, others: str, counted: int, failure_prob: float) -> Selection:
    """Return the class with most votes among `draws` selection draws, and how the others are bounded.

    With `others` "auto" that is the way which gives the larger radius if `counted` draws go as the selection draws did.
    """
    top = np.argmax(totals, axis=1)
    nobody = np.zeros(len(top), dtype=bool)
    if others != "auto" or totals.shape[1] == 2:
        return Selection(totals, draws, top, nobody | (others == "each"))
    expected = np.floor(totals * (counted / draws))
    rest, each = (
        fixed_bounds(expected, counted, Selection(totals, draws, top, one_by_one), failure_prob).radius()
        for one_by_one in (nobody, ~nobody)
    )
    return Selection(totals, draws, top, (each > rest) | (rest == 0))


def fixed_bounds(totals: Array, draws: int, selection: Selection, failure_prob: float) -> Bounds:
    """Return Clopper–Pearson bounds from vote counts at a number of draws fixed in advance.

    Guarantee: for each example both bounds hold together with probability >= 1 − failure_prob.
    """
    top = _at(totals, selection.top)
    p = np.asarray(clopper_pearson_lower(top, draws, np.where(selection.each, failure_prob / 2, failure_prob)))
    share = failure_prob / 2 / (totals.shape[1] - 1)
    other = np.max(_without(clopper_pearson_upper(totals, draws, share), selection.top), axis=1)
    return Bounds(p, np.where(selection.each, other, 1 - p), np.ones_like(p), np.zeros_like(p))


def running_bounds(totals: Array, draws: int, selection: Selection, failure_prob: float) -> Bounds:
    """Return bounds from totals of votes or soft scores that hold at all numbers of draws at once.

    Guarantee: for each example, with probability >= 1 − failure_prob, all four bounds hold together whenever one looks.
    """
    priors = selection.totals + 0.5, selection.draws - selection.totals + 0.5
    top, prior = _at(totals, selection.top), (_at(priors[0], selection.top), _at(priors[1], selection.top))
    together = np.array(anytime_bounds(top, draws, failure_prob, prior))
    if not selection.each.any():
        lower, upper = together
        return Bounds(lower, 1 - lower, upper, 1 - upper)
    alone = np.array(anytime_bounds(top, draws, failure_prob / 2, prior))
    lower, upper = np.where(selection.each, alone, together)
    share = failure_prob / 2 / (totals.shape[1] - 1)
    below, above = (
        np.max(_without(bound, selection.top), axis=1) for bound in anytime_bounds(totals, draws, share, priors)
    )
    return Bounds(lower, np.where(selection.each, above, 1 - lower), upper, np.where(selection.each, below, 1 - upper))


def _at(values: Array, column: NDArray[np.int64]) -> Array:
    return np.take_along_axis(values, column[:, None], axis=1)[:, 0]


def _without(values: Array, column: NDArray[np.int64]) -> Array:
    """Return the values with the top class's set to 0, for a maximum over the others."""
    others = np.array(values)
    np.put_along_axis(others, column[:, None], 0.0, axis=1)
    return others
