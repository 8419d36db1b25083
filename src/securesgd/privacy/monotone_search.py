"""The largest integer whose value stays within a limit, for a function that grows and is slow to evaluate."""

__all__ = ["largest_within"]

import itertools
import math
from collections.abc import Callable

Point = tuple[int, float]


def largest_within(
    value_at: Callable[[int], float], limit: float, *, start: int, stride: int, lowest: int, highest: int
) -> int | None:
    """Return the largest k in [lowest, highest] with value_at(k) <= limit, or None if there is none.

    Guarantee: the returned k was evaluated and is within the limit; k + 1 was evaluated and is not, or k is
    `highest`. If value_at is not monotone only the first part and "some k + 1 is not" hold.
    Assumes: value_at(k) >= 0 does not decrease. `start` and `stride` (the first step away from it) only
    change how many evaluations are needed: about five with a good start.
    """
    bracket = _bracket(value_at, limit, min(max(start, lowest), highest), max(1, stride), lowest, highest)
    if isinstance(bracket, int) or bracket is None:
        return bracket
    within, beyond = bracket
    last_within = False
    for attempt in itertools.count():
        gap = beyond[0] - within[0]
        if gap <= 1:
            break
        # Interpolation lands next to the crossing, but always on the same side; so aim a little past it, to
        # the side not hit last. Every third attempt bisects, in case the function bends too much.
        guess, nudge = _interpolated(within, beyond, limit), gap // 1000
        aim = guess + 1 + nudge if last_within else guess - nudge
        k = (within[0] + beyond[0]) // 2 if attempt % 3 == 2 else min(max(aim, within[0] + 1), beyond[0] - 1)
        value = value_at(k)
        last_within = value <= limit
        if last_within:
            within = (k, value)
        else:
            beyond = (k, value)
    return within[0]


def _bracket(
    value_at: Callable[[int], float], limit: float, start: int, stride: int, lowest: int, highest: int
) -> tuple[Point, Point] | int | None:
    """Return points (within, beyond) around the crossing; the answer itself if it is at an end."""
    here = (start, value_at(start))
    if here[1] <= limit:
        while here[0] < highest:
            k = min(here[0] + stride, highest)
            there = (k, value_at(k))
            if not there[1] <= limit:
                return here, there
            here, stride = there, stride * 4
        return highest
    while here[0] > lowest:
        k = max(here[0] - stride, lowest)
        there = (k, value_at(k))
        if there[1] <= limit:
            return there, here
        here, stride = there, stride * 4
    return None


def _interpolated(within: Point, beyond: Point, limit: float) -> int:
    """Return the last k before the crossing if log(value) were linear between the two points."""
    (a, low), (b, high) = within, beyond
    if not (0 < low < limit < high < math.inf):
        return (a + b) // 2
    return a + math.floor((b - a) * math.log(limit / low) / math.log(high / low))
