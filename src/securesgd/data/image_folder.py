"""The user's own data as a folder of images by class: train/<class>/*.png|jpg and test/<class>/*.png|jpg."""

__all__ = ["image_folder_arrays"]

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.data.arrays import CheckedArrays, checked_arrays, require_memory
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_SUFFIXES = (".png", ".jpg", ".jpeg")
_GREY = ("1", "L")
_COLOUR = ("RGB", "P")
_MOST_PIXELS = 1 << 24
"""Of one image: 4096×4096. A small file may claim far more."""
_Labelled = list[tuple[Path, int]]


def image_folder_arrays(folder: Path) -> CheckedArrays:
    """Return the images as checked arrays, classes and files in the order of their names.

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
    files = {split: _labelled(folder / split, names) for split in ("train", "test")}
    mode = _shared_mode([path for split in files.values() for path, _ in split])
    train, test = (_pixels(files[split], mode) for split in ("train", "test"))
    return checked_arrays(train, test, names, str(folder))


def _class_names(split: Path) -> list[str]:
    if not split.is_dir():
        raise InvalidInputError(f"{split} is not a folder; needed: train/<class>/*.png|jpg and test/<class>/*.png|jpg")
    names = sorted(entry.name for entry in split.iterdir() if not entry.name.startswith("."))
    stray = [name for name in names if not (split / name).is_dir()]
    if stray:
        raise InvalidInputError(f"{split / stray[0]} is not a class folder; needed: {split.name}/<class>/*.png|jpg")
    return names


def _labelled(split: Path, names: Sequence[str]) -> _Labelled:
    labelled: _Labelled = []
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
        with _opened(path) as image:
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


def _pixels(labelled: _Labelled, mode: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with _opened(labelled[0][0]) as image:
        width, height = image.size
    require_memory(
        5 * len(labelled) * height * width * len(mode), str(labelled[0][0].parents[1])
    )  # bytes, then float32
    pixels = np.empty((len(labelled), height, width, len(mode)), np.uint8)  # one letter per channel
    for row, (path, _) in zip(pixels, labelled, strict=True):
        with _opened(path) as image:
            try:
                row[:] = np.asarray(image.convert(mode)).reshape(row.shape)
            except (OSError, SyntaxError, ValueError) as error:
                raise DamagedFileError(f"{path} is damaged: {error}") from None
    return pixels.transpose(0, 3, 1, 2), np.array([label for _, label in labelled])


def _opened(path: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked, and refused in words
            return Image.open(open_regular(path), formats=("PNG", "JPEG"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DamagedFileError(f"{path} cannot be read as PNG or JPEG: {error}") from None
