"""A box for tables: how far each column of an input may be off, absolute or as a share of its value."""

__all__ = ["SMALLEST_SHARE", "half_widths", "require_box"]

import math

import torch
from torch import Tensor

from securesgd.errors import InvalidInputError

SMALLEST_SHARE = 0.01
"""Of a box in the units of a table's columns: what scaling rounds is allowed for in shares from here on."""
_VALID = "a number >= 0 such as 5 or 0, or a share of the value such as 10%"


def require_box(box: tuple[str, ...]) -> None:
    """Return if a box is a text per column. Raises: InvalidInputError naming the column that is none."""
    if not isinstance(box, tuple) or not box:
        raise InvalidInputError(f"box is {box!r}; valid: a text per column, like ('5', '10%', '0')")
    for place, text in enumerate(box):
        _parse(text, place)
    if not any(_parse(text, place)[0] for place, text in enumerate(box)):
        raise InvalidInputError("box has no column that may change; valid: at least one number > 0")


def half_widths(box: tuple[str, ...], inputs: Tensor) -> Tensor:
    """Return how far each number of each input may be off at radius 1, in double precision and the inputs' shape.

    Raises: InvalidInputError if the inputs are no table with as many columns as the box.
    """
    if inputs.dim() != 2 or inputs.shape[1] != len(box):
        raise InvalidInputError(
            f"box has {len(box)} columns, an input has shape {list(inputs.shape[1:])}; valid: tables, a text per column"
        )
    values, widths = inputs.detach().double(), torch.zeros(inputs.shape, dtype=torch.float64, device=inputs.device)
    for place, text in enumerate(box):
        width, is_share = _parse(text, place)
        widths[:, place] = width * values[:, place].abs() if is_share else width
    return widths


def _parse(text: str, place: int) -> tuple[float, bool]:
    """Return the number of one column, and whether it is a share of the value."""
    is_share = isinstance(text, str) and text.strip().endswith("%")
    try:
        width = float(text.strip().removesuffix("%")) if isinstance(text, str) else math.nan
    except ValueError:
        width = math.nan
    if not (math.isfinite(width) and width >= 0):
        raise InvalidInputError(f"column {place} of the box is {text!r}; valid: {_VALID}")
    return (width / 100, True) if is_share else (width, False)
