"""The user's own data as one .npz file: arrays of training and test examples."""

__all__ = ["read_npz", "read_npz_inputs", "unpack_npz"]

import io
import math
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from securesgd.data.array_rows import ArrayRows, read_array_header
from securesgd.data.arrays import SourceData, require_memory, validate_arrays
from securesgd.data.stored_inputs import StoredInputs, stays_on_disk
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_INPUT_KEYS = ("x", "x_test")
_PIECE = 16 << 20
_FREE, _RATIO = 64 << 20, 200
"""Bytes that any file may unpack to, and beyond them how many of each byte; pictures compress by 2 to 50."""


def read_npz(path: Path, *, on_disk: bool = False) -> SourceData:
    """Return the validated arrays of a .npz file; `classes` in it may be their number or their names.

    Training inputs that would take more than a quarter of the memory, or any if `on_disk`, are read as they are
    sampled, unless they are compressed or stored by columns: then they are loaded, and a note says so.
    Guarantee: no pickle is read, so the file cannot run code. What the headers claim is compared with the size of the
    file and the memory of the machine before anything is unpacked.
    Raises: DamagedFileError if it cannot be read; InvalidInputError if an array is missing or not valid.
    """
    start, notes = _stored_start(path, on_disk)
    with _open_archive(path, () if start is None else _KEYS[:1]) as archive:
        _require_keys(path, archive, [key for key in _KEYS if key not in archive])
        x_train = archive[_KEYS[0]] if start is None else StoredInputs(ArrayRows(path, start))
        y_train, x_test, y_test = (archive[key] for key in _KEYS[1:])
        classes = _classes(path, archive)
    arrays = validate_arrays((x_train, y_train), (x_test, y_test), classes, str(path))
    return SourceData(arrays=arrays, split="train and test of the .npz file", notes=notes)


def unpack_npz(path: Path, places: Sequence[Path]) -> int | list[str] | None:
    """Write x_train, y_train, x_test, y_test as .npy files, a piece at a time, and return `classes` if there are any.

    Guarantee, Raises: as `read_npz`; the arrays are not validated.
    """
    with _open_archive(path, _KEYS) as archive:
        _require_keys(path, archive, [key for key in _KEYS if key not in archive])
        for key, place in zip(_KEYS, places, strict=True):
            with archive.zip.open(f"{key}.npy") as member, place.open("xb") as file:
                shutil.copyfileobj(member, file, _PIECE)
        return _classes(path, archive)


def _classes(path: Path, archive: Any) -> int | list[str] | None:
    stored = archive.get("classes")
    if stored is None:
        return None
    if stored.ndim == 0 and np.issubdtype(stored.dtype, np.integer):
        return int(stored)
    if stored.ndim == 1 and stored.dtype.kind == "U":
        names: list[str] = stored.tolist()
        return names
    raise InvalidInputError(
        f"{path}: classes has shape {stored.shape} of {stored.dtype}; valid: a whole number, or the names as text"
    )


def _stored_start(path: Path, on_disk: bool) -> tuple[int | None, tuple[str, ...]]:
    """Return at which byte x_train begins if it is to stay on disk, and a note if it should but cannot.

    Its bytes are compared with the sum in the archive, as they are if it is loaded.
    """
    with _open_archive(path, _KEYS) as archive:
        member = next((m for m in archive.zip.infolist() if m.filename == f"{_KEYS[0]}.npy"), None)
        if member is None:
            return None, ()
        with archive.zip.open(member) as stream:
            shape, by_columns, _ = read_array_header(stream)
            if not stays_on_disk(math.prod(shape), on_disk):
                return None, ()
            if member.compress_type != zipfile.ZIP_STORED or by_columns:
                how = "stored by columns" if by_columns else "compressed"
                return None, (
                    f"{path}: x_train is {how} and was loaded whole; numpy.savez, or `securesgd data convert`, writes "
                    "it so that it can stay on disk",
                )
            while stream.read(_PIECE):  # to the end, where zipfile compares the sum
                pass
        with open_regular(path) as file:
            file.seek(member.header_offset)
            name, extra = struct.unpack("<26x2H", file.read(30))  # lengths of what stands between header and content
        return member.header_offset + 30 + name + extra, ()


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
def _open_archive(path: Path, streamed: Sequence[str] = ()) -> Iterator[Any]:
    """Yield the arrays of a .npz file by name, its sizes checked; what reading one of them raises is said in words.

    Memory need not suffice for the arrays that are `streamed`.
    """
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist")
    try:
        with open_regular(path) as file:
            _require_true_sizes(path, file, [f"{key}.npy" for key in streamed])
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
        struct.error,
        zlib.error,
    ) as error:
        raise DamagedFileError(f"{path} cannot be read as .npz without pickle: {error}") from None


def _require_true_sizes(path: Path, file: BinaryIO, streamed: Sequence[str]) -> None:
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
        require_memory(sum(m.file_size for m in members if m.filename not in streamed), str(path), convertible=True)
        for member in members:
            with archive.open(member) as stream:
                shape, _, kind = read_array_header(stream)
                claimed = math.prod(shape) * kind.itemsize
            if claimed > member.file_size:
                raise DamagedFileError(
                    f"{path}: {member.filename} has {member.file_size:,} bytes, its header says {claimed:,}"
                )
    file.seek(0)
