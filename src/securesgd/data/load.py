"""A data set as tensors: by name, from a .npz file, from a folder of images, or from torch Datasets."""

__all__ = ["LoadedData", "from_datasets", "load", "loaded_data"]

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from securesgd.data.arrays import CheckedArrays, checked_arrays
from securesgd.data.builtin import digits_arrays, stored_arrays
from securesgd.data.catalog import CATALOG, DataSet
from securesgd.data.download import Progress
from securesgd.data.fetch import fetch
from securesgd.data.image_folder import image_folder_arrays
from securesgd.data.npz import npz_arrays
from securesgd.data.places import presence
from securesgd.errors import DataUnavailableError, InvalidInputError, nearest


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedData:
    """A data set in memory.

    *_inputs    float32 in [0, 1], (n, *input_shape); *_targets int64 in 0..classes-1
    holdout_*   taken out of the training examples for validation, None if none was asked for; whatever is chosen by
                looking at them is not covered by the privacy of the training run
    source      what a run folder records: name, how it was split, the seed of the holdout, and the sizes. Nothing in
                it but the sizes depends on the examples, so it can be published beside a private model; where the
                claim is add-or-remove-one, without those of training and holdout
    """

    name: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    holdout_inputs: Tensor | None
    holdout_targets: Tensor | None
    source: dict[str, Any]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def loaded_data(arrays: CheckedArrays, *, name: str, split: str, holdout: int, seed: int) -> LoadedData:
    """Return the arrays as tensors, `holdout` random training examples set apart with `seed`; the others keep order.

    Raises: InvalidInputError if holdout is not in 0..training examples - 1, or the seed negative.
    """
    examples = len(arrays.train_inputs)
    if not 0 <= holdout < examples:
        raise InvalidInputError(f"holdout must be in 0..{examples - 1} for {examples} training examples, got {holdout}")
    if seed < 0:
        raise InvalidInputError(f"seed must be >= 0, got {seed}")
    apart = np.zeros(examples, bool)
    apart[np.random.default_rng(seed).permutation(examples)[:holdout]] = True
    kept = slice(None) if holdout == 0 else ~apart
    train_inputs = _tensor(arrays.train_inputs[kept])
    return LoadedData(
        name=name,
        class_names=arrays.class_names,
        input_shape=tuple(train_inputs.shape[1:]),
        train_inputs=train_inputs,
        train_targets=torch.tensor(arrays.train_targets[kept]),
        test_inputs=_tensor(arrays.test_inputs),
        test_targets=torch.tensor(arrays.test_targets),
        holdout_inputs=_tensor(arrays.train_inputs[apart]) if holdout else None,
        holdout_targets=torch.tensor(arrays.train_targets[apart]) if holdout else None,
        source={
            "name": name,
            "split": split,
            "seed": seed,
            "sizes": {"train": examples - holdout, "holdout": holdout, "test": len(arrays.test_inputs)},
        },
    )


def _tensor(pixels: NDArray[Any]) -> Tensor:
    """Return a float32 tensor in [0, 1] of its own memory."""
    tensor = torch.empty(pixels.shape, dtype=torch.float32)
    tensor.numpy()[:] = pixels
    return tensor.div_(255) if pixels.dtype == np.uint8 else tensor


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


def load(
    name_or_path: str | PathLike[str] | DataSet,
    *,
    holdout: int = 0,
    seed: int = 0,
    folder: Path | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> LoadedData:
    """Return a data set with pixels in [0, 1].

    A name of the catalog (as text; a Path is always a path) is looked for in `folder`, or in $SECURESGD_DATA and the
    user's cache, and fetched only if `download`. A path is a .npz file with x_train, y_train, x_test, y_test, or a
    folder with train/<class>/ and test/<class>/ images. `holdout` training examples, drawn with `seed`, are set apart
    for validation; the same arguments give the same split.
    Raises: InvalidInputError for an unknown name (nearest suggested) or data that is not valid; DamagedFileError for
    files cut short or different from the catalog's; DataUnavailableError for a named set that is not on this machine.
    """
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        name_or_path = CATALOG[name_or_path]
    if isinstance(name_or_path, DataSet):
        name = name_or_path.name
        if name_or_path.layout == "embedded":
            arrays, split = digits_arrays(name_or_path), "fixed permutation of scikit-learn's digits"
        else:
            place = _found(name_or_path, folder, download, progress)
            arrays, split = stored_arrays(name_or_path, place), "published train and test sets"
    else:
        path = Path(name_or_path).expanduser()
        name = str(name_or_path)
        if path.suffix == ".npz":
            arrays, split = npz_arrays(path), "train and test of the .npz file"
        elif path.is_dir():
            arrays, split = image_folder_arrays(path), "train/ and test/ of the folder"
        else:
            raise InvalidInputError(
                f"unknown data set {name!r}: {nearest(name, CATALOG)}, a .npz file or a folder of images"
            )
    return loaded_data(arrays, name=name, split=split, holdout=holdout, seed=seed)


def _found(dataset: DataSet, folder: Path | None, download: bool, progress: Progress | None) -> Path:
    if download:
        return fetch(dataset, folder, progress)
    there = presence(dataset, folder)
    if there.folder is None:
        raise DataUnavailableError(
            f"{dataset.name} is not on this machine: run `securesgd data fetch {dataset.name}`, or set SECURESGD_DATA "
            "to the folder that holds it"
        )
    return there.folder
