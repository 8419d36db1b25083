"""Inputs that stay on disk: rows of a .npy file are read when they are asked for, as the bytes they have in memory.

Rows are read with pread rather than mapped into memory: mapped pages would count as memory of the process, and a file
that is cut short while it is read would end the process instead of raising an error.
"""

__all__ = ["StoredInputs", "input_tensor"]

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.data.arrays import channels_first
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_PART = 16 << 20
"""Bytes read at once when all rows are looked at."""
Rows = slice | NDArray[np.int64] | NDArray[np.bool_] | Tensor


class _Descriptor:
    """An open file, closed when the last of the inputs that are read from it is gone."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class StoredInputs:
    """The inputs of a .npy file, as a tensor would be indexed: `inputs[rows]` is float32 in [0, 1], channels first.

    Guarantee: `inputs[rows]` has the bits that `load_data` gives the same rows in memory; only these rows are held.
    Assumes: the file is not changed while it is used (the digest of a run is of what was read first).
    Raises: InvalidInputError for another shape or kind of numbers than `load_data` takes, or values outside [0, 1];
    DamagedFileError if the file is cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path) as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, by_columns, self._kind = read(file)
            except ValueError as error:
                raise DamagedFileError(f"{path} cannot be read as .npy: {error}") from None
            if by_columns or self._kind.hasobject or len(shape) < 2:
                raise InvalidInputError(
                    f"{path} holds {self._kind} of shape {shape}{' by columns' if by_columns else ''}; valid: rows of "
                    "uint8 or floating numbers one after another, as numpy.save writes them"
                )
            self._row, self._start = shape[1:], file.tell()
            self._bytes = math.prod(self._row) * self._kind.itemsize
            size, expected = os.fstat(file.fileno()).st_size, self._start + shape[0] * self._bytes
            if size < expected:
                raise DamagedFileError(f"{path} has {size:,} bytes, its header says {expected:,}")
            self._file = _Descriptor(os.dup(file.fileno()))
        self._rows: NDArray[np.int64] | None = None
        self._length = int(shape[0])
        first = channels_first(np.empty((min(1, self._length), *self._row), self._kind), str(path))
        self.shape = torch.Size((self._length, *first.shape[1:]))
        self._require_range()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: Rows) -> Tensor:
        """Return these rows, of a slice, indices or a mask."""
        numbers = self._numbers(rows)
        if len(numbers) == 0:  # an empty sample
            return torch.empty((0, *self.shape[1:]))
        return input_tensor(channels_first(self._read(numbers), str(self.path)))

    def only(self, kept: NDArray[np.bool_]) -> "StoredInputs":
        """Return the inputs of a part of the rows, from the same file."""
        part = object.__new__(StoredInputs)
        part.__dict__ |= self.__dict__
        part._rows = self._numbers(kept)
        part._length = len(part._rows)
        part.shape = torch.Size((part._length, *self.shape[1:]))
        return part

    def _numbers(self, rows: Rows) -> NDArray[np.int64]:
        """Return the places of these rows in the file."""
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(self._length))
        else:
            numbers = np.asarray(rows)
            numbers = np.flatnonzero(numbers) if numbers.dtype == bool else numbers.astype(np.int64)
        return numbers if self._rows is None else self._rows[numbers]

    def _read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of the file; those that follow one another in it are read in one go."""
        values = np.empty((len(numbers), *self._row), self._kind)
        memory = values.reshape(-1).view(np.uint8).data
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        for first, after in zip(starts, [*starts[1:], len(numbers)], strict=True):
            wanted = memory[first * self._bytes : after * self._bytes]
            at = self._start + int(numbers[first]) * self._bytes
            while len(wanted):
                count = os.preadv(self._file.number, [wanted], at)
                if count == 0:
                    raise DamagedFileError(f"{self.path} was cut short while it was read; put it back and start again")
                wanted, at = wanted[count:], at + count
        return values

    def _parts(self) -> Iterator[tuple[int, NDArray[Any]]]:
        step = max(1, _PART // max(1, self._bytes))
        for first in range(0, self._length, step):
            yield first, self._read(np.arange(first, min(first + step, self._length)))

    def _require_range(self) -> None:
        if self._kind == np.uint8:
            return
        for first, values in self._parts():
            outside = ~((values >= 0) & (values <= 1)).reshape(len(values), -1).all(axis=1)  # NaN, too
            if outside.any():
                row = int(outside.argmax())
                raise InvalidInputError(
                    f"{self.path} has values in [{values[row].min():g}, {values[row].max():g}] in row {first + row}; "
                    "valid: uint8 in 0..255 or float in [0, 1]"
                )


def input_tensor(pixels: NDArray[Any]) -> Tensor:
    """Return inputs as a float32 tensor of its own memory; uint8 in 0..255 becomes [0, 1]."""
    tensor = torch.empty(pixels.shape, dtype=torch.float32)
    tensor.numpy()[:] = pixels
    return tensor.div_(255) if pixels.dtype == np.uint8 else tensor
