"""Images and labels as validated numpy arrays: the form that every reader returns."""

__all__ = [
    "DataArrays",
    "SourceData",
    "channels_first",
    "class_names",
    "fixed_order",
    "machine_memory",
    "require_memory",
    "split_apart",
    "split_source",
    "validate_arrays",
]

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_count

if TYPE_CHECKING:
    from securesgd.data.stored_inputs import StoredInputs

_COLOURS = (1, 3)
_SHAPES = "(n, height, width), (n, channels, height, width) or (n, height, width, channels) with 1 or 3 channels, \
or (n, features)"


@dataclass(frozen=True, kw_only=True, eq=False)
class DataArrays:
    """Inputs as uint8 0..255 or float32 in [0, 1], channels first; targets as int64 in 0..classes-1."""

    train_inputs: "NDArray[Any] | StoredInputs"
    train_targets: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_targets: NDArray[np.int64]
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceData:
    """What a reader makes of one source.

    split          how training and test examples were divided, in words that do not depend on the examples
    preprocessing  how another source is read the same way, as JSON; empty where nothing is to be known
    notes          lines for the person who holds the data; they depend on the examples and are not published
    by_share       whether test examples are a share of all, so that their number tells that of the others
    """

    arrays: DataArrays
    split: str
    by_share: bool = False
    preprocessing: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


BY_SHARE = "a random"
"""How the words of a split by a share begin."""
_ORDER_SEED = 2016
"""Public, and the same for every source and run."""


def fixed_order(examples: int) -> NDArray[np.int64]:
    """Return a shuffled order that depends on the number of examples only, so a sorted source is no longer sorted."""
    return np.random.default_rng(_ORDER_SEED).permutation(examples)


def split_apart(examples: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which examples are set apart for testing: a random `share` of them, at least one and never all.

    Raises: InvalidInputError if there are fewer than two examples or the seed is negative.
    """
    if examples < 2:
        raise InvalidInputError(f"{examples} examples cannot be split into training and test; needed: at least 2")
    generator = np.random.default_rng([validate_count("seed", seed, at_least=0), 1])  # [seed] draws the holdout
    apart = np.zeros(examples, bool)
    apart[generator.permutation(examples)[: min(max(1, round(examples * share)), examples - 1)]] = True
    return apart


def split_source(
    inputs: "NDArray[Any] | StoredInputs",
    targets: NDArray[Any],
    is_test: NDArray[np.bool_],
    classes: Sequence[str],
    place: str,
) -> DataArrays:
    """Return the examples in the fixed order, those of `is_test` as test examples; all may be.

    Of inputs that are on disk, the test examples are read and the others stay there.
    Raises: InvalidInputError if there is no test example, or some training examples but not of every class.
    """
    if not is_test.any():
        raise InvalidInputError(f"{place} has no test example that can be used; needed: at least one")
    order = [rows[fixed_order(len(rows))] for rows in (np.flatnonzero(~is_test), np.flatnonzero(is_test))]
    labels = [targets[rows].astype(np.int64) for rows in order]
    train_inputs: NDArray[Any] | StoredInputs
    if isinstance(inputs, np.ndarray):
        train_inputs, test_inputs = inputs[order[0]], inputs[order[1]]
    else:
        train_inputs, test_inputs = inputs.only(order[0]), inputs.array(order[1])
    train, test = (train_inputs, labels[0]), (test_inputs, labels[1])
    if not is_test.all():
        return validate_arrays(train, test, classes, place)
    return DataArrays(
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test[0],
        test_targets=test[1],
        class_names=class_names(classes),
    )


def validate_arrays(
    train: "tuple[NDArray[Any] | StoredInputs, NDArray[Any]]",
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: int | Sequence[str] | None = None,
    place: str = "",
) -> DataArrays:
    """Return the arrays if they are images (or feature rows) with labels.

    `classes` is their number or their names; if None, one more than the highest training label. `place` starts the
    error messages.
    Training inputs that stay on disk were validated when they were opened.
    Raises: InvalidInputError for wrong shapes, kinds of numbers or lengths, values outside [0, 1] or NaN, labels out
    of range, and a class without any training example.
    """
    start = f"{place}: " if place else ""
    train_inputs = _inputs(train[0], f"{start}x_train") if isinstance(train[0], np.ndarray) else train[0]
    test_inputs = _inputs(test[0], f"{start}x_test")
    inputs = train_inputs, test_inputs
    targets = [
        _targets(y, len(x), f"{start}y_{split}")
        for x, split, (_, y) in zip(inputs, ("train", "test"), (train, test), strict=True)
    ]
    if tuple(train_inputs.shape[1:]) != test_inputs.shape[1:]:
        raise InvalidInputError(
            f"{start}x_train holds inputs of shape {tuple(train_inputs.shape[1:])} but x_test of "
            f"{test_inputs.shape[1:]}; "
            "they must be the same"
        )
    count = int(targets[0].max()) + 1 if classes is None else classes
    if isinstance(count, int) and count < 2:
        raise InvalidInputError(f"{start}a data set needs at least 2 classes, got {count}")
    if isinstance(count, int) and count > len(targets[0]):
        raise InvalidInputError(
            f"{start}there are {count:,} classes and {len(targets[0]):,} training examples; each class needs one"
        )
    names = class_names(count)
    for split, labels in zip(("train", "test"), targets, strict=True):
        wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
        if wrong.size:
            raise InvalidInputError(
                f"{start}y_{split}[{wrong[0]}] is {labels[wrong[0]]}; labels must be in 0..{len(names) - 1}"
            )
    counts = np.bincount(targets[0], minlength=len(names))
    if not counts.all():
        raise InvalidInputError(
            f"{start}class {names[int(counts.argmin())]!r} has no training example; every class needs at least one"
        )
    return DataArrays(
        train_inputs=train_inputs,
        train_targets=targets[0],
        test_inputs=test_inputs,
        test_targets=targets[1],
        class_names=names,
    )


def class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes: those given, or 0, 1, … as text.

    Raises: InvalidInputError if there are fewer than two or a name appears twice.
    """
    names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else tuple(classes)
    if len(names) < 2:
        raise InvalidInputError(f"a data set needs at least 2 classes, got {len(names)}")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"class names must differ, got {', '.join(names)}")
    return names


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(needed: int, place: str, *, convertible: bool = False) -> None:
    """Raise InvalidInputError if this machine has less than `needed` bytes of memory, before it is filled.

    `convertible` says that `securesgd data convert` reads the source piece by piece.
    """
    memory = machine_memory()
    if needed > memory:
        way = ", or `securesgd data convert` it to arrays that stay on disk" if convertible else ""
        raise InvalidInputError(
            f"{place} needs {needed:,} bytes of memory, this machine has {memory:,}; give fewer or smaller "
            f"examples{way}"
        )


def channels_first(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return images as (n, channels, height, width), or rows as (n, features); `what` starts the error messages.

    Raises: InvalidInputError for other shapes, and numbers that are neither uint8 nor floating.
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in _COLOURS and array.shape[3] in _COLOURS:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim not in (2, 4) or 0 in array.shape or (array.ndim == 4 and array.shape[1] not in _COLOURS):
        raise InvalidInputError(f"{what} has shape {array.shape}; valid: {_SHAPES}, none of them 0")
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise InvalidInputError(f"{what} holds {array.dtype}; valid: uint8 in 0..255 or float in [0, 1]")
    return array


def _inputs(array: NDArray[Any], what: str) -> NDArray[Any]:
    array = channels_first(array, what)
    if array.dtype == np.uint8:
        return array
    low, high = array.min(), array.max()  # NaN if there is one
    if not (low >= 0 and high <= 1):
        values = "NaN" if np.isnan(low) else f"values in [{low:g}, {high:g}]"
        raise InvalidInputError(f"{what} holds {values}; valid: uint8 in 0..255 or float in [0, 1]")
    return array.astype(np.float32, copy=False)


def _targets(array: NDArray[Any], examples: int, what: str) -> NDArray[np.int64]:
    if array.shape != (examples,):
        raise InvalidInputError(f"{what} has shape {array.shape}; it needs one label per example: ({examples},)")
    if not np.issubdtype(array.dtype, np.integer):
        raise InvalidInputError(f"{what} holds {array.dtype}; labels must be whole numbers (an integer type)")
    return array.astype(np.int64)
