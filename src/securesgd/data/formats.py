"""The formats of the built-in data sets: digits, idx files, CIFAR-10's binary layout, and the archives they come in."""

__all__ = ["decode_cifar_batch", "decode_idx", "digits_arrays", "encode_cifar_batch", "read_files", "unpack"]

import gzip
import hashlib
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from securesgd.data.arrays import DataArrays, validate_arrays
from securesgd.data.catalog import DataSet, StoredFile
from securesgd.data.places import read_verified
from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import MAX_JSON, parse_json

_SPLIT_SEED = 0
_TRAIN = 1_500
_SHA256 = "8801edd8f0184d7683b7b6efb968867d421e35eb80d954f2bd54e204409c2d45"


def digits_arrays() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
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
    inputs = (levels / np.float32(16)).reshape(-1, 1, 8, 8)
    return inputs[:_TRAIN], targets[:_TRAIN], inputs[_TRAIN:], targets[_TRAIN:]


_UNSIGNED_BYTES = 0x08


def decode_idx(content: bytes) -> NDArray[np.uint8]:
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


def decode_cifar_batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (n, 3, 32, 32) and labels (n,) of a batch; both share memory with `content` and are read-only.

    Raises: DamagedFileError if the length is not a whole number of images.
    """
    if not content or len(content) % (1 + _PIXELS):
        raise DamagedFileError(f"a CIFAR-10 batch has {1 + _PIXELS} bytes per image, got {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0]


def encode_cifar_batch(png: bytes, labels: Sequence[int]) -> bytes:
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


def read_files(dataset: DataSet, folder: Path) -> DataArrays:
    """Return the arrays of a data set whose files are in `folder`.

    Guarantee: the decoded bytes are those whose sha256 was compared with the catalog's.
    Raises: DamagedFileError if a file is absent, cut short or different.
    """
    of_test = [file for file in dataset.files if file.name.startswith(("t10k", "test"))]
    of_train = [file for file in dataset.files if file not in of_test]
    read = _idx_pair if dataset.layout == "idx" else _cifar_pair
    return validate_arrays(read(of_train, folder), read(of_test, folder), dataset.class_names, str(folder))


def _idx_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    images, labels = sorted(files, key=lambda file: "labels" in file.name)
    return decode_idx(read_verified(folder, images)), decode_idx(read_verified(folder, labels))


def _cifar_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    batches = [decode_cifar_batch(read_verified(folder, file)) for file in files]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelled so in the package
_BROKEN = (
    *(tarfile.TarError, zlib.error, EOFError, KeyError, ValueError, SyntaxError, OSError),  # Pillow raises SyntaxError
    Image.DecompressionBombError,
)


def unpack(
    archive: Path, wanted: Sequence[StoredFile], form: Literal["files", "png-rows"] = "files"
) -> Iterator[tuple[StoredFile, bytes]]:
    """Yield the wanted files with their content, not yet verified: all from a tar, the one it is from a .gz.

    Nothing is extracted to disk, so no path inside an archive matters. A file inside may itself be a .gz.
    Raises: DamagedFileError if the archive is cut short, corrupt or of another kind.
    """
    try:
        if not tarfile.is_tarfile(archive):
            yield from _single_file(archive, wanted)
        elif form == "png-rows":
            yield from _from_png_rows(archive, wanted)
        else:
            yield from _from_tar(archive, wanted)
    except _BROKEN as error:
        raise DamagedFileError(f"{archive.name} is damaged: {error}") from None


def _single_file(archive: Path, wanted: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes]]:
    for file in wanted:
        if archive.name.endswith(f"{file.name}.gz"):
            with gzip.open(archive) as stream:
                yield file, stream.read(file.size + 1)
            return
    raise DamagedFileError(f"{archive.name} is damaged: no tar archive, and no .gz of a wanted file")


def _from_tar(archive: Path, wanted: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes]]:
    named = {file.name: file for file in wanted}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if not member.isfile() or name.removesuffix(".gz") not in named:
                continue
            file = named.pop(name.removesuffix(".gz"))
            stream = _member(tar, member)
            with gzip.open(stream) if name.endswith(".gz") else stream as content:
                yield file, content.read(file.size + 1)
    if named:
        raise DamagedFileError(f"{archive.name} lacks {', '.join(named)}")


def _from_png_rows(archive: Path, wanted: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, bytes]]:
    with tarfile.open(archive) as tar:
        members = {PurePosixPath(member.name).name: member for member in tar if member.isfile()}
        labels = {split: parse_json(_member(tar, members[name]).read(MAX_JSON)) for split, name in _LABELS.items()}
        pictures = sorted(name for name in members if name.endswith(".png"))
        train = [name for name in pictures if name.startswith("data_batch_")]
        share = len(labels["train"]) // max(len(train), 1)
        for file in wanted:
            picture = file.name.replace(".bin", ".png")
            first = train.index(picture) * share if picture in train else 0
            of_picture = labels["train"][first : first + share] if picture in train else labels["test"]
            yield file, encode_cifar_batch(_member(tar, members[picture]).read(), of_picture)


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise DamagedFileError(f"{member.name} is not a file")
    return stream
