"""How many draws an example gets: all of them, or as many as are needed to answer for a radius or a tolerance.

With a stopping rule, drawing goes in stages that grow by a quarter. After each one a confidence sequence, which may be
looked at any number of times, gives bounds for every example; only undecided examples get more draws. Half of the
failure probability is reserved for one Clopper–Pearson bound at the last draw, so that examples that need all draws
lose little. An example that would hardly ever be proven by all draws is given up: it stays unproven, as it would have.
"""

__all__ = ["SampledBounds", "StoppingRule", "count_votes", "look_schedule"]

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from securesgd.certificates.bounds import Bounds, Selection, fixed_bounds, running_bounds
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.votes import BLOCK, Votes
from securesgd.validate import Array

_GROWTH = 1.25
_HOPE, _EARLIEST = 2.5, 1 / 40  # standard deviations; share of the draws before which nobody is given up

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """When drawing may stop, in whitened units; with neither a radius nor a tolerance, after all draws."""

    radius: Array | float | None = None
    """Stop when it is known whether this radius is proven. One for all, or an entry per example: what rounding takes
    differs from one to the next."""
    tolerance: float | None = None
    """Stop when the radius is known to within this."""

    def take(self, examples: NDArray[np.int64]) -> "StoppingRule":
        """Return the rule for some of the examples."""
        return replace(self, radius=self.radius[examples]) if isinstance(self.radius, np.ndarray) else self

    def settled(self, bounds: Bounds) -> tuple[Mask, Mask]:
        """Return where drawing may stop, and where the radius is proven."""
        proven, cap = bounds.radius(), bounds.radius_cap()
        if self.tolerance is not None:
            return cap - proven <= self.tolerance, np.zeros(len(cap), dtype=bool)
        if self.radius is None:
            return np.zeros(len(cap), dtype=bool), np.zeros(len(cap), dtype=bool)
        yes = (proven >= self.radius) & (proven > 0)
        return yes | (cap < self.radius) | (cap == 0), yes


@dataclass(frozen=True)
class SampledBounds:
    """The bounds of each example when drawing has ended."""

    p_lower: Array
    q_upper: Array
    draws: NDArray[np.int64]
    answer: NDArray[Any]
    """yes, no, or open if the draws do not tell; empty without a radius to answer for."""
    votes: Array
    """[examples, classes]: the totals of the counted draws."""


def look_schedule(most: int) -> Iterator[int]:
    """Yield the numbers of draws after which one looks: whole blocks, growing by a quarter, ending with `most`."""
    at = BLOCK
    while at < most:
        yield at
        at = max(at + BLOCK, int(at * _GROWTH) // BLOCK * BLOCK)
    yield most


def count_votes(
    votes: Votes,
    selection: Selection,
    stopping: StoppingRule,
    settings: CertifySettings,
    on_draws: Callable[[int], None] = lambda draws: None,
) -> SampledBounds:
    """Return bounds for every example of `votes`, drawing no more than the stopping rule needs.

    Guarantee: for each example the bounds hold together with probability >= 1 − failure_prob, whenever it stopped.
    `on_draws` gets the number of draws made, from time to time.
    """
    everyone = np.arange(len(selection.top))
    soft = settings.scores == "soft"
    if not settings.adaptive:
        totals = votes.draw(everyone, settings.draws, on_draws)
        bound = running_bounds if soft else fixed_bounds  # Clopper–Pearson is for counts
        known = bound(totals, settings.draws, selection, settings.failure_prob)
        return SampledBounds(known.p_lower, known.q_upper, votes.drawn.copy(), np.full(len(everyone), ""), totals)
    running = settings.failure_prob if soft else settings.failure_prob / 2
    last = settings.failure_prob - running
    p, q = np.zeros(len(everyone)), np.ones(len(everyone))
    answer, undecided = np.full(len(everyone), "open"), everyone
    for look in look_schedule(settings.draws):
        chosen, rule = selection.take(undecided), stopping.take(undecided)
        totals = votes.draw(undecided, look, on_draws)
        known = running_bounds(totals, look, chosen, running)
        if look == settings.draws and not soft:
            known = known.intersect(fixed_bounds(totals, look, chosen, last))
        p[undecided], q[undecided] = known.p_lower, known.q_upper
        stop, yes = rule.settled(known)
        answer[undecided[stop]] = np.where(yes[stop], "yes", "no" if rule.radius is not None else "")
        if rule.radius is not None and not soft:
            stop |= _hopeless(totals, look, chosen, rule.radius, settings.draws, last)
        undecided = undecided[~stop]
        if len(undecided) == 0:
            break
    if stopping.radius is None:
        answer = np.full(len(everyone), "")
    return SampledBounds(p, q, votes.drawn.copy(), answer, votes.totals.copy())


def _hopeless(
    totals: Array, draws: int, selection: Selection, radius: Array | float, most: int, failure_prob: float
) -> Mask:
    """Return where `most` draws would hardly ever prove the radius, judged by those made so far.

    Nothing is claimed of these examples, so an approximation is enough: the radius that the last bound would prove if
    the shares of the votes stay as they are, plus `_HOPE` standard deviations of what chance may add until then.
    """
    if not most * _EARLIEST <= draws < most:
        return np.zeros(len(totals), dtype=bool)
    expected = fixed_bounds(np.floor(totals * (most / draws)), most, selection, failure_prob).radius()
    p, q = (np.clip(share, 0.5 / draws, 1 - 0.5 / draws) for share in selection.shares(totals, draws))
    # Delta method: the radius is (Φ⁻¹(p) − Φ⁻¹(q))/2, and the shares of two classes of one draw have covariance −pq.
    a, b = (np.sqrt(2 * np.pi) * np.exp(ndtri(share) ** 2 / 2) / 2 for share in (p, q))
    variance = a**2 * p * (1 - p) + b**2 * q * (1 - q) + 2 * a * b * p * q
    return expected + _HOPE * np.sqrt(variance * (1 / draws - 1 / most)) < radius
