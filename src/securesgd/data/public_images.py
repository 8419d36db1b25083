"""Examples of a data set declared public, in the shape of the inputs of a model that is trained on another one."""

__all__ = ["moved_images", "public_examples"]

import torch
from torch import Tensor
from torch.nn import functional

from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError

_TURN, _SLANT, _STRETCH = 0.2, 0.6, 0.35  # radians, share, logarithm of a factor
_BEND, _KNOTS, _SHIFT = 0.09, 5, 0.15  # deviation and shift in half sides of the image; knots of a bend on each side
_ROOM = 1.5  # canvas for strokes, in sides of the image, so that nothing is cut off
_MIDDLE, _STEEP = (0.35, 0.75), (6.0, 14.0)  # of the curve from paper to ink: a higher middle, thinner strokes
_INK, _BOX, _RESIZE, _MOVE = 0.2, 5 / 7, 0.1, 0.05  # least ink; side of the box; deviations from its side and place


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
    """Return each image turned, slanted, stretched and bent at random; grey ones as strokes, the others shifted, too.

    A few public images stand for many others that way. Numbers stay within 0 and 1.
    """
    grey = images.shape[1] == 1
    canvas = [len(images), images.shape[1], *(round(_ROOM * side) if grey else side for side in images.shape[2:])]
    bent = functional.grid_sample(images, _bent_grid(canvas, _ROOM if grey else 1.0).to(images), align_corners=False)
    return _strokes(bent, images.shape[2:]) if grey else bent.clamp(0, 1)


def _bent_grid(canvas: list[int], room: float) -> Tensor:
    """Return where each pixel of the canvas comes from: an affine map of its own for each image, and an elastic one."""
    count = canvas[0]
    turn, slant = _between(-_TURN, _TURN, count), _between(-_SLANT, _SLANT, count)
    wide, high = (room * _between(-_STRETCH, _STRETCH, count).exp() for _ in range(2))
    shift = 0.0 if room > 1 else _SHIFT  # with room around it, an image is put into the middle afterwards
    rows = [
        torch.stack([wide * turn.cos(), wide * (slant - turn.sin()), _between(-shift, shift, count)], dim=1),
        torch.stack([high * turn.sin(), high * turn.cos(), _between(-shift, shift, count)], dim=1),
    ]
    grid = functional.affine_grid(torch.stack(rows, dim=1), canvas, align_corners=False)
    bends = _BEND * torch.randn(count, 2, _KNOTS, _KNOTS)
    smooth = functional.interpolate(bends, size=canvas[2:], mode="bicubic", align_corners=False)
    return grid + smooth.permute(0, 2, 3, 1)


def _strokes(images: Tensor, size: torch.Size) -> Tensor:
    """Return grey images with strokes of another thickness, and the strokes in the middle, five sevenths of `size`.

    That is how pictures of pen strokes are commonly prepared (LeCun et al. 1998: a 20×20 box in 28×28 pixels, centred
    by mass), which is a convention and no private knowledge.
    """
    count = len(images)
    middle, steep = (_between(*ends, count).view(-1, 1, 1, 1).to(images) for ends in (_MIDDLE, _STEEP))
    low, high = torch.sigmoid(-steep * middle), torch.sigmoid(steep * (1 - middle))
    inked = ((torch.sigmoid(steep * (images - middle)) - low) / (high - low)).clamp(0, 1)
    centred = functional.affine_grid(_box(inked, size), [count, 1, *size], align_corners=False)
    return functional.grid_sample(inked, centred, align_corners=False).clamp(0, 1)


def _box(images: Tensor, size: torch.Size) -> Tensor:
    """Return for each image the map, [2, 3], that puts the box of its ink into the middle of `size` by its mass."""
    count, height, width = len(images), *images.shape[2:]
    maps, ink, centres, sides = images.new_zeros(count, 2, 3), images[:, 0] > _INK, [], []
    mass = images[:, 0].double() + 1e-9
    for places, axis in ((torch.arange(height), 1), (torch.arange(width), 2)):
        places, other = places.to(images.device), 3 - axis
        there = ink.any(dim=other)
        first = torch.where(there, places, len(places)).amin(dim=1)
        last = torch.where(there, places, -1).amax(dim=1)
        sides.append((last - first + 1).clamp(min=1) / len(places))
        at = (mass.sum(dim=other) * places).sum(dim=1) / mass.sum(dim=(1, 2))
        centres.append((2 * at + 1) / len(places) - 1)
    jitter = _between(1 - _RESIZE, 1 + _RESIZE, count).to(images)
    scale = torch.stack(sides).amax(dim=0) / _BOX * jitter
    for row, centre in ((0, centres[1]), (1, centres[0])):
        maps[:, row, row] = scale
        maps[:, row, 2] = centre + _between(-_MOVE, _MOVE, count).to(images)
    return maps


def _between(low: float, high: float, count: int) -> Tensor:
    return low + (high - low) * torch.rand(count)
