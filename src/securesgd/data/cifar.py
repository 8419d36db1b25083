"""CIFAR-10's binary layout: per image one label byte, then the red, the green and the blue plane row by row."""

__all__ = ["batch_arrays", "batch_from_png_row"]

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.errors import DamagedFileError

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def batch_arrays(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (n, 3, 32, 32) and labels (n,) of a batch; both share memory with `content` and are read-only.

    Raises: DamagedFileError if the length is not a whole number of images.
    """
    if not content or len(content) % (1 + _PIXELS):
        raise DamagedFileError(f"a CIFAR-10 batch has {1 + _PIXELS} bytes per image, got {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0]


def batch_from_png_row(png: bytes, labels: Sequence[int]) -> bytes:
    """Return the batch in the binary layout from a PNG with one image per row (its 1024 pixels, row by row).

    Raises: DamagedFileError if the picture is not RGB, 1024 wide and as high as there are labels.
    """
    with Image.open(io.BytesIO(png), formats=("PNG",)) as picture:
        if picture.mode != "RGB" or picture.size != (32 * 32, len(labels)):
            raise DamagedFileError(f"expected an RGB picture of 1024×{len(labels)}, got {picture.mode} {picture.size}")
        pixels = np.asarray(picture, np.uint8)
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), _PIXELS)
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], planes], axis=1).tobytes()
