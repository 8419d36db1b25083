"""The rows of one array in a file: a .npy file, or an uncompressed member of a .npz file.

Rows are read with pread rather than mapped into memory: mapped pages would count as memory of the process, and a file
that is cut short while it is read would end the process instead of raising an error.
"""

__all__ = ["ArrayRows", "read_array_header"]

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.arrays import channels_first
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_PART = 16 << 20
"""Bytes read at once when all rows are looked at."""


class _Descriptor:
    """An open file, closed when the last of the inputs that are read from it is gone."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class ArrayRows:
    """The rows of an array that starts at byte `start` of a file, with the header of a .npy file; a RowSource.

    Raises: InvalidInputError for another shape or kind of numbers than `load_data` takes, or values outside [0, 1];
    DamagedFileError if the file is cut short.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self.place = str(path)
        with open_regular(path) as file:
            file.seek(start)
            try:
                self.shape, by_columns, self.kind = read_array_header(file)
            except ValueError as error:
                raise DamagedFileError(f"{path} cannot be read as .npy: {error}") from None
            if by_columns or self.kind.hasobject or len(self.shape) < 2:
                raise InvalidInputError(
                    f"{path} holds {self.kind} of shape {self.shape}{' by columns' if by_columns else ''}; valid: rows "
                    "of uint8 or floating numbers one after another, as numpy.save writes them"
                )
            self._start = file.tell()
            self._bytes = math.prod(self.shape[1:]) * self.kind.itemsize
            size, expected = os.fstat(file.fileno()).st_size, self._start + self.shape[0] * self._bytes
            if size < expected:
                raise DamagedFileError(f"{path} has {size:,} bytes, its header says {expected:,}")
            self._file = _Descriptor(os.dup(file.fileno()))
        channels_first(np.empty((min(1, self.shape[0]), *self.shape[1:]), self.kind), self.place)
        self._require_range()

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of the array; those that follow one another in it are read in one go."""
        values = np.empty((len(numbers), *self.shape[1:]), self.kind)
        memory = values.reshape(-1).view(np.uint8).data
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        for first, after in zip(starts, [*starts[1:], len(numbers)], strict=True):
            wanted = memory[first * self._bytes : after * self._bytes]
            at = self._start + int(numbers[first]) * self._bytes
            while len(wanted):
                count = os.preadv(self._file.number, [wanted], at)
                if count == 0:
                    raise DamagedFileError(f"{self.place} was cut short while it was read; put it back and start again")
                wanted, at = wanted[count:], at + count
        return values

    def _parts(self) -> Iterator[tuple[int, NDArray[Any]]]:
        step = max(1, _PART // max(1, self._bytes))
        for first in range(0, self.shape[0], step):
            yield first, self.read(np.arange(first, min(first + step, self.shape[0])))

    def _require_range(self) -> None:
        if self.kind == np.uint8:
            return
        for first, values in self._parts():
            outside = ~((values >= 0) & (values <= 1)).reshape(len(values), -1).all(axis=1)  # NaN, too
            if outside.any():
                row = int(outside.argmax())
                raise InvalidInputError(
                    f"{self.place} has values in [{values[row].min():g}, {values[row].max():g}] in row {first + row}; "
                    "valid: uint8 in 0..255 or float in [0, 1]"
                )


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is stored by columns, and kind of numbers of a .npy file that starts here.

    Raises: ValueError if it is none.
    """
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return header
