"""The smoothed classifier at given points, by draws that no certificate has used."""

__all__ = ["smoothed_votes"]

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, nn

from securesgd.certificates.validate import admitted, indices_of, require_same_function
from securesgd.certificates.votes import NoiseSource, Votes
from securesgd.models.noisy import NoisyNetwork
from securesgd.validate import Array, validate_count


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
    network = admitted(model, inputs, input_range)
    assert isinstance(model, NoisyNetwork)
    require_same_function(model, inputs, 0.0)
    votes = Votes(
        network, inputs, indices_of(indices, len(inputs), unique=False), source=NoiseSource.of(seed), purpose="recheck"
    )
    return votes.draw(np.arange(len(inputs)), draws)
