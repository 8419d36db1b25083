"""Votes: how often each class of a noisy network wins over draws of noise.

A draw is a function of (seed or secret key, purpose, stream, number of the draw) and of nothing else.
"""

__all__ = ["BLOCK", "NoiseSource", "NoiseStream", "Votes", "draws_per_pass", "smoothed_votes", "stream_number"]

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securesgd.certificates.validate import require_same_function, validate_indices, validate_model
from securesgd.models.predict import Scores, tally
from securesgd.models.split_network import SplitNetwork
from securesgd.validate import Array, validate_count

BLOCK = 32  # draws that are made at once
_STREAM_BITS = 4

Purpose = Literal["selection", "counted", "recheck"]


def stream_number(index: ArrayLike) -> NDArray[np.int64]:
    """Return the stream of each index; every regular choice of examples is spread over all streams."""
    # Multiplicative hashing (Knuth, TAOCP 3, 6.4): the top bits of index · 2³²/φ.
    mixed = (np.asarray(index, dtype=np.uint64) * np.uint64(0x9E3779B1)) % np.uint64(2**32)
    return (mixed >> np.uint64(32 - _STREAM_BITS)).astype(np.int64)


@dataclass(frozen=True)
class NoiseSource:
    """The source of all draws of one certification: repeatable by its seed, or 128 random bits of the system's own.

    Votes are no release of private data, so their normals need not be exact: they are Box and Muller's in the network's
    type, from 32-bit uniforms (up to 6.7 standard deviations), which is three times as fast as numpy's.
    """

    key: int = field(repr=False)

    @classmethod
    def from_seed(cls, seed: int | None) -> "NoiseSource":
        """Return the source that a seed gives, or without a seed a fresh one that nobody can predict."""
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


_PASS_BYTES = 3 * 2**19  # of the layer's output: what stays in the cache of one core
_MOST_DRAWS = 512


def draws_per_pass(network: SplitNetwork) -> int:
    """Return how many draws of one example go through the network at once: whole blocks that fit the cache."""
    size = math.prod(network.shape) * network.dtype.itemsize
    return max(BLOCK, min(_PASS_BYTES // size, _MOST_DRAWS) // BLOCK * BLOCK)


class Votes:
    """The votes of some examples so far; `draw` adds more. Memory does not grow with the draws.

    Guarantee: an example's totals after n draws are the same bits whatever other examples are here: its noise depends
    on its index, and it goes through the network on its own.
    """

    def __init__(
        self,
        network: SplitNetwork,
        inputs: Tensor,
        indices: NDArray[np.int64],
        *,
        source: NoiseSource,
        purpose: Purpose,
        scores: Scores = "votes",
    ) -> None:
        self._network, self._source, self._purpose, self._scores = network, source, purpose, scores
        self._streams = stream_number(indices)
        with torch.inference_mode():
            self._clean = torch.cat([network.clean(x.unsqueeze(0)) for x in inputs])
        self._per_pass = draws_per_pass(network)
        self.totals: Array = np.zeros((len(indices), 0))
        """[examples, classes]; no classes before the first draw."""
        self.drawn: NDArray[np.int64] = np.zeros(len(indices), dtype=np.int64)
        """Draws taken by each example."""

    def draw(
        self, examples: NDArray[np.int64], until: int, on_draws: Callable[[int], None] = lambda draws: None
    ) -> Array:
        """Take all `examples`, which have had equally many draws, to `until` draws; return their totals.

        `on_draws` gets the number of draws made, all examples together, after each pass.
        """
        start = int(self.drawn[examples[0]])
        assert (self.drawn[examples] == start).all()
        for stream in np.unique(self._streams[examples]):
            members = examples[self._streams[examples] == stream]
            more = self._count(members, int(stream), start, until, on_draws)
            if self.totals.shape[1] == 0:
                self.totals = np.zeros((len(self.drawn), more.shape[1]))
            self.totals[members] += more
        self.drawn[examples] = until
        return self.totals[examples]

    @torch.inference_mode()
    def _count(
        self, members: NDArray[np.int64], stream: int, start: int, until: int, on_draws: Callable[[int], None]
    ) -> Array:
        """Return the votes of draws start..until−1 for examples of one stream."""
        noise = NoiseStream(self._source, self._purpose, stream, self._network.noise_shape, self._network.dtype)

        def spread() -> Iterator[Tensor]:
            for at in range(start, until, self._per_pass):
                normals = noise.draws(at, min(at + self._per_pass, until))
                yield self._network.spread(normals).unsqueeze(0)
                on_draws(len(normals) * len(members))

        return tally(self._network, self._clean[torch.from_numpy(members)], spread(), scores=self._scores).numpy()


def smoothed_votes(
    model: nn.Module,
    inputs: Tensor,
    draws: int,
    *,
    seed: int = 0,
    indices: ArrayLike | None = None,
    input_range: tuple[float, float] | None = None,
) -> Array:
    """Return how many of `draws` fresh noisy passes each class wins at each point, [points, classes].

    Guarantee: independent of the draws of every certificate, also one with the same seed; the same arguments give the
    same votes. So they may be used to look for a point within a certified radius where another class wins.
    Raises: InvalidInputError as `certify` does.

    Points with the same index get the same noise: an attacked input may be compared with its original on it. By default
    inputs may have any values: a certificate speaks of the whole ball, not only of its part in the valid range.
    """
    validate_count("draws", draws, 1)
    noisy, network = validate_model(model, inputs, input_range)
    places = validate_indices(indices, len(inputs), unique=False)
    require_same_function(noisy, inputs, 0.0)
    votes = Votes(network, inputs, places, source=NoiseSource.from_seed(seed), purpose="recheck")
    return votes.draw(np.arange(len(inputs)), draws)
