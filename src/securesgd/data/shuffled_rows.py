"""Rows written in another order than they come in, to a file larger than memory."""

__all__ = ["ShuffledRows"]

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.errors import DamagedFileError

_PART = 64 << 20
_MOST_PARTS = 256
"""Open files at once; a file of more than 16 GB has larger parts."""


class ShuffledRows:
    """Rows of one shape on their way to a .npy file, in which row i stands at place `places[i]`.

    They are first appended to parts, each for a range of places and small enough for memory, then each part is put in
    order: two passes over the disk, none of them at random places.
    Assumes: `places` is a permutation; the folder is nobody else's.
    """

    def __init__(self, target: Path, places: NDArray[np.int64], shape: tuple[int, ...], kind: Any) -> None:
        self._target, self._places, self._shape, self._kind = target, places, shape, np.dtype(kind)
        row = max(1, math.prod(shape) * self._kind.itemsize)
        self._rows = max(1, _PART // row, -(-len(places) // _MOST_PARTS))
        count = -(-len(places) // self._rows)
        self._parts = [target.with_suffix(f".part{i}").open("x+b") for i in range(count)]
        self._written = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Write the next rows. Raises: DamagedFileError if they are more than there are places."""
        places = self._places[self._written : self._written + len(rows)]
        self._require(len(places) == len(rows))
        part_of = places // self._rows
        for part in np.unique(part_of).tolist():
            self._parts[part].write(np.ascontiguousarray(rows[part_of == part], self._kind).data)
        self._written += len(rows)

    def finish(self) -> None:
        """Write the .npy file and remove the parts. Raises: DamagedFileError if rows are missing."""
        self._require(self._written == len(self._places))
        part_of = self._places // self._rows
        with self._target.open("xb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(self._kind), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, header | {"shape": (len(self._places), *self._shape)})
            for number, part in enumerate(self._parts):
                places = self._places[part_of == number] - number * self._rows
                ordered = np.empty((len(places), *self._shape), self._kind)
                part.seek(0)
                ordered[places] = np.frombuffer(part.read(), self._kind).reshape(ordered.shape)
                file.write(ordered.data)
                part.close()
                Path(part.name).unlink()

    def _require(self, expected: bool) -> None:
        if not expected:
            raise DamagedFileError(f"the source of {self._target.name} was changed while it was read; start again")
