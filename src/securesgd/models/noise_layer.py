"""The noisy layer: W₁x + b₁, a factor per unit, and Gaussian noise that is fresh for every example and every pass."""

__all__ = ["GaussianNoise", "NoisyLayer", "Scale", "ScaleLearning"]

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_count, validate_positive

_LARGEST_MOVE = 1.0  # of a log-scale in one step: no step multiplies a factor by more than e


@dataclass(frozen=True, kw_only=True)
class ScaleLearning:
    """How a learned r moves: as log-scales, one for each block of a coarse grid first and of finer grids later.

    The grids have `grid`, 2·`grid`, 4·`grid`, … blocks on each side, the last one a block for each unit; each is used
    for the same share of the `steps`. The gradient of a log-scale under noise is small beside that noise, and a
    block adds up the gradients of all its units.
    """

    grid: int
    """Blocks on each side of the first grid."""
    steps: int
    """Steps of the training."""
    rate: float = 1.0
    """Learning rate of the log-scales, in learning rates of the weights."""
    share: float = 1.0
    """Factor of the gradient of the log-scales before all gradients are clipped together: their share of the norm."""

    def __post_init__(self) -> None:
        validate_count("grid", self.grid, at_least=1)
        validate_count("steps", self.steps, at_least=1)
        validate_positive("rate", self.rate)
        validate_positive("share", self.share)

    def sides(self, largest: int) -> list[int]:
        """Return the sides of all grids over `largest` units on a side, the coarsest first."""
        sides = [self.grid]
        while sides[-1] * 2 < largest:
            sides.append(sides[-1] * 2)
        return [side for side in sides if side < largest] + [largest]


class Scale(nn.Module):
    """Multiplies each unit (or channel) by a trainable positive number: the whitened form of a learned r.

    With `learning`, what is trained are the logarithms, by blocks: in training mode the gradient of `values` is
    share · P(dL/dlog values), P the average over each block, and `move` makes of an optimizer's step a step of the
    logarithms. The output is the input times `values` in either mode.
    Raises: InvalidInputError if `learning` is given and there is no height and width, or fewer units than blocks.
    """

    previous: Tensor
    steps_done: Tensor

    def __init__(self, values: Tensor, learning: ScaleLearning | None = None) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())
        self.learning = learning
        if learning is None:
            return
        if values.dim() != 3 or learning.grid > max(values.shape[1:]):
            raise InvalidInputError(
                f"scale_grid is {learning.grid}, but the noisy layer has shape {tuple(values.shape)}; valid: a layer "
                "with height and width, and at most as many blocks on a side"
            )
        self.register_buffer("previous", values.clone())
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the values."""
        if self.learning is None or not self.training:
            return x * self.values
        now = self.values.detach()
        moved = self.block_average(self.values - now)  # zero, and its gradient is the average over each block
        return x * (now * torch.exp(self.learning.share * moved))

    def log_gradient(self, gradient: Tensor) -> Tensor:
        """Return what the gradient [examples, *units] of the factors is to training: that of the log-scales."""
        if self.learning is None or not self.training:
            return gradient
        return self.block_average(gradient * self.values.detach()) * self.learning.share

    def block_average(self, x: Tensor) -> Tensor:
        """Return x [..., height, width] with every entry replaced by the average of its block in the present grid."""
        assert self.learning is not None
        sides = self.learning.sides(max(x.shape[-2:]))
        stage = min(len(sides) - 1, int(self.steps_done) * len(sides) // self.learning.steps)
        if stage == len(sides) - 1:
            return x
        rows, columns = (_averaging(size, sides[stage]).to(x) for size in x.shape[-2:])
        return rows @ x @ columns

    @torch.no_grad()
    def move(self) -> None:
        """Make of the optimizer's step since the last call one of the log-scales; post-processing of what it got."""
        if self.learning is None:
            return
        step = self.block_average(self.values - self.previous) * self.learning.rate
        self.values.copy_(self.previous * torch.exp(step.clamp(-_LARGEST_MOVE, _LARGEST_MOVE)))
        self.steps_done += 1

    @torch.no_grad()
    def settle(self) -> None:
        """Take the values as they are for those the next step starts from."""
        if self.learning is not None:
            self.previous.copy_(self.values)

    def extra_repr(self) -> str:
        """Return how the values are learned, if not as they are."""
        return "" if self.learning is None else repr(self.learning)


def _averaging(size: int, blocks: int) -> Tensor:
    """Return the matrix that replaces each of `size` entries by the average of its block."""
    block = torch.arange(size) * min(blocks, size) // size
    same = (block[:, None] == block[None, :]).double()
    return same / same.sum(dim=1, keepdim=True)


class GaussianNoise(nn.Module):
    """Adds N(0, std²), drawn afresh at every call from `generator` (None: torch's own)."""

    std: Tensor

    def __init__(self, std: Tensor) -> None:
        super().__init__()
        if not bool((torch.isfinite(std) & (std > 0)).all()):
            raise InvalidInputError("the noise of every unit must be finite and > 0")
        self.register_buffer("std", std.clone())
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus noise, in the memory layout of x: in another one, every layer after it would be slower."""
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        shape = x.permute(0, 2, 3, 1).shape if last else x.shape
        noise = torch.randn(shape, generator=self.generator, device=x.device, dtype=x.dtype)
        return torch.addcmul(x, noise.permute(0, 3, 1, 2) if last else noise, self.std)


class NoisyLayer(nn.Module):
    """The first layer with its noise. `given` replaces the layer's noisy output, for draws from a computed W₁x + b₁."""

    def __init__(self, layer: nn.Module, noise: GaussianNoise, scale: Scale | None = None) -> None:
        super().__init__()
        self.layer, self.scale, self.noise = layer, scale, noise
        self.given: Tensor | None = None

    def clean(self, x: Tensor) -> Tensor:
        """Return the layer's output before noise: the part that is the same for every draw."""
        h = self.layer(x.flatten(1) if isinstance(self.layer, nn.Linear) else x)
        return h if self.scale is None else self.scale(h)

    def forward(self, x: Tensor) -> Tensor:
        """Return the noisy output."""
        return self.noise(self.clean(x)) if self.given is None else self.given
