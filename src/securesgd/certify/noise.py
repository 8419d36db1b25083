"""The noise of a certification: a function of (seed or secret key, purpose, stream, draw) and of nothing else.

An example belongs to one of sixteen streams by its index in the data set. Examples of a stream share their draws, so
that noise is made once for many of them; the draws of one example are independent of each other, which is all its
certificate needs. Since nothing depends on which examples are certified together, in what order or by how many
processes, neither does any result.
"""

__all__ = ["BLOCK", "NoiseStream", "noise_source", "stream_of"]

import secrets
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from securesgd.training.randomness import Randomness

BLOCK = 32  # draws that are made at once
_STREAM_BITS = 4

Purpose = Literal["selection", "counted", "recheck"]


def stream_of(index: ArrayLike) -> NDArray[np.int64]:
    """Return the stream of each index; every regular choice of examples is spread over all streams."""
    # Multiplicative hashing (Knuth, TAOCP 3, 6.4): the top bits of index · 2³²/φ.
    mixed = (np.asarray(index, dtype=np.uint64) * np.uint64(0x9E3779B1)) % np.uint64(2**32)
    return (mixed >> np.uint64(32 - _STREAM_BITS)).astype(np.int64)


def noise_source(seed: int | None) -> Randomness:
    """Return what all draws of one certification come from: a seed's, or, without one, 128 bits of the system's own."""
    return Randomness(secrets.randbits(128)) if seed is None else Randomness.from_seed(seed)


class NoiseStream:
    """The draws of one stream: draw i is always the same vector of independent standard normals."""

    def __init__(
        self, source: Randomness, purpose: Purpose, stream: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        named = source.stream(f"certify {purpose} {stream}")
        self._randomness, self.shape, self.dtype = Randomness(int(named, 16)), shape, dtype

    def draws(self, start: int, stop: int) -> Tensor:
        """Return draws start..stop−1, [stop − start, *shape]. `start` must be at the beginning of a block."""
        assert start % BLOCK == 0
        normals = torch.zeros(stop - start, *self.shape, dtype=self.dtype)
        for at in range(start, stop, BLOCK):
            whole = torch.zeros(BLOCK, *self.shape, dtype=self.dtype)
            self._randomness.add_noise([whole], 1.0, at // BLOCK)
            normals[at - start : at - start + BLOCK] = whole[: stop - at]
        return normals
