"""Fixed weights of features: how much the gradient of a head listens to each, decided without a look at data.

Clipped gradients have a length to share out, and the noise of privacy is equal in all directions. So what says little
should be small: the head is then trained as if there were fewer features.
"""

__all__ = ["ChannelWeights", "FrequencyWeights"]

import math

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.validate import Array

_HALF_POWER = 2.0  # half waves across the map: the square of their weight is half of that of the mean


class ChannelWeights(nn.Module):
    """Multiplies each channel by a fixed positive number.

    Guarantee: nothing is learned, and each image is treated by itself.
    Raises: InvalidInputError if a number is not positive.
    """

    weights: Tensor

    def __init__(self, weights: Array) -> None:
        super().__init__()
        if not bool((np.isfinite(weights) & (weights > 0)).all()):
            raise InvalidInputError(f"the weights of channels are {weights.tolist()}; valid: positive numbers")
        scaled = weights / math.sqrt(np.square(weights).mean())
        self.register_buffer("weights", torch.as_tensor(scaled, dtype=torch.get_default_dtype())[:, None, None])

    def extra_repr(self) -> str:
        return f"{len(self.weights)}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted channels."""
        return x * self.weights


class FrequencyWeights(nn.Module):
    """Maps each channel [height, width] to its cosine transform, with less weight on higher frequencies.

    What objects of one class have in common is where features are roughly, not to the pixel. The coefficient of u and v
    half waves across the map is multiplied by (1 + (u² + v²)/4)^(−1/2).
    Guarantee: nothing is learned, each image is treated by itself, and no l2 distance grows.
    """

    rows: Tensor
    columns: Tensor
    weights: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        u, v = np.arange(height)[:, None], np.arange(width)
        weights = (1 + (u**2 + v**2) / _HALF_POWER**2) ** -0.5
        for name, values in (("rows", _cosines(height)), ("columns", _cosines(width)), ("weights", weights)):
            # Not in the weights of a run: the sizes say it all.
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.get_default_dtype()), persistent=False)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.weights.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted coefficients of each channel."""
        return self.rows @ x @ self.columns.T * self.weights


def _cosines(size: int) -> Array:
    """Return the orthonormal matrix of the cosine transform (DCT-II)."""
    matrix = np.cos(math.pi * np.arange(size)[:, None] * (np.arange(size) + 0.5) / size) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return np.asarray(matrix)
