"""A data set as tensors: by name, from a .npz file, a folder, a table, torch Datasets or a function of the user's."""

__all__ = ["LoadedData", "from_datasets", "input_tensor", "load_data", "split_data"]

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from securesgd.data.array_folder import AS_GIVEN, is_array_folder, read_array_folder, require_same_reading
from securesgd.data.arrays import DataArrays, SourceData, validate_arrays
from securesgd.data.catalog import CATALOG, DataSet
from securesgd.data.fetch import fetch
from securesgd.data.formats import read_files
from securesgd.data.image_folder import read_image_folder
from securesgd.data.npz_file import read_npz
from securesgd.data.places import presence
from securesgd.data.settings import FILE_SETTINGS, DataSettings
from securesgd.data.sources import Progress
from securesgd.data.stored_inputs import StoredInputs, input_tensor, stays_on_disk
from securesgd.data.table import is_table, read_table
from securesgd.data.table_files import memory_needed
from securesgd.data.table_stream import read_table_on_disk
from securesgd.errors import DataUnavailableError, InvalidInputError, SecureSGDError, nearest
from securesgd.runtime.import_path import is_import_path, load_function

AnyPath = str | PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedData:
    """A data set in memory; training inputs may stay on disk (docs/how-to/large-data.md), indexed like a tensor.

    *_inputs    float32 in [0, 1], (n, *input_shape); *_targets int64 in 0..classes-1
    holdout_*   taken out of the training examples for validation, None if there are none; whatever is chosen by
                looking at them is not covered by the privacy of the training run
    source      what a run folder records: name, how it was split, the seed of the holdout, and the sizes. Nothing in
                it but the sizes depends on the examples, so it can be published beside a private model; where the
                claim is add-or-remove-one, without those of training and holdout
    preprocessing   what `load_data` needs to read another source the same way, as JSON: features, scaling, classes in
                their order, mode and size of images; empty for sources that are read as they are
    settings    how it was read, if not by the defaults; by_share whether the test examples are a share of all, so that
                their number tells that of the training examples
    notes       lines for the person who holds the data, of what was left out, resized, converted or clipped; they
                depend on the examples and must not be published
    Training examples may be none, if only test examples were read with the preprocessing of a run.
    """

    name: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    train_inputs: Tensor | StoredInputs
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    holdout_inputs: Tensor | None
    holdout_targets: Tensor | None
    source: dict[str, Any]
    preprocessing: dict[str, Any] = field(default_factory=dict)
    settings: DataSettings | None = None
    by_share: bool = False
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def split_data(
    arrays: DataArrays,
    *,
    name: str,
    split: str,
    holdout: int,
    seed: int,
) -> LoadedData:
    """Return the arrays as tensors, `holdout` random training examples set apart with `seed`; the others keep order.

    Raises: InvalidInputError if holdout is not in 0..training examples - 1, or the seed negative.
    """
    examples = len(arrays.train_inputs)
    if not 0 <= holdout < max(examples, 1):
        raise InvalidInputError(
            f"holdout must be in 0..{max(examples - 1, 0)} for {examples} training examples, got {holdout}"
        )
    if seed < 0:
        raise InvalidInputError(f"seed must be >= 0, got {seed}")
    apart = np.zeros(examples, bool)
    apart[np.random.default_rng(seed).permutation(examples)[:holdout]] = True
    rest = slice(None) if holdout == 0 else ~apart
    stored = arrays.train_inputs
    train_inputs: Tensor | StoredInputs
    if isinstance(stored, StoredInputs):
        train_inputs = stored.only(~apart) if holdout else stored
        holdout_inputs = stored[apart] if holdout else None
    else:
        train_inputs = input_tensor(stored[rest])
        holdout_inputs = input_tensor(stored[apart]) if holdout else None
    return LoadedData(
        name=name,
        class_names=arrays.class_names,
        input_shape=tuple(train_inputs.shape[1:]),
        train_inputs=train_inputs,
        train_targets=torch.tensor(arrays.train_targets[rest]),
        test_inputs=input_tensor(arrays.test_inputs),
        test_targets=torch.tensor(arrays.test_targets),
        holdout_inputs=holdout_inputs,
        holdout_targets=torch.tensor(arrays.train_targets[apart]) if holdout else None,
        source={
            "name": name,
            "split": split,
            "seed": seed,
            "sizes": {"train": examples - holdout, "holdout": holdout, "test": len(arrays.test_inputs)},
        },
    )


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
    Raises: InvalidInputError for items of another kind, different shapes, or anything `load_data` refuses.
    """
    arrays = validate_arrays(_stack_items(train, "train"), _stack_items(test, "test"), classes, name)
    return split_data(arrays, name=name, split=AS_GIVEN, holdout=holdout, seed=seed)


def _stack_items(dataset: Dataset[Any], what: str) -> tuple[NDArray[Any], NDArray[Any]]:
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


def load_data(
    name_or_path: AnyPath | DataSet,
    *,
    holdout: int = 0,
    seed: int = 0,
    folder: AnyPath | None = None,
    download: bool = False,
    progress: Progress | None = None,
    settings: DataSettings | None = None,
    preprocessing: dict[str, Any] | None = None,
) -> LoadedData:
    """Return a data set with inputs in [0, 1].

    A name of the catalog (as text; a Path is always a path) is looked for in `folder`, or in $SECURESGD_DATA and the
    user's cache, and fetched only if `download`. A path is a .npz file with x_train, y_train, x_test, y_test, a folder
    with train_x.npy, train_y.npy, test_x.npy, test_y.npy (whose training inputs stay on disk), a folder of images by
    class, or a table (.csv, .tsv, .parquet) with a schema; `settings` say how they are read. An
    import path `package.module:function` is imported, and the function called: it returns the arrays x_train, y_train,
    x_test, y_test, or two torch Datasets (train, test), or a LoadedData. `holdout` training examples, drawn with
    `seed`, are set apart for validation; the same arguments give the same split.
    `preprocessing`, of an earlier LoadedData, has a table or folder read exactly as that one was: with its `settings`
    and `seed` it is the same source with the same split; without settings it is another, of which only test examples
    are read: test/ of a folder if it is there, else everything.
    Raises: InvalidInputError for an unknown name (nearest suggested), data that is not valid or settings that do not
    apply; DamagedFileError for files cut short or different from the catalog's; DataUnavailableError for a named set
    that is not on this machine.
    """
    if not isinstance(preprocessing, dict | None):
        raise InvalidInputError(f"preprocessing is a {type(preprocessing).__name__}; needed: that of a LoadedData")
    name = name_or_path.name if isinstance(name_or_path, DataSet) else str(name_or_path)
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        name_or_path = CATALOG[name_or_path]
    if isinstance(name_or_path, DataSet):
        _require_no_reading(settings, preprocessing, f"{name} is a named data set")
        arrays = _catalog_arrays(name_or_path, folder, download, progress)
        source = SourceData(arrays=arrays, split=name_or_path.split)
    else:
        path = Path(name_or_path).expanduser()
        if path.suffix == ".npz":
            _require_no_reading(settings, preprocessing, f"{path} is a .npz file", FILE_SETTINGS)
            source = read_npz(path, on_disk=settings is not None and settings.on_disk)
        elif is_array_folder(path):
            source = read_array_folder(path)
            same = bool(preprocessing and source.preprocessing)
            _require_no_reading(settings, None if same else preprocessing, f"{path} is a folder of arrays")
            if preprocessing and source.preprocessing:
                require_same_reading(source.preprocessing, preprocessing, path)
        elif path.is_dir():
            _require_kind(preprocessing, "images", f"{path} is a folder")
            source = read_image_folder(path, settings, preprocessing, seed)
        elif is_import_path(name_or_path):
            (settings or DataSettings()).require_only((), f"{name} is a function")
            arrays, by_share = _function_arrays(load_function(name, "the data set"), name)
            source = SourceData(arrays=arrays, split=AS_GIVEN, by_share=by_share)
        elif is_table(path):
            _require_kind(preprocessing, "table", f"{path} is a table")
            test_only = bool(preprocessing) and settings is None
            if not test_only and stays_on_disk(memory_needed(path) // 4, settings is not None and settings.on_disk):
                source = read_table_on_disk(path, settings or DataSettings(), preprocessing, seed)
            else:
                source = read_table(path, settings, preprocessing, seed)
        else:
            raise InvalidInputError(
                f"unknown data set {name!r}: {nearest(name, CATALOG)}, a .npz file, a folder of images, a table "
                "(.csv, .tsv, .parquet) or package.module:function"
            )
    loaded = split_data(source.arrays, name=name, split=source.split, holdout=holdout, seed=seed)
    return replace(
        loaded,
        preprocessing=source.preprocessing,
        settings=settings if settings is not None and settings.changed else None,
        by_share=source.by_share,
        notes=source.notes,
    )


def _require_no_reading(
    settings: DataSettings | None, preprocessing: Mapping[str, Any] | None, source: str, valid: Sequence[str] = ()
) -> None:
    """Raise InvalidInputError if a source that is read as it is was given settings, or the schema of a table."""
    (settings or DataSettings()).require_only(valid, source)
    if preprocessing and preprocessing.get("kind") != "images":  # images of the right shape are always images
        _require_kind(preprocessing, "", source)


def _require_kind(preprocessing: Mapping[str, Any] | None, kind: str, source: str) -> None:
    if preprocessing and preprocessing.get("kind") != kind:
        trained_on = {"images": "a folder of images", "table": "a table"}.get(str(preprocessing.get("kind")))
        if trained_on is None:
            raise InvalidInputError("the preprocessing is damaged; needed: kind images or table")
        raise InvalidInputError(f"{source} but the run was trained on {trained_on}; give {trained_on} like that one")


def _catalog_arrays(dataset: DataSet, folder: AnyPath | None, download: bool, progress: Progress | None) -> DataArrays:
    if dataset.function is not None:
        path = dataset.function
        function = load_function(path, f"the data set {dataset.name}:") if isinstance(path, str) else path
        arrays, _ = _function_arrays(function, dataset.name, dataset.class_names)  # of a number that its row states
        stated = (dataset.input_shape, dataset.train_size, dataset.test_size)
        actual = (arrays.train_inputs.shape[1:], len(arrays.train_inputs), len(arrays.test_inputs))
        if stated != actual:
            raise InvalidInputError(
                f"the data set {dataset.name} has input shape, training and test examples {actual}, its row in the "
                f"catalog states {stated}; they must be the same"
            )
        return arrays
    if download:
        return read_files(dataset, fetch(dataset, folder, progress))
    location = presence(dataset, folder)
    if location.folder is None:
        raise DataUnavailableError(
            f"{dataset.name} is not on this machine: run `securesgd data fetch {dataset.name}`, or set SECURESGD_DATA "
            "to the folder that holds it"
        )
    return read_files(dataset, location.folder)


def _function_arrays(
    function: Callable[[], Any], name: str, classes: Sequence[str] | None = None
) -> tuple[DataArrays, bool]:
    """Return what a user's function returns, validated like a .npz file, and whether its test set is a share of all."""
    try:
        result = function()
    except SecureSGDError:
        raise
    except Exception as error:  # whatever the user's function raises, the command ends with one line
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"the data set {name}: its function failed ({reason})") from error
    if isinstance(result, LoadedData):
        if result.holdout_inputs is not None:
            raise InvalidInputError(
                f"the data set {name} comes with a holdout; valid: all training examples, of which the setting "
                "holdout sets some apart"
            )
        train, test = (result.train_inputs, result.train_targets), (result.test_inputs, result.test_targets)
        return validate_arrays(
            _as_arrays(train), _as_arrays(test), classes or result.class_names, name
        ), result.by_share
    parts = tuple(result) if isinstance(result, tuple | list) else ()
    if len(parts) == 4:
        return validate_arrays(_as_arrays(parts[:2]), _as_arrays(parts[2:]), classes, name), False
    if len(parts) == 2 and all(hasattr(part, "__getitem__") and not isinstance(part, tuple) for part in parts):
        return validate_arrays(_stack_items(parts[0], "train"), _stack_items(parts[1], "test"), classes, name), False
    kinds = f"{type(result).__name__} of {len(parts)}" if parts else type(result).__name__
    raise InvalidInputError(
        f"the data set {name}: its function returned a {kinds}; valid: x_train, y_train, x_test, y_test, or two torch "
        "Datasets (train, test), or a LoadedData"
    )


def _as_arrays(pair: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return _array(pair[0]), _array(pair[1])
