"""Keeps the sensitivity of the noisy layer where it was asked to be, step by step.

Weights move, and with them Δ. After every step the layer is scaled back to the wanted Δ: post-processing of released
weights, so it costs no privacy. The Δ used here is a fast running estimate and proves nothing; the certificate computes
its own proven Δ from the final weights.
"""

__all__ = ["SensitivityControl"]

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.sensitivity import NORMS, Norm

if TYPE_CHECKING:
    from securesgd.models.noisy import NoisyNetwork

_SMALLEST_SCALE = 1e-3  # of the mean: keeps every r_k > 0 and finite


class SensitivityControl:
    """Call it after each step: fixed noise shrinks W₁ to Δ <= target; a learned scale is set to Δ = target."""

    def __init__(self, model: "NoisyNetwork", norm: Norm, target: float) -> None:
        if norm not in NORMS:
            raise InvalidInputError(f"unknown norm {norm!r}: {nearest(str(norm), NORMS)}")
        if not (math.isfinite(target) and target > 0):
            raise InvalidInputError(f"the wanted sensitivity must be finite and > 0, got {target!r}")
        self.model, self.norm, self.target = model, norm, float(target)
        for _ in range(100):
            self.estimate()

    def __call__(self, _: nn.Module | None = None) -> None:
        """Scale the layer of the model back to the wanted sensitivity."""
        scale, layer = self.model.noisy.scale, self.model.noisy.layer
        with torch.no_grad():
            if scale is not None:
                scale.values.abs_()
                scale.values.clamp_(min=_SMALLEST_SCALE * float(scale.values.mean()))
                scale.values.mul_(self.target / self.estimate())
            elif isinstance(layer, nn.Linear | nn.Conv2d):
                now = self.estimate()
                if now > self.target:
                    layer.weight.mul_(self.target / now)

    @torch.no_grad()
    def estimate(self) -> float:
        """Return Δ of the whitened layer as it is now; one more iteration from where the last call ended."""
        noisy = self.model.noisy
        scale = torch.ones_like(noisy.noise.std) if noisy.scale is None else noisy.scale.values
        square = (scale / noisy.noise.std) ** 2
        if isinstance(noisy.layer, nn.Identity):  # G is diagonal: exact
            return math.sqrt(float(square.sum() if self.norm == "linf" else square.max()))
        if self.norm == "l1":
            return math.sqrt(float(_apply_transpose(noisy.layer, square[None], self.model.input_shape, power=2).max()))
        iterate = self.model.sensitivity_iterate if self.norm == "linf" else self.model.sensitivity_iterate[:1]
        product = _apply_transpose(noisy.layer, square * _apply(noisy.layer, iterate), self.model.input_shape)
        length = product.norm() if self.norm == "l2" else product.norm(dim=0)
        iterate.copy_(product / length.clamp_min(torch.finfo(product.dtype).tiny))
        return math.sqrt(float(length.sum()))


def _apply(layer: nn.Module, x: Tensor) -> Tensor:
    """Return W₁x without the bias."""
    if isinstance(layer, nn.Conv2d):
        return functional.conv2d(x, layer.weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    assert isinstance(layer, nn.Linear)
    return functional.linear(x.flatten(1), layer.weight)


def _apply_transpose(layer: nn.Module, y: Tensor, input_shape: tuple[int, ...], power: int = 1) -> Tensor:
    """Return W₁ᵀy, with the entries of W₁ raised to `power`."""
    if isinstance(layer, nn.Conv2d):
        padding = (0, 0) if layer.padding == "valid" else layer.padding
        return conv2d_input(  # type: ignore[no-untyped-call]
            (len(y), *input_shape), layer.weight**power, y, layer.stride, padding, layer.dilation, layer.groups
        )
    assert isinstance(layer, nn.Linear)
    return functional.linear(y, (layer.weight**power).T).reshape(-1, *input_shape)
