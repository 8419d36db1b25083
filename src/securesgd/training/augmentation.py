"""Augmentation: every copy of an image is shifted or mirrored at random, before gradients are averaged and clipped.

A copy is a function of its own image and of random numbers, so augmentation costs no privacy. Random numbers come from
torch's generator, which the run seeds for each step.
"""

__all__ = ["augmented_copies"]

import torch
from torch import Tensor

from securesgd.errors import InvalidInputError
from securesgd.training.settings import Augmentation

_LARGEST_SHIFT = 2  # pixels each way


def augmented_copies(inputs: Tensor, copies: int, name: Augmentation) -> Tensor:
    """Return [examples, copies, ...]: each example `copies` times, each time augmented anew; for "none", as it is.

    A shift is by up to 2 pixels each way, with zeros moving in; a flip mirrors left to right.
    Raises: InvalidInputError if inputs are to be moved but are not images, [examples, channels, height, width].
    """
    shifts, flips = "shift" in name, "flip" in name
    rows = inputs.repeat_interleave(copies, dim=0)
    if (shifts or flips) and rows.dim() != 4:
        raise InvalidInputError(
            f"augmentation is {name!r}, but inputs have shape {list(inputs.shape[1:])}; valid: 'none', or images "
            "[channels, height, width]"
        )
    if shifts:
        rows = _shifted(rows)
    if flips:
        mirrored = torch.rand(len(rows), device=rows.device) < 0.5
        rows = torch.where(mirrored[:, None, None, None], rows.flip(3), rows)
    return rows.reshape(len(inputs), copies, *inputs.shape[1:])


def _shifted(rows: Tensor) -> Tensor:
    """Return each image moved by a whole number of pixels of its own, with zeros moving in."""
    count, _, height, width = rows.shape
    padded = torch.nn.functional.pad(rows, [_LARGEST_SHIFT] * 4)
    down, right = torch.randint(0, 2 * _LARGEST_SHIFT + 1, (2, count, 1), device=rows.device)
    y = (down + torch.arange(height, device=rows.device))[:, None, :, None]
    x = (right + torch.arange(width, device=rows.device))[:, None, None, :]
    channels = torch.arange(rows.shape[1], device=rows.device)[None, :, None, None]
    return padded[torch.arange(count, device=rows.device)[:, None, None, None], channels, y, x]
