"""Inputs that stay on disk: rows are read when they are asked for, as the bits that they have in memory."""

__all__ = ["RowSource", "StoredInputs", "input_tensor", "stays_on_disk"]

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.data.arrays import channels_first, machine_memory

Rows = slice | NDArray[np.int64] | NDArray[np.bool_] | Tensor


class RowSource(Protocol):
    """Where rows are read from: a part of a file, or a file for each row.

    place  for messages
    shape  number of rows, then the shape of one; kind is the type of its numbers, uint8 or floating in [0, 1]
    """

    place: str
    shape: tuple[int, ...]
    kind: np.dtype[Any]

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows at these numbers, at least one."""


class StoredInputs:
    """Inputs on disk, as a tensor would be indexed: `inputs[rows]` is float32 in [0, 1], channels first.

    Guarantee: `inputs[rows]` has the bits that `load_data` gives the same rows in memory; only these rows are held.
    Assumes: the source was checked when it was opened and is not changed while it is used (the digest of a run is of
    what was read first).
    Raises: InvalidInputError for another shape or kind of numbers than `load_data` takes; DamagedFileError if rows
    cannot be read any more.
    """

    def __init__(self, source: RowSource, rows: NDArray[np.int64] | None = None) -> None:
        self._source, self._rows = source, rows
        count = source.shape[0] if rows is None else len(rows)
        one = channels_first(np.empty((min(1, count), *source.shape[1:]), source.kind), source.place)
        self.shape = torch.Size((count, *one.shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> Tensor:
        """Return these rows, of a slice, indices or a mask."""
        return input_tensor(self.array(rows))

    def array(self, rows: Rows) -> NDArray[Any]:
        """Return these rows as the numbers that are stored, channels first."""
        numbers = self._numbers(rows)
        if len(numbers) == 0:  # an empty sample
            return np.empty((0, *self.shape[1:]), self._source.kind)
        return channels_first(self._source.read(numbers), self._source.place)

    def only(self, rows: Rows) -> "StoredInputs":
        """Return the inputs of a part of the rows, from the same source."""
        return StoredInputs(self._source, self._numbers(rows))

    def _numbers(self, rows: Rows) -> NDArray[np.int64]:
        """Return the places of these rows in the source."""
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(len(self)))
        else:
            numbers = np.asarray(rows)
            numbers = np.flatnonzero(numbers) if numbers.dtype == bool else numbers.astype(np.int64)
        return numbers if self._rows is None else self._rows[numbers]


def input_tensor(pixels: NDArray[Any]) -> Tensor:
    """Return inputs as a float32 tensor of its own memory; uint8 in 0..255 becomes [0, 1].

    By numpy, so that a thread that reads ahead takes no threads of torch's from the step that is computed.
    """
    tensor = torch.empty(pixels.shape, dtype=torch.float32)
    numbers = tensor.numpy()
    numbers[:] = pixels
    if pixels.dtype == np.uint8:
        np.divide(numbers, np.float32(255), out=numbers)
    return tensor


def stays_on_disk(numbers: int, asked: bool) -> bool:
    """Return whether this many numbers are read as they are sampled: if asked for, or if they would fill memory.

    The limit is a quarter of this machine's memory, as float32.
    """
    return asked or 4 * numbers > machine_memory() // 4
