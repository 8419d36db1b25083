"""The largest step of a grid at which something holds, for many examples at once: guessed fast, then proven."""

__all__ = ["guess_steps", "proven_steps"]

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securesgd.validate import Array

Steps = NDArray[np.int64]
_ROUNDS = 24  # of guessing; what is still open then is left to the proof's own search


def guess_steps(margin: Callable[[NDArray[np.intp], Steps], Array], start: Steps, most: int) -> Steps:
    """Return, per example, about the largest step in 0 … most with a positive margin.

    `margin(examples, steps)` is asked for those examples only that are still open. It is taken to fall with the step:
    the step is doubled until the margin is negative, then found by the Illinois rule with bisections between.
    """
    count = len(start)
    low, high = np.zeros(count, np.int64), np.full(count, most + 1)
    low_value, high_value = margin(np.arange(count), low), np.full(count, np.nan)
    high[~(low_value > 0)] = 1  # nothing holds at 0: nothing to look for
    probe = np.clip(start, 1, most)
    for turn in range(_ROUNDS):
        open_ = np.flatnonzero(high - low > 1)
        if not len(open_):
            break
        step = np.clip(probe[open_], low[open_] + 1, high[open_] - 1)
        value = margin(open_, step)
        holds = value > 0
        up, down = open_[holds], open_[~holds]
        low[up], low_value[up], high_value[up] = step[holds], value[holds], high_value[up] / 2
        high[down], high_value[down], low_value[down] = step[~holds], value[~holds], low_value[down] / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.clip(low_value / (low_value - high_value), 0.02, 0.98)
        share = np.where(np.isfinite(share) & (turn % 4 != 3), share, 0.5)
        probe = np.where(np.isnan(high_value) & (high > most), 2 * low, low + np.rint(share * (high - low)))
        probe = probe.astype(np.int64)
    return low


def proven_steps(proves: Callable[[NDArray[np.intp], Steps], NDArray[np.bool_]], start: Steps, most: int) -> Steps:
    """Return, per example, a step in 1 … most that `proves` holds for while it does not for the next, or 0.

    Guarantee: every step returned that is not 0 was passed to `proves`, which said yes.
    """
    low, high, stride = np.zeros_like(start), np.full_like(start, most + 1), np.ones_like(start)
    probe = np.clip(start, 1, most)
    while len(open_ := np.flatnonzero(high - low > 1)):
        holds = proves(open_, probe[open_])
        low[open_[holds]], high[open_[~holds]] = probe[open_[holds]], probe[open_[~holds]]
        climbing, sinking = high > most, low == 0
        jump = np.where(climbing, low + stride, np.where(sinking, high - stride, (low + high) // 2))
        probe, stride = np.clip(jump, low + 1, np.maximum(high - 1, low + 1)), 2 * stride
    return low
