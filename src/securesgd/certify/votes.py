"""Running totals of examples, many draws at a time."""

__all__ = ["Votes", "draws_per_pass"]

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.certify.noise import BLOCK, NoiseSource, NoiseStream, Purpose, stream_of
from securesgd.models.cut import CutNetwork
from securesgd.models.predict import Scores, tally
from securesgd.theory.validation import Array

_PASS_BYTES = 3 * 2**19  # of the layer's output: what stays in the cache of one core
_MOST_DRAWS = 512


def draws_per_pass(network: CutNetwork) -> int:
    """Return how many draws of one example go through the network at once: whole blocks that fit the cache."""
    size = math.prod(network.shape) * network.dtype.itemsize
    return max(BLOCK, min(_PASS_BYTES // size, _MOST_DRAWS) // BLOCK * BLOCK)


class Votes:
    """What the classes of some examples got so far, and more of it on demand. Memory does not grow with the draws.

    Guarantee: an example's totals after n draws are the same bits whatever other examples are here: its noise depends
    on its index, and it goes through the network on its own.
    """

    def __init__(
        self,
        network: CutNetwork,
        inputs: Tensor,
        indices: NDArray[np.int64],
        *,
        source: NoiseSource,
        purpose: Purpose,
        scores: Scores = "votes",
    ) -> None:
        self._network, self._source, self._purpose, self._scores = network, source, purpose, scores
        self._streams = stream_of(indices)
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
            more = self._more(members, int(stream), start, until, on_draws)
            if self.totals.shape[1] == 0:
                self.totals = np.zeros((len(self.drawn), more.shape[1]))
            self.totals[members] += more
        self.drawn[examples] = until
        return self.totals[examples]

    @torch.inference_mode()
    def _more(
        self, members: NDArray[np.int64], stream: int, start: int, until: int, on_draws: Callable[[int], None]
    ) -> Array:
        """Return what draws start..until−1 give to examples of one stream."""
        noise = NoiseStream(self._source, self._purpose, stream, self._network.noise_shape, self._network.dtype)

        def spread() -> Iterator[Tensor]:
            for at in range(start, until, self._per_pass):
                normals = noise.draws(at, min(at + self._per_pass, until))
                yield self._network.spread(normals).unsqueeze(0)
                on_draws(len(normals) * len(members))

        return tally(self._network, self._clean[torch.from_numpy(members)], spread(), scores=self._scores).numpy()
