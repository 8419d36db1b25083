"""Forward and backward passes in bfloat16, with per-example gradients that stay float32 numbers.

Under autocast a layer's output, and the gradient that comes back to it, are stored in bfloat16. What is clipped and
added up is the float32 gradient made of these stored numbers (`in_full`, which is exact): the norm is that of the very
numbers that are summed, so the bound on rounding is that of float32 (`rules.forms`). bfloat16 makes the gradient
another one, off by several per cent; it does not loosen the bound on it.
"""

__all__ = ["in_full", "in_precision", "keeps_rows_apart", "validate_precision"]

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.errors import InvalidInputError, nearest
from securesgd.runtime.machine import PRECISIONS


def validate_precision(precision: str, model: nn.Module) -> None:
    """Return if the passes of this model can be in this precision.

    Raises: InvalidInputError for another name, if a trainable parameter is not float32, or if this processor's products
        in bfloat16 mix examples.
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
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    if not keeps_rows_apart(device):
        raise InvalidInputError(
            "precision is 'bfloat16', but products of such matrices let an example that is not finite change others on "
            f"this {device}; valid: precision = 'float32'"
        )


@cache
def keeps_rows_apart(device: str) -> bool:
    """Return whether a row that is not finite leaves the other rows of a bfloat16 product as they are.

    Seen not to on a processor with matrix tiles (AMX), in float32 and for finite numbers it does: presumably a row that
    does not fill its last tile is read on into the next one, times 0, and a NaN stays one.
    """
    for width in (10, 50, 84, 784):
        rows = torch.ones(24, width, dtype=torch.bfloat16, device=device)
        rows[::2] = torch.nan
        if bool(functional.linear(rows, torch.ones_like(rows[:16]))[1::2].isnan().any()):
            return False
    return True


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
