"""Forward and backward passes in bfloat16, with per-example gradients that stay float32 numbers.

Under autocast a layer's output, and the gradient that comes back to it, are stored in bfloat16. What is clipped and
added up is the float32 gradient made of these stored numbers (`in_full`, which is exact): the norm is that of the very
numbers that are summed, so the bound on rounding is that of float32 (`rules.forms`). bfloat16 makes the gradient
another one, off by several per cent; it does not loosen the bound on it.
"""

__all__ = ["in_full", "in_precision", "validate_precision"]

from collections.abc import Callable

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError, nearest
from securesgd.runtime.machine import PRECISIONS


def validate_precision(precision: str, model: nn.Module) -> None:
    """Return if the passes of this model can be in this precision.

    Raises: InvalidInputError for another name, or if a trainable parameter is not float32.
    """
    if precision not in PRECISIONS:
        raise InvalidInputError(f"unknown precision {precision!r}: {nearest(precision, PRECISIONS)}")
    if precision == "float32":
        return
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise InvalidInputError(
                f"precision is 'bfloat16' but parameter {name!r} has type {parameter.dtype}; valid: a float32 model"
            )


def in_precision(model: Callable[[Tensor], Tensor], precision: str) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the model in this precision and returns its outputs in float32."""
    if precision == "float32":
        return model

    def forward(rows: Tensor) -> Tensor:
        # Without the cache: two calls of a layer would share the copy of its weight, and with it a part of the graph.
        with torch.autocast(rows.device.type, torch.bfloat16, cache_enabled=False):
            outputs = model(rows)
        return outputs.float() if isinstance(outputs, Tensor) and outputs.dtype == torch.bfloat16 else outputs

    return forward


def in_full(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floating-point numbers of a shorter type in `dtype`, which holds them exactly; others as they are."""
    return values.to(dtype) if values.is_floating_point() and values.dtype.itemsize < dtype.itemsize else values
