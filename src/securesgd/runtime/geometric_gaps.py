"""Poisson samples of large data sets by the gaps between their elements: as many draws as elements, not as examples.

The gap G from one element to the next has P(G <= j) = 1 − (1−q)^j. Words of 128 bits are compared with a table of these
probabilities as whole numbers, so no logarithm is rounded. The table ends at L; a word beyond it passes L examples by,
and the next word goes on from there, since the law has no memory.

How exact. Every entry is within 1.01·2⁻¹²⁸ of the probability, so one draw is within L·2⁻¹²⁸ of its law in total
variation, and a sample within n·L·2⁻¹²⁸ for an expected number n <= qN + N/L + 2 of draws. With L <= 7/q + 1 that is
(9N + 2L)·2⁻¹²⁸.
"""

__all__ = ["MOST_GAP", "gap_sample", "gap_table"]

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from securesgd.runtime.key_stream import KeyStream

MOST_GAP = 65_536
"""Entries of a table: one of a megabyte, made in 30 ms once for a sampling rate."""
_BITS = 256  # of the powers of 1 − q


def gap_sample(stream: KeyStream, count: int, rate: float) -> NDArray[np.int64]:
    """Return which of `count` examples are in a sample, in order: each with probability `rate`, independently.

    Guarantee: within (9·count + 131,072)·2⁻¹²⁸ of that law in total variation, for uniform words of `stream`; time and
    memory are those of the sample, and of count/65,536 words more.
    Assumes: 0 <= rate <= 1. Above 1/2, the examples that are left out are drawn, with the rate 1 − rate, which is exact
    in floating point.
    """
    if rate >= 1 or rate <= 0 or count == 0:
        return np.arange(count if rate >= 1 else 0)
    if rate > 0.5:
        included = np.ones(count, bool)
        included[gap_sample(stream, count, 1 - rate)] = False
        return np.flatnonzero(included)
    high, low = gap_table(rate)
    passed = len(high)  # examples that a word beyond the table passes by
    advance = -math.expm1(passed * math.log1p(-rate)) / rate  # of one word, on average
    chosen, position = [], -1
    while position < count - 1:
        expected = (count - 1 - position) / advance
        words = stream.words(2 * math.ceil(expected + 6 * math.sqrt(expected) + 8))
        entries = _first_above(high, low, words[0::2], words[1::2])
        positions = position + np.cumsum(np.minimum(entries + 1, passed))
        position = int(positions[-1])
        chosen.append(positions[(entries < passed) & (positions < count)])
    return np.concatenate(chosen) if chosen else np.arange(0)


@lru_cache(maxsize=4)
def gap_table(rate: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the high and the low 64 bits of P(gap <= j) in units of 2⁻¹²⁸, for j = 1, 2, …, up to `MOST_GAP`.

    Guarantee: every entry is within 1.01 units of the probability for the very number `rate`. The powers are taken in
    whole numbers, each rounded down by less than 2⁻²⁵⁶, so the last of them is off by less than 2⁻²³⁸.
    Assumes: 0 < rate <= 1/2. A table ends where one gap in a thousand is longer.
    """
    numerator, denominator = rate.as_integer_ratio()
    one = 1 << _BITS
    stays = one - (numerator << _BITS) // denominator  # 1 − q, rounded up by less than 2⁻²⁵⁶
    length = math.ceil(min(MOST_GAP, 7 / rate))
    power, entries = one, bytearray()
    for _ in range(length):
        power = power * stays >> _BITS
        entries += (one - power >> _BITS - 128).to_bytes(16, "big")
    table = np.frombuffer(entries, dtype=">u8").astype(np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def _first_above(
    high: NDArray[np.uint64], low: NDArray[np.uint64], word_high: NDArray[np.uint64], word_low: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return for each word of 128 bits the index of the first entry above it; the table's length if there is none."""
    found = np.searchsorted(high, word_high, side="left").astype(np.int64)
    for i in np.flatnonzero(high.take(found, mode="clip") == word_high):  # one word in 2⁴⁸: the low halves decide
        while found[i] < len(high) and (high[found[i]], low[found[i]]) <= (word_high[i], word_low[i]):
            found[i] += 1
    return found
