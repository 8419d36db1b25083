"""The largest step of a grid at which a margin is positive, for many examples at once: guessed fast, then proven."""

__all__ = ["guessed_crossing", "proven_steps"]

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securesgd.validate import Array

Steps = NDArray[np.int64]
_ROUNDS = 24  # of guesses, after which an example keeps the one it has
_STRIDE = 8  # how many times as far one guess may go
_CLOSE = 4  # steps: a secant that moves no farther has found the crossing …
_LOCAL = 0.25  # … if its points are no farther apart than this share of the radius
_DOUBT = 0.25  # steps by which the crossing may be farther than it looks
_NEWTON = 6  # rounds of proofs by the slope, after which halves decide


def guessed_crossing(
    margin: Callable[[NDArray[np.intp], Array], Array], at_zero: Array, start: Array, most: int
) -> tuple[Array, Array]:
    """Return, per example, about where between 0 and `most` its margin crosses 0, and how much it falls per step there.

    `margin(examples, steps)` is asked for those examples only that are still open, also between steps; `at_zero` is
    what it is at 0. Secants through the last two points, kept inside what is known to hold and to fail, or else halves.
    The slope is NaN where none was seen.
    """
    low, high = np.zeros(len(start)), np.full(len(start), most + 1.0)
    before, value_before = np.zeros(len(start)), at_zero.astype(np.float64)
    crossing, fall, probe = np.zeros(len(start)), np.full(len(start), np.nan), np.clip(start, 1.0, most)
    open_ = np.flatnonzero(at_zero > 0)
    for _ in range(_ROUNDS):
        if not len(open_):
            break
        at = probe[open_]
        value = margin(open_, at)
        holds = value > 0
        low[open_[holds]], high[open_[~holds]] = at[holds], at[~holds]
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (value_before[open_] - value) / (at - before[open_])
            target = np.where(slope > 0, at + value / slope, np.nan)
        local = np.abs(at - before[open_]) <= _LOCAL * at
        least, largest = low[open_], high[open_]
        climbing, inside = largest > most, (target > least) & (target < largest)
        middle = np.where(climbing, _STRIDE * at, (least + largest) / 2)
        onward = np.minimum(np.where(inside, target, middle), np.minimum(_STRIDE * at, most))
        before[open_], value_before[open_], probe[open_] = at, value, onward
        crossing[open_], fall[open_] = np.where(inside, target, least), np.where(slope > 0, slope, np.nan)
        found = inside & (np.abs(target - at) <= _CLOSE) & local
        open_ = open_[~(found | (holds & (at >= most)) | (largest - least <= 1))]
    return crossing, fall


def proven_steps(
    margin: Callable[[NDArray[np.intp], Steps], Array], crossing: Array, fall: Array, known: Steps, most: int
) -> Steps:
    """Return, per example, about the largest step in 0 … most with a positive margin.

    Guarantee: every step returned is the one `known` to hold, or was passed to `margin`, which gave a positive number.
    The first step tried is that of the guess; the margin there and its `fall` per step say which may be the largest.
    """
    low, high = known.copy(), np.full_like(known, most + 1)
    probe = np.clip(np.floor(crossing + _DOUBT), low + 1, most).astype(np.int64)
    stride, turn = np.ones_like(known), 0
    while len(open_ := np.flatnonzero(high - low > 1)):
        at = probe[open_]
        value = margin(open_, at)
        holds = value > 0
        low[open_[holds]], high[open_[~holds]] = at[holds], at[~holds]
        with np.errstate(invalid="ignore", divide="ignore"):
            move = np.floor(value / fall[open_] + _DOUBT)
        seen = np.isfinite(move)
        stays = open_[seen & holds & (move == 0)]
        high[stays] = low[stays] + 1  # the next step would fail by more than doubt
        move = np.where(seen, move, np.where(holds, stride[open_], -stride[open_]))
        between = (low[open_] + high[open_]) // 2
        onward = between if turn >= _NEWTON else at + np.clip(move, -most, most).astype(np.int64)
        probe[open_] = np.clip(onward, low[open_] + 1, np.maximum(high[open_] - 1, low[open_] + 1))
        stride, turn = 2 * stride, turn + 1
    return low
