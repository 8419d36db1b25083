"""How many draws an example gets: all of them, or as many as its question needs.

With a question, drawing goes in stages that grow by a quarter. After each one a confidence sequence, which may be
looked at any number of times, says for every example what is known; only undecided examples go on. Half of the failure
probability is kept for one Clopper–Pearson bound at the last draw, so that examples that need all draws lose little. An
example that would hardly ever be proven by all draws is given up: it stays unproven, as it would have.
"""

__all__ = ["Question", "Sampled", "looks", "sample"]

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from securesgd.certificates.bounds import Bounds, Pilot, anytime, fixed
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.votes import BLOCK, Votes
from securesgd.validate import Array

_GROWTH = 1.25
_HOPE, _EARLIEST = 2.5, 1 / 40  # standard deviations; share of the draws before which nobody is given up

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the examples, in whitened units; neither: nothing, take all draws."""

    radius: Array | float | None = None
    """The same for all, or an entry per example: what rounding takes differs from one to the next."""
    tolerance: float | None = None

    def take(self, examples: NDArray[np.int64]) -> "Question":
        """Return what is asked of some of the examples."""
        return replace(self, radius=self.radius[examples]) if isinstance(self.radius, np.ndarray) else self

    def settled(self, bounds: Bounds) -> tuple[Mask, Mask]:
        """Return where drawing may stop, and where the answer is yes."""
        proven, cap = bounds.radius(), bounds.radius_cap()
        if self.tolerance is not None:
            return cap - proven <= self.tolerance, np.zeros(len(cap), dtype=bool)
        if self.radius is None:
            return np.zeros(len(cap), dtype=bool), np.zeros(len(cap), dtype=bool)
        yes = (proven >= self.radius) & (proven > 0)
        return yes | (cap < self.radius) | (cap == 0), yes


@dataclass(frozen=True)
class Sampled:
    """What is known of each example when drawing has ended."""

    p_lower: Array
    q_upper: Array
    draws: NDArray[np.int64]
    answer: NDArray[Any]
    """yes, no, or open if the draws do not tell; empty without a question."""


def looks(most: int) -> Iterator[int]:
    """Yield the numbers of draws after which one looks: whole blocks, growing by a quarter, ending with `most`."""
    at = BLOCK
    while at < most:
        yield at
        at = max(at + BLOCK, int(at * _GROWTH) // BLOCK * BLOCK)
    yield most


def sample(
    votes: Votes,
    pilot: Pilot,
    question: Question,
    settings: CertifySettings,
    on_draws: Callable[[int], None] = lambda draws: None,
) -> Sampled:
    """Return bounds for every example of `votes`, drawing no more than its question needs.

    Guarantee: for each example the bounds hold together with probability >= 1 − failure_prob, whenever it stopped.
    `on_draws` gets the number of draws made, from time to time.
    """
    everyone = np.arange(len(pilot.top))
    soft = settings.scores == "soft"
    if not settings.adaptive:
        totals = votes.draw(everyone, settings.draws, on_draws)
        bound = anytime if soft else fixed  # Clopper–Pearson is for counts
        known = bound(totals, settings.draws, pilot, settings.failure_prob)
        return Sampled(known.p_lower, known.q_upper, votes.drawn.copy(), np.full(len(everyone), ""))
    running = settings.failure_prob if soft else settings.failure_prob / 2
    p, q = np.zeros(len(everyone)), np.ones(len(everyone))
    answer, open_ = np.full(len(everyone), "open"), everyone
    for look in looks(settings.draws):
        totals = votes.draw(open_, look, on_draws)
        known = anytime(totals, look, pilot.take(open_), running)
        if look == settings.draws and not soft:
            known = known.and_also(fixed(totals, look, pilot.take(open_), settings.failure_prob - running))
        p[open_], q[open_] = known.p_lower, known.q_upper
        asked = question.take(open_)
        stop, yes = asked.settled(known)
        answer[open_[stop]] = np.where(yes[stop], "yes", "no" if question.radius is not None else "")
        if asked.radius is not None and not soft:
            last = settings.failure_prob - running
            stop |= _hopeless(totals, look, pilot.take(open_), asked.radius, settings.draws, last)
        open_ = open_[~stop]
        if len(open_) == 0:
            break
    if question.radius is None:
        answer = np.full(len(everyone), "")
    return Sampled(p, q, votes.drawn.copy(), answer)


def _hopeless(totals: Array, draws: int, pilot: Pilot, radius: Array | float, most: int, failure_prob: float) -> Mask:
    """Return where `most` draws would hardly ever prove the radius, judged by those made so far.

    Nothing is claimed of these examples, so an approximation will do: the radius that the last bound would prove if
    votes went on as they are, plus `_HOPE` standard deviations of what chance may add until then.
    """
    if not most * _EARLIEST <= draws < most:
        return np.zeros(len(totals), dtype=bool)
    expected = fixed(np.floor(totals * (most / draws)), most, pilot, failure_prob).radius()
    p, q = (np.clip(share, 0.5 / draws, 1 - 0.5 / draws) for share in pilot.shares(totals, draws))
    # Delta method: the radius is (Φ⁻¹(p) − Φ⁻¹(q))/2, and the shares of two classes of one draw have covariance −pq.
    a, b = (np.sqrt(2 * np.pi) * np.exp(ndtri(share) ** 2 / 2) / 2 for share in (p, q))
    variance = a**2 * p * (1 - p) + b**2 * q * (1 - q) + 2 * a * b * p * q
    return expected + _HOPE * np.sqrt(variance * (1 / draws - 1 / most)) < radius
