"""The largest step of a grid at which something holds, for many examples at once: guessed fast, then proven."""

__all__ = ["proven_steps", "secant_steps"]

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securesgd.validate import Array

Steps = NDArray[np.int64]
_ROUNDS = 24  # after which an example keeps the best step it has
_STRIDE = 8  # how many times as far a step of extrapolation may go


def secant_steps(margin: Callable[[NDArray[np.intp], Steps], Array], at_zero: Array, start: Steps, most: int) -> Steps:
    """Return, per example, about the largest step in 0 … most with a positive margin.

    Guarantee: every step returned that is not 0 was passed to `margin`, which gave a positive number.
    `margin(examples, steps)` is asked for those examples only that are still open, and taken to fall with the step;
    `at_zero` is about what it is at 0. The step is extrapolated by the secant through 0 until the margin is negative,
    then found by the Illinois rule with bisections between.
    """
    low, high = np.zeros_like(start), np.full_like(start, most + 1)
    high[~(at_zero > 0)] = 1  # nothing holds at 0: nothing to look for
    low_value, high_value = at_zero.copy(), np.full(len(start), np.nan)  # halved by the Illinois rule
    last, slope, probe = np.zeros(len(start)), np.zeros(len(start)), np.clip(start, 1, most)
    for turn in range(_ROUNDS):
        open_ = np.flatnonzero(high - low > 1)
        if not len(open_):
            break
        step = np.clip(probe[open_], low[open_] + 1, high[open_] - 1)
        value = margin(open_, step)
        holds = value > 0
        up, down = open_[holds], open_[~holds]
        high_value[up] /= np.where(last[up] > 0, 2, 1)
        low_value[down] /= np.where(last[down] < 0, 2, 1)
        low[up], low_value[up], slope[up] = step[holds], value[holds], (at_zero[up] - value[holds]) / step[holds]
        high[down], high_value[down] = step[~holds], value[~holds]
        last[up], last[down] = 1, -1
        with np.errstate(invalid="ignore", divide="ignore"):
            share = low_value / (low_value - high_value)
            further = low + np.fmin(low_value / np.maximum(slope, 0), (_STRIDE - 1) * np.maximum(low, 1))
        share = np.where(np.isfinite(share) & (turn % 5 != 4), np.clip(share, 0.01, 0.99), 0.5)
        between = low + np.rint(share * (high - low))
        probe = np.where(high > most, np.ceil(np.clip(further, 0, most)), between).astype(np.int64)
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
