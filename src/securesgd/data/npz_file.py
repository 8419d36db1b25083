"""The user's own data as one .npz file: arrays of training and test examples."""

__all__ = ["read_npz", "read_npz_inputs"]

import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from securesgd.data.arrays import DataArrays, require_memory, validate_arrays
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_INPUT_KEYS = ("x", "x_test")
_FREE, _RATIO = 64 << 20, 200
"""Bytes that any file may unpack to, and beyond them how many of each byte; pictures compress by 2 to 50."""


def read_npz(path: Path) -> DataArrays:
    """Return the validated arrays of a .npz file; `classes` in it may be their number or their names.

    Guarantee: no pickle is read, so the file cannot run code. What the headers claim is compared with the size of the
    file and the memory of the machine before anything is unpacked.
    Raises: DamagedFileError if it cannot be read; InvalidInputError if an array is missing or not valid.
    """
    with _open_archive(path) as archive:
        _require_keys(path, archive, [key for key in _KEYS if key not in archive])
        x_train, y_train, x_test, y_test = (archive[key] for key in _KEYS)
        stored = archive.get("classes")
    if stored is None:
        classes = None
    elif stored.ndim == 0 and np.issubdtype(stored.dtype, np.integer):
        classes = int(stored)
    elif stored.ndim == 1 and stored.dtype.kind == "U":
        classes = stored.tolist()
    else:
        raise InvalidInputError(
            f"{path}: classes has shape {stored.shape} of {stored.dtype}; valid: a whole number, or the names as text"
        )
    return validate_arrays((x_train, y_train), (x_test, y_test), classes, str(path))


def read_npz_inputs(path: Path) -> NDArray[Any]:
    """Return the array `x` of a .npz file, or x_test if it has no x: inputs without labels, not validated.

    Guarantee, Raises: as `read_npz`.
    """
    with _open_archive(path) as archive:
        key = next((key for key in _INPUT_KEYS if key in archive), None)
        _require_keys(path, archive, [] if key else [" or ".join(_INPUT_KEYS)])
        inputs: NDArray[Any] = archive[key]
    return inputs


def _require_keys(path: Path, archive: Any, missing: Sequence[str]) -> None:
    if missing:
        held = ", ".join(archive.files) or "nothing"
        raise InvalidInputError(f"{path} lacks {', '.join(missing)}; it holds {held}")


@contextmanager
def _open_archive(path: Path) -> Iterator[Any]:
    """Yield the arrays of a .npz file by name, its sizes checked; what reading one of them raises is said in words."""
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist")
    try:
        with open_regular(path) as file:
            _require_true_sizes(path, file)
            yield np.load(file, allow_pickle=False)
    except InvalidInputError:
        raise
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DamagedFileError(f"{path} cannot be read as .npz without pickle: {error}") from None


def _require_true_sizes(path: Path, file: BinaryIO) -> None:
    """Raise DamagedFileError if an array is not as large as its header says, or unpacks to far more than its file.

    Raises: zipfile.BadZipFile, too.
    """
    if not zipfile.is_zipfile(file):
        raise DamagedFileError(f"{path} is not a .npz file; make one with numpy.savez")
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacked, packed = (sum(getattr(m, kind) for m in members) for kind in ("file_size", "compress_size"))
        if packed > size or unpacked > max(_FREE, _RATIO * size):
            raise DamagedFileError(
                f"{path} has {size:,} bytes and would unpack to {unpacked:,}, more than {_RATIO} times as many; if it "
                "is meant so, save it with numpy.savez, uncompressed"
            )
        require_memory(unpacked, str(path))
        for member in members:
            with archive.open(member) as stream:
                claimed = _declared_bytes(stream)
            if claimed > member.file_size:
                raise DamagedFileError(
                    f"{path}: {member.filename} has {member.file_size:,} bytes, its header says {claimed:,}"
                )
    file.seek(0)


def _declared_bytes(stream: IO[bytes]) -> int:
    """Return how many bytes the header of a .npy file says that its array has. Raises: ValueError if it is none."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(stream)
    return math.prod(shape) * kind.itemsize
