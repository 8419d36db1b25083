"""The Gaussian mechanism as it runs on a computer: a vector rounded to a public grid, plus integer noise.

    released = grid · ( round(values / grid) + round(s·Z) ),     s = noise_multiplier · bound / grid,  Z ~ N(0, I)

An integer can be moved through `round`, so this is `round(round(values/grid) + s·Z)`: a function of the *real-valued*
Gaussian mechanism on integers, whose accounting therefore holds as it is. Low-order bits say nothing, the tail is
whole, and all that is computed from the result in floating point afterwards is post-processing.

What it costs: rounding moves each coordinate by up to half a grid step, so two vectors that differ by `sensitivity` may
differ by bound = sensitivity + grid·√size after it; the noise is calibrated to `bound`. Proof: docs/reference/noise.md.
"""

__all__ = ["GridRelease", "to_grid_"]

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from securesgd.errors import InvalidInputError
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.rounded_gaussian import LARGEST_SCALE, rounded_gaussian

FINENESS = 9
"""grid·√size <= 2⁻⁹ of the sensitivity: rounding costs at most 0.2 % more noise."""
SENSITIVITIES = (2.0**-800, 2.0**800)
"""Far enough from the ends of float64 for a grid, its inverse and all products with them to be normal numbers."""
_UP = 1 + 2.0**-48  # covers the rounding of a handful of float64 operations


@dataclass(frozen=True, kw_only=True)
class GridRelease:
    """Releases of vectors with `size` coordinates that one example moves by at most `sensitivity` in l2.

    Guarantee: `release` is a Gaussian mechanism of noise multiplier `noise_multiplier`, in exact arithmetic and on this
    computer alike, provided `stream` is secret and used once.
    Raises: InvalidInputError for numbers out of range.
    """

    sensitivity: float
    noise_multiplier: float
    size: int

    def __post_init__(self) -> None:
        if not SENSITIVITIES[0] <= self.sensitivity <= SENSITIVITIES[1]:
            low, high = SENSITIVITIES
            raise InvalidInputError(
                f"sensitivity is {self.sensitivity!r}; valid: a number from {low:.3g} to {high:.3g}"
            )
        if not 0 < self.scale <= LARGEST_SCALE:
            most = LARGEST_SCALE / 2 ** (FINENESS + 1 + self._digits)
            raise InvalidInputError(
                f"noise_multiplier is {self.noise_multiplier!r}; valid for {self.size} coordinates: above 0, up to "
                f"{most:.3g}"
            )

    @property
    def _digits(self) -> int:
        return math.ceil(math.log2(max(1, self.size)) / 2)

    @property
    def grid(self) -> float:
        """The public grid: a power of two, so that dividing by it is exact."""
        return 2.0 ** (math.floor(math.log2(self.sensitivity)) - FINENESS - self._digits)

    @property
    def bound(self) -> float:
        """How far one example moves the rounded vector, in l2."""
        return (self.sensitivity + self.grid * math.sqrt(self.size)) * _UP

    @property
    def scale(self) -> float:
        """Standard deviation of the noise in grid steps, before it is rounded."""
        return self.noise_multiplier * (self.bound / self.grid) * _UP

    @property
    def std(self) -> float:
        """Standard deviation of the noise in the units of the values."""
        return self.scale * self.grid

    def release(self, values: Sequence[Tensor], stream: KeyStream, *, divisor: float = 1.0) -> list[Tensor]:
        """Return the noisy vector divided by `divisor`, in the shapes and types of `values`, which are used up.

        Only the integers are the release; the division and the type are post-processing.
        """
        total = sum(tensor.numel() for tensor in values)
        if total != self.size:
            raise InvalidInputError(f"values have {total} coordinates; valid: {self.size}")
        noise, start = rounded_gaussian(stream, total, self.scale), 0
        released = []
        for tensor in values:
            integers = noise[start : start + tensor.numel()].view(tensor.shape).to(tensor.device)
            integers.add_(to_grid_(tensor, self.grid))
            released.append(torch.mul(integers, self.grid / divisor, out=tensor))
            start += tensor.numel()
        return released


def to_grid_(values: Tensor, grid: float | Tensor) -> Tensor:
    """Return the integers round(values / grid) in float64, for a grid of powers of two; float64 `values` are used up.

    In float64, since a shorter type has no room for the inverse of a fine grid: 0 · inf would tell zeros from others.
    Integers beyond 2⁵³ are as good: float64 addition of the noise is then the *rounded* exact sum, a function of it.
    """
    return values.double().mul_(1 / grid).round_()
