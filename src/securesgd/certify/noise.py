"""The noise of a certification: a function of (seed or secret key, purpose, stream, draw) and of nothing else.

An example belongs to one of sixteen streams by its index in the data set. Examples of a stream share their draws, so
that noise is made once for many of them; the draws of one example are independent of each other, which is all its
certificate needs. Since nothing depends on which examples are certified together, in what order or by how many
processes, neither does any result.
"""

__all__ = ["BLOCK", "NoiseSource", "NoiseStream", "stream_of"]

import hashlib
import math
import secrets
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

BLOCK = 32  # draws that are made at once
_STREAM_BITS = 4

Purpose = Literal["selection", "counted", "recheck"]


def stream_of(index: ArrayLike) -> NDArray[np.int64]:
    """Return the stream of each index; every regular choice of examples is spread over all streams."""
    # Multiplicative hashing (Knuth, TAOCP 3, 6.4): the top bits of index · 2³²/φ.
    mixed = (np.asarray(index, dtype=np.uint64) * np.uint64(0x9E3779B1)) % np.uint64(2**32)
    return (mixed >> np.uint64(32 - _STREAM_BITS)).astype(np.int64)


@dataclass(frozen=True)
class NoiseSource:
    """What all draws of one certification come from. Repeatable by its seed; without one, 128 bits of the system's own.

    Votes are no release of private data, so their normals need not be exact: they are Box and Muller's in the network's
    type, from 32-bit uniforms (up to 6.7 standard deviations), which is three times as fast as numpy's.
    """

    key: int = field(repr=False)

    @classmethod
    def of(cls, seed: int | None) -> "NoiseSource":
        """Return the source of a seed, or a fresh one that nobody can predict."""
        if seed is None:
            return cls(secrets.randbits(128))
        return cls(int.from_bytes(hashlib.sha256(f"securesgd seed {int(seed)}".encode()).digest()[:16]))

    def child(self, name: str) -> "NoiseSource":
        """Return the source called `name`, independent of all others."""
        return NoiseSource(int.from_bytes(hashlib.sha256(self.key.to_bytes(16) + name.encode()).digest()[:16]))

    def normals(self, block: int, count: int, dtype: torch.dtype) -> Tensor:
        """Return block `block` of independent standard normals; always the same, whatever was drawn before."""
        place = np.random.SeedSequence(self.key, spawn_key=(1, block))
        half = -(-count // 2)
        raw = torch.from_numpy(np.random.SFC64(place).random_raw(half).view(np.uint32)).to(dtype)
        radius, angle = raw[:half], raw[half:]
        # (x + ½)·2⁻³² is never 0, and small values keep all their digits: they are the tail.
        radius.add_(0.5).mul_(2.0**-32).log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
        angle.mul_(2 * math.pi * 2.0**-32)
        return torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())])[:count]


class NoiseStream:
    """The draws of one stream: draw i is always the same vector of independent standard normals."""

    def __init__(
        self, source: NoiseSource, purpose: Purpose, stream: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._source, self.shape, self.dtype = source.child(f"certify {purpose} {stream}"), shape, dtype

    def draws(self, start: int, stop: int) -> Tensor:
        """Return draws start..stop−1, [stop − start, *shape]. `start` must be at the beginning of a block."""
        assert start % BLOCK == 0
        size = BLOCK * math.prod(self.shape)
        blocks = [self._source.normals(at // BLOCK, size, self.dtype) for at in range(start, stop, BLOCK)]
        return torch.cat(blocks).view(-1, *self.shape)[: stop - start] if blocks else torch.zeros(0, *self.shape)
