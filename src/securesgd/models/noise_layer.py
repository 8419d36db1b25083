"""The noisy layer: W₁x + b₁, a factor per unit, and Gaussian noise that is fresh for every example and every pass."""

__all__ = ["GaussianNoise", "NoisyLayer", "Scale"]

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError


class Scale(nn.Module):
    """Multiplies each unit (or channel) by a trainable positive number: the whitened form of a learned r."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the values."""
        return x * self.values


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
