"""Integers round(s·Z) with Z a *real* standard normal, exactly: no lattice, no missing tail, nothing to add to epsilon.

Box and Muller take two uniforms to two normals, s·√(−2 ln U)·(cos 2πV, sin 2πV). Here U and V are real numbers of which
the key stream holds the first 63 and 64 bits. That is nearly always enough to know both rounded results: the transform
in float64 is off by less than `TOLERANCE`·s, so a value that is further than this from the next half-integer rounds as
the real one does. The rare other pairs (about one in a million at s = 2¹⁹) get more bits of the same U and V and
interval arithmetic, until the rounding is certain.

So the result is a function of the key stream alone: the same on every machine, whatever its mathematics library rounds.
docs/reference/noise.md has the proof of the tolerance and what follows from exactness for a private release.
"""

__all__ = ["LARGEST_SCALE", "rounded_gaussian"]

import math
from collections.abc import Callable

import numpy as np
import torch
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import mpf_floor, to_int
from torch import Tensor

from securesgd.errors import InvalidInputError
from securesgd.runtime.key_stream import KeyStream

TOLERANCE = 2.0**-42
"""Bound on |computed − real| / s for pairs whose radius is in `RADII`: 1.7 times that of docs/reference/noise.md."""
RADII = (2.0**-10, 5.5)
"""√(−2 ln U) for which the tolerance is proven; beyond, too few of the bits of U are known."""
BLOCK = 2**18
"""Values made at a time: few enough for the cache, many enough for torch to use its threads. Part of the layout of the
words, so another value gives other noise from the same key."""
LARGEST_SCALE = 2.0**34
"""Above it more than one in a hundred values would need more bits. Integers stay far below 2⁵³."""


def rounded_gaussian(stream: KeyStream, count: int, scale: float | Tensor) -> Tensor:
    """Return `count` independent integers round(scale·Z), Z ~ N(0, 1), as a float64 tensor.

    `scale` is a number, or a float64 tensor with one for each.

    Guarantee: for truly random words, P(n) is exactly Φ((n + ½)/scale) − Φ((n − ½)/scale) for every integer n, and the
    entries are independent.
    Assumes: float64 is IEEE 754 and the library's log, sin and cos are within 4 units in the last place; `stream` is
    used for nothing else.
    Raises: InvalidInputError unless 0 < scale <= LARGEST_SCALE.
    """
    smallest, largest = (scale, scale) if isinstance(scale, float) else map(float, scale.aminmax())
    if not 0 < smallest <= largest <= LARGEST_SCALE:
        raise InvalidInputError(f"scale is {smallest!r} to {largest!r}; valid: 0 < scale <= {LARGEST_SCALE:g}")
    even = count + count % 2
    words = torch.from_numpy(stream.words(even).view(np.int64))
    scales = scale if isinstance(scale, float) else torch.cat([scale, scale[: even - count]])
    noise = torch.empty(even, dtype=torch.float64)

    def fill(start: int) -> None:
        part = slice(start, start + BLOCK)
        own = scales if isinstance(scales, float) else scales[part].view(2, -1)
        _fill(noise[part].view(2, -1), words[part].view(2, -1), own, lambda i: stream.child(f"more bits {start} {i}"))

    for start in range(0, even, BLOCK):
        fill(start)
    return noise[:count]


def _fill(into: Tensor, words: Tensor, scale: float | Tensor, more: Callable[[int], KeyStream]) -> None:
    """Write the values of pairs (into[0, i], into[1, i]) made from (words[0, i], words[1, i])."""
    # 63 bits of U, so that small values keep all their digits: they are the tail.
    radius = words[0].bitwise_and_(2**63 - 1).double()
    radius.mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    angle = words[1].double().mul_(math.pi * 2.0**-63)
    pairs = torch.empty_like(into)
    torch.cos(angle, out=pairs[0])
    torch.sin(angle, out=pairs[1])
    pairs.mul_(radius * scale)
    torch.round(pairs, out=into)
    pairs.sub_(into)  # exact: how far from the integer
    limit = 0.5 - scale * TOLERANCE
    if isinstance(limit, float) and _within(radius, *RADII) and _within(pairs, -limit, limit):
        return
    near_half = pairs.abs_() > limit
    doubtful = (radius < RADII[0]) | (radius > RADII[1]) | near_half[0] | near_half[1]
    for i in doubtful.nonzero().flatten().tolist():
        own = [scale, scale] if isinstance(scale, float) else scale[:, i].tolist()
        into[:, i] = torch.tensor(_exact_pair(int(words[0, i]), int(words[1, i]), more(i), own), dtype=torch.float64)


def _within(values: Tensor, low: float, high: float) -> bool:
    smallest, largest = values.aminmax()
    return low <= smallest.item() and largest.item() <= high


def _exact_pair(radius_word: int, angle_word: int, more: KeyStream, scales: list[float]) -> list[float]:
    """Return both values of a pair from its words and as many of the bits that follow in `more` as it takes.

    The words say that 2⁶³·U is in [radius_word, radius_word + 1] and the angle/π·2⁶³ in [angle_word, angle_word + 1].
    """
    interval = MPIntervalContext()
    u, v, bits = radius_word, angle_word, 63
    while True:
        interval.prec = bits + 128
        if u:  # else ln U has no lower bound yet
            radius = interval.sqrt(-2 * interval.log(interval.mpf([u, u + 1]) / 2**bits))
            angle = interval.pi * interval.mpf([v, v + 1]) / 2**bits
            values = (scales[0] * radius * interval.cos(angle), scales[1] * radius * interval.sin(angle))
            ends = [[to_int(mpf_floor(end)) for end in (value + 0.5)._mpi_] for value in values]
            if all(low == high for low, high in ends):
                return [float(low) for low, _ in ends]
        next_u, next_v = (int(word) for word in more.words(2))
        u, v, bits = u << 64 | next_u, v << 64 | next_v, bits + 64
