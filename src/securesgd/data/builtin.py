"""The built-in data sets: embedded digits, MNIST and Fashion-MNIST (idx files), CIFAR-10 (its binary layout)."""

__all__ = ["batch_arrays", "batch_from_png_row", "digits_arrays", "idx_array", "stored_arrays"]

import hashlib
import io
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.data.arrays import CheckedArrays, checked_arrays
from securesgd.data.catalog import DataSet, StoredFile
from securesgd.data.places import verified_bytes
from securesgd.errors import DamagedFileError

_SPLIT_SEED = 0
_SHA256 = "8801edd8f0184d7683b7b6efb968867d421e35eb80d954f2bd54e204409c2d45"


def digits_arrays(dataset: DataSet) -> CheckedArrays:
    """Return the digits in a fixed order drawn with a fixed seed, the first 1,500 as training examples.

    Guarantee: the same arrays on every machine and version; a checksum of the permuted data is compared.
    Raises: DamagedFileError if scikit-learn's copy or numpy's permutation is not the one this split was made with.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    levels, targets = images[order].astype(np.uint8), labels[order].astype(np.int64)  # 0..16
    digest = hashlib.sha256(levels.tobytes() + targets.astype("<i8").tobytes()).hexdigest()
    if digest != _SHA256:
        raise DamagedFileError(f"digits: the split has sha256 {digest[:12]}… instead of {_SHA256[:12]}…")
    inputs = (levels / np.float32(16)).reshape(-1, *dataset.input_shape)
    cut = dataset.train_size
    return checked_arrays((inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:]), dataset.class_names)


_UNSIGNED_BYTES = 0x08


def idx_array(content: bytes) -> NDArray[np.uint8]:
    """Return the array an idx file of unsigned bytes holds; it shares memory with `content` and is read-only.

    Raises: DamagedFileError if it is no such file or its length is not what its header says.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DamagedFileError(f"not an idx file of unsigned bytes: it starts with {content[:4]!r}")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise DamagedFileError(f"an idx file of {content[3]} dimensions needs {header} bytes, got {len(content)}")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DamagedFileError(
            f"an idx file of shape {shape} needs {math.prod(shape)} values, got {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


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


_Pair = tuple[NDArray[Any], NDArray[Any]]


def stored_arrays(dataset: DataSet, folder: Path) -> CheckedArrays:
    """Return the arrays of a data set whose files are in `folder`.

    Guarantee: the decoded bytes are those whose sha256 was compared with the catalog's.
    Raises: DamagedFileError if a file is absent, cut short or different.
    """
    of_test = [file for file in dataset.files if file.name.startswith(("t10k", "test"))]
    of_train = [file for file in dataset.files if file not in of_test]
    read = _idx_pair if dataset.layout == "idx" else _cifar_pair
    return checked_arrays(read(of_train, folder), read(of_test, folder), dataset.class_names, str(folder))


def _idx_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    images, labels = sorted(files, key=lambda file: "labels" in file.name)
    return idx_array(verified_bytes(folder, images)), idx_array(verified_bytes(folder, labels))


def _cifar_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    batches = [batch_arrays(verified_bytes(folder, file)) for file in files]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])
