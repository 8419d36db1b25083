"""Examples of a data set declared public, in the shape of the inputs of a model that is trained on another one."""

__all__ = ["moved_images", "public_examples"]

import torch
from torch import Tensor
from torch.nn import functional

from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError

_TURN, _SLANT, _SHIFT, _SHRINK = 0.3, 0.3, 0.15, 1.6  # radians, share, share of half the image, times


def public_examples(dataset: str, input_shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Return training inputs and targets of a public data set for a model with these inputs and classes.

    Images of another size are resized (bilinear), grey ones repeated for each colour and coloured ones averaged.
    Raises: InvalidInputError if that cannot be done, or there are more classes than the model tells apart.
    """
    public = load_data(dataset)
    if public.classes > classes:
        raise InvalidInputError(
            f"public_dataset {dataset} has {public.classes} classes; valid: at most the {classes} of the model"
        )
    inputs, shape = public.train_inputs[:], public.input_shape
    if shape == input_shape:
        return inputs, public.train_targets
    if len(shape) != 3 or len(input_shape) != 3 or not {1, shape[0]} & {1, input_shape[0]}:
        raise InvalidInputError(
            f"public_dataset {dataset} has inputs of shape {shape}, the model of shape {input_shape}; valid: the same "
            "shape, or images for images, which are resized"
        )
    if input_shape[0] != shape[0]:
        inputs = inputs.mean(dim=1, keepdim=True).expand(-1, input_shape[0], -1, -1)
    resized = functional.interpolate(inputs, size=input_shape[1:], mode="bilinear", align_corners=False, antialias=True)
    return resized.clamp(0, 1).to(torch.float32), public.train_targets


def moved_images(images: Tensor) -> Tensor:
    """Return each image turned, slanted, shrunk and shifted at random; grey ones with strokes of another thickness.

    A few public images stand for many others that way. Numbers stay within 0 and 1.
    """
    count = len(images)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count)

    turn, slant = between(-_TURN, _TURN), between(-_SLANT, _SLANT)
    wide, high = between(1, _SHRINK), between(1, _SHRINK)
    rows = [
        torch.stack([wide * turn.cos(), wide * (slant - turn.sin()), between(-_SHIFT, _SHIFT)], dim=1),
        torch.stack([high * turn.sin(), high * turn.cos(), between(-_SHIFT, _SHIFT)], dim=1),
    ]
    grid = functional.affine_grid(torch.stack(rows, dim=1).to(images), list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, align_corners=False)
    if images.shape[1] > 1:
        return moved.clamp(0, 1)
    middle, steep = between(0.25, 0.65).view(-1, 1, 1, 1).to(images), between(3, 10).view(-1, 1, 1, 1).to(images)
    low, high_end = torch.sigmoid(-steep * middle), torch.sigmoid(steep * (1 - middle))
    return ((torch.sigmoid(steep * (moved - middle)) - low) / (high_end - low)).clamp(0, 1)
