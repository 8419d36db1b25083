"""Any map-style torch Dataset of (input, label) pairs, read into memory."""

__all__ = ["from_datasets"]

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from securesgd.data.arrays import checked_arrays
from securesgd.data.loaded import LoadedData, loaded_data
from securesgd.errors import InvalidInputError


def from_datasets(
    train: Dataset[Any],
    test: Dataset[Any],
    classes: int | Sequence[str],
    *,
    name: str = "custom",
    holdout: int = 0,
    seed: int = 0,
) -> LoadedData:
    """Return the examples of two torch Datasets; `classes` is their number or their names.

    Each item is (input, label): the input a tensor, array or picture, uint8 in 0..255 or float in [0, 1].
    Assumes: item i is the same at every access; random transforms would be frozen at their first value.
    Raises: InvalidInputError for items of another kind, different shapes, or anything `load` refuses.
    """
    arrays = checked_arrays(_stacked(train, "train"), _stacked(test, "test"), classes, name)
    return loaded_data(arrays, name=name, split="train and test as given", holdout=holdout, seed=seed)


def _stacked(dataset: Dataset[Any], what: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(dataset, Sized):
        raise InvalidInputError(f"the {what} Dataset has no length; needed: a map-style Dataset, not an iterable one")
    if len(dataset) == 0:
        raise InvalidInputError(f"the {what} Dataset is empty; it needs at least one example")
    inputs: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InvalidInputError(
                f"item {i} of the {what} Dataset is a {type(item).__name__}; needed: (input, label)"
            )
        pixels, label = (_array(part) for part in item)
        if inputs and (pixels.shape, pixels.dtype) != (inputs[0].shape, inputs[0].dtype):
            raise InvalidInputError(
                f"item {i} of the {what} Dataset is {pixels.dtype}{pixels.shape} but item 0 is "
                f"{inputs[0].dtype}{inputs[0].shape}; all inputs must have the same shape and type"
            )
        if label.size != 1:
            raise InvalidInputError(
                f"item {i} of the {what} Dataset has a label of shape {label.shape}; needed: a number"
            )
        inputs.append(pixels)
        labels.append(label.reshape(()))
    return np.stack(inputs), np.stack(labels)


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
