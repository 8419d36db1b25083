"""Examples of a data set declared public, in the shape of the inputs of a model that is trained on another one."""

__all__ = ["public_examples"]

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError


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
    resized = interpolate(inputs, size=input_shape[1:], mode="bilinear", align_corners=False, antialias=True)
    return resized.clamp(0, 1).to(torch.float32), public.train_targets
