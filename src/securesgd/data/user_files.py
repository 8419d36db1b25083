"""The user's own data: one .npz file, or a folder of images by class."""

__all__ = ["read_image_folder", "read_npz"]

import io
import math
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.data.arrays import DataArrays, require_memory, validate_arrays
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_FREE, _RATIO = 64 << 20, 200
"""Bytes that any file may unpack to, and beyond them how many of each byte; pictures compress by 2 to 50."""


def read_npz(path: Path) -> DataArrays:
    """Return the validated arrays of a .npz file; `classes` in it may be their number or their names.

    Guarantee: no pickle is read, so the file cannot run code. What the headers claim is compared with the size of the
    file and the memory of the machine before anything is unpacked.
    Raises: DamagedFileError if it cannot be read; InvalidInputError if an array is missing or not valid.
    """
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist")
    try:
        with open_regular(path) as file:
            _require_true_sizes(path, file)
            archive = np.load(file, allow_pickle=False)
            missing = [key for key in _KEYS if key not in archive]
            if missing:
                held = ", ".join(archive.files) or "nothing"
                raise InvalidInputError(f"{path} lacks {', '.join(missing)}; it holds {held}")
            x_train, y_train, x_test, y_test = (archive[key] for key in _KEYS)
            stored = archive.get("classes")
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


_SUFFIXES = (".png", ".jpg", ".jpeg")
_GREY = ("1", "L")
_COLOUR = ("RGB", "P")
_MOST_PIXELS = 1 << 24
"""Of one image: 4096×4096. A small file may claim far more."""
_LabelledPaths = list[tuple[Path, int]]


def read_image_folder(folder: Path) -> DataArrays:
    """Return the images as validated arrays, classes and files in the order of their names.

    Grey if every image is grey, else RGB. Files and folders whose name starts with a dot are ignored; orientation
    tags of a camera are not applied.
    Raises: InvalidInputError for a missing or empty class folder, a class of one split only, another kind of file,
    images of different sizes, transparent or 16-bit images; DamagedFileError for an image that cannot be read.
    """
    names = _class_names(folder / "train")
    in_test = _class_names(folder / "test")
    if names != in_test:
        other = sorted(set(names) ^ set(in_test))[0]
        where, lacking = ("train", "test") if other in names else ("test", "train")
        raise InvalidInputError(
            f"{folder}: class {other!r} is in {where}/ but not in {lacking}/; both need every class"
        )
    files = {split: _list_images(folder / split, names) for split in ("train", "test")}
    mode = _shared_mode([path for split in files.values() for path, _ in split])
    train, test = (_pixels(files[split], mode) for split in ("train", "test"))
    return validate_arrays(train, test, names, str(folder))


def _class_names(split: Path) -> list[str]:
    if not split.is_dir():
        raise InvalidInputError(f"{split} is not a folder; needed: train/<class>/*.png|jpg and test/<class>/*.png|jpg")
    names = sorted(entry.name for entry in split.iterdir() if not entry.name.startswith("."))
    stray = [name for name in names if not (split / name).is_dir()]
    if stray:
        raise InvalidInputError(f"{split / stray[0]} is not a class folder; needed: {split.name}/<class>/*.png|jpg")
    return names


def _list_images(split: Path, names: Sequence[str]) -> _LabelledPaths:
    labelled: _LabelledPaths = []
    for label, name in enumerate(names):
        files = sorted(entry for entry in (split / name).iterdir() if not entry.name.startswith("."))
        if not files:
            raise InvalidInputError(f"{split / name} is empty; every class needs at least one image")
        for file in files:
            if file.suffix.lower() not in _SUFFIXES:
                raise InvalidInputError(f"{file} is not an image of a valid kind: {', '.join(_SUFFIXES)}")
            labelled.append((file, label))
    return labelled


def _shared_mode(files: Sequence[Path]) -> str:
    """Return "L" or "RGB" after a look at every image's header."""
    first_size, modes = None, set()
    for path in files:
        with _open_image(path) as image:
            if image.size[0] * image.size[1] > _MOST_PIXELS:
                raise InvalidInputError(
                    f"{path} has {image.size[0]}×{image.size[1]} pixels; valid: at most {_MOST_PIXELS:,} in all"
                )
            first_size = first_size or image.size
            if image.size != first_size:
                raise InvalidInputError(
                    f"{path} has {image.size[0]}×{image.size[1]} pixels but {files[0]} has "
                    f"{first_size[0]}×{first_size[1]}; all images must have the same size"
                )
            if image.mode not in _GREY + _COLOUR or "transparency" in image.info:
                raise InvalidInputError(
                    f"{path} is of mode {image.mode}; valid: 8-bit grey or RGB without transparency"
                )
            modes.add(image.mode)
    return "L" if modes <= set(_GREY) else "RGB"


def _pixels(labelled: _LabelledPaths, mode: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with _open_image(labelled[0][0]) as image:
        width, height = image.size
    require_memory(
        5 * len(labelled) * height * width * len(mode), str(labelled[0][0].parents[1])
    )  # bytes, then float32
    pixels = np.empty((len(labelled), height, width, len(mode)), np.uint8)  # one letter per channel
    for row, (path, _) in zip(pixels, labelled, strict=True):
        with _open_image(path) as image:
            try:
                row[:] = np.asarray(image.convert(mode)).reshape(row.shape)
            except (OSError, SyntaxError, ValueError) as error:
                raise DamagedFileError(f"{path} is damaged: {error}") from None
    return pixels.transpose(0, 3, 1, 2), np.array([label for _, label in labelled])


def _open_image(path: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked, and refused in words
            return Image.open(open_regular(path), formats=("PNG", "JPEG"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DamagedFileError(f"{path} cannot be read as PNG or JPEG: {error}") from None
