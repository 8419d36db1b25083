"""One image file: what its header says, and its pixels. Everything that is wrong with it is a reason in words."""

__all__ = ["GREY_MODES", "SUFFIXES", "ImageHeader", "read_header", "read_pixels"]

import contextlib
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.data.settings import format_size
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY_MODES = ("1", "L")
_COLOUR_MODES = ("RGB", "P")
_MOST_PIXELS = 1 << 24
"""Of one image: 4096×4096. A small file may claim far more."""
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
"""What Pillow raises for a file that is cut short or changed, beside its own errors, which are among these."""


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """Width and height in pixels, and Pillow's name of the kind of pixels."""

    size: tuple[int, int]
    mode: str

    @property
    def grey(self) -> bool:
        """Whether the image has one channel."""
        return self.mode in GREY_MODES


def read_header(path: Path | bytes) -> ImageHeader:
    """Return what the header of an image says, of a file or of the bytes of one.

    Raises: InvalidInputError, without the file's name, if it is no PNG or JPEG, has too many pixels, is transparent,
    or is not of 8 bits per channel.
    """
    if isinstance(path, Path) and path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError(f"is not an image of a valid kind: {', '.join(SUFFIXES)}")
    with _without_size_warning(), _open_image(path) as image:
        if image.size[0] * image.size[1] > _MOST_PIXELS:
            raise InvalidInputError(f"has {format_size(image.size)} pixels; valid: at most {_MOST_PIXELS:,} in all")
        if image.mode not in GREY_MODES + _COLOUR_MODES or "transparency" in image.info:
            raise InvalidInputError(f"is of mode {image.mode}; valid: 8-bit grey or RGB without transparency")
        return ImageHeader(size=image.size, mode=image.mode)


def read_pixels(path: Path | bytes, mode: str, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the pixels as (height, width, channels), converted to `mode`, then resized if `size` is another.

    Resizing averages over all pixels that fall into one (bilinear with antialiasing) and does not keep proportions.
    Orientation tags of a camera are not applied. Several threads may decode at once.
    Assumes: `read_header` accepted the file.
    Raises: InvalidInputError, without the file's name, if the file is damaged.
    """
    with _open_image(path) as image:
        try:
            picture = image.convert(mode)
        except _DAMAGE as error:
            raise InvalidInputError(f"is damaged: {_reason(error)}") from None
        if size is not None and picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(picture, np.uint8).reshape(picture.height, picture.width, len(mode))


@contextlib.contextmanager
def _without_size_warning() -> Iterator[None]:
    """Silence Pillow about a size that is refused in words. Not for threads: the filters are those of the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


@contextlib.contextmanager
def _open_image(path: Path | bytes) -> Iterator[Any]:
    try:
        file = io.BytesIO(path) if isinstance(path, bytes) else open_regular(path)
    except DamagedFileError as error:
        raise InvalidInputError(f"cannot be read: {error}") from None
    with file:
        try:
            image = Image.open(file, formats=("PNG", "JPEG"))
        except (*_DAMAGE, Image.DecompressionBombError) as error:
            raise InvalidInputError(f"cannot be read as PNG or JPEG: {_reason(error)}") from None
        with image:
            yield image


def _reason(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return "not an image" if "cannot identify image file" in text else text or type(error).__name__
