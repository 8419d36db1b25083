"""Where data sets are on this machine, and whether their files are those of the catalog."""

__all__ = ["Presence", "missing_files", "presence", "read_verified", "roots", "verify_content"]

import hashlib
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

from securesgd.data.catalog import DataSet, StoredFile
from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import read_bytes


@dataclass(frozen=True)
class Presence:
    """Whether a data set is on this machine, by file sizes; `folder` is None if no file of it is there."""

    state: Literal["embedded", "present", "incomplete", "absent"]
    folder: Path | None = None


def roots(folder: str | PathLike[str] | None = None) -> list[Path]:
    """Return the folders that may hold data set folders, first choice first.

    `folder` alone if given; else $SECURESGD_DATA if set, then securesgd/ in the user's cache ($XDG_CACHE_HOME or
    ~/.cache).
    """
    if folder is not None:
        return [Path(folder).expanduser()]
    named = os.environ.get("SECURESGD_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return [Path(place).expanduser() for place in (named, cache / "securesgd") if place]


def presence(dataset: DataSet, folder: str | PathLike[str] | None = None) -> Presence:
    """Return where the data set is; names and sizes are looked at, not checksums, so this is fast."""
    if not dataset.files:
        return Presence("embedded")
    best = Presence("absent")
    for root in roots(folder):
        place = root / dataset.name
        right = [_file_size(place / file.name) == file.size for file in dataset.files]
        if all(right):
            return Presence("present", place)
        if best.state == "absent" and any((place / file.name).exists() for file in dataset.files):
            best = Presence("incomplete", place)
    return best


def missing_files(dataset: DataSet, place: Path) -> list[StoredFile]:
    """Return the files of the data set that are not in the folder `place`; those that are there were verified.

    Raises: DamagedFileError for a file that is there with other content.
    """
    missing = [file for file in dataset.files if not (place / file.name).exists()]
    for file in dataset.files:
        if file not in missing:
            read_verified(place, file)
    return missing


def read_verified(place: Path, file: StoredFile) -> bytes:
    """Return the content of a stored file.

    Guarantee: its sha256 is the catalog's; the bytes that were checked are the bytes returned.
    Raises: DamagedFileError if the file is absent, cut short or different.
    """
    path = place / file.name
    size = _file_size(path)
    if size is None:
        raise DamagedFileError(f"{path} does not exist; run `securesgd data fetch {place.name}`")
    try:
        return verify_content(read_bytes(path, file.size) if size == file.size else None, file, size)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}; remove it and fetch again") from None


def verify_content(content: bytes | None, file: StoredFile, size: int | None = None) -> bytes:
    """Return `content` if it is that of `file`; `size` is given alone (content None) when it is known to be wrong.

    Raises: DamagedFileError naming size or checksum.
    """
    length = size if content is None else len(content)
    if content is None or length != file.size:
        half = " (half downloaded?)" if length is not None and length < file.size else ""
        raise DamagedFileError(f"{file.name} has {length:,} bytes instead of {file.size:,}{half}")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DamagedFileError(f"{file.name} has sha256 {digest[:12]}… instead of {file.sha256[:12]}…")
    return content


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
