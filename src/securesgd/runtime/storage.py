"""Files of this package: written whole or not at all, read within limits, never through a symbolic link.

Writing. A file is written under a random new name (O_EXCL, O_NOFOLLOW), synced, and renamed. A symbolic link at its
place is replaced; what the link points to is not touched. A killed process leaves `.securesgd-<16 hex digits>.partial`,
which is never read and is removed by a later write to the folder.

Reading. Only regular files are read (a pipe would block for ever, a device never end), up to a size that no file of
ours comes near. JSON and TOML are read by one function each, which takes finite numbers of 64 bits, keys that occur
once and nesting that the rest of the package can walk through; everything that this package writes is within that.
"""

__all__ = [
    "create_draft",
    "file_digest",
    "is_leftover",
    "open_regular",
    "parse_json",
    "read_bytes",
    "read_json",
    "read_toml",
    "require_writable",
    "sync_folder",
    "write_all",
    "write_json",
    "write_whole",
]

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

from securesgd.errors import DamagedFileError, InvalidInputError

MAX_JSON = 64 << 20
"""Bytes. The largest of ours is the r of a wide first layer: a million numbers of 25 characters."""
MAX_TOML = 64 << 10
"""Bytes. A configuration has some fifty lines, one of which may be a path."""
MAX_NESTING = 32
"""Levels of lists and objects; ours have six."""
_LEFTOVER = re.compile(r"\.securesgd-[0-9a-f]{16}\.partial")
_ABANDONED = 3600.0  # seconds without a write after which no process is still writing


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically; folders on the way are made.

    Guarantee: at every moment, also after a crash, the file is the old one or the new one; on disk when this returns
    (file and folder are synced). No link is followed at `path` or at the name used meanwhile. A failure leaves nothing.
    Raises: OSError with the name of the file.
    """
    draft: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, descriptor = create_draft(path.parent, mode)
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    _remove_leftovers(path.parent)


def create_draft(folder: Path, mode: int) -> tuple[Path, int]:
    """Return a new file of a random name in `folder` and its descriptor; the name was free, so it is no link."""
    draft = folder / f".securesgd-{secrets.token_hex(8)}.partial"
    return draft, os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def require_writable(path: Path) -> None:
    """Return if a file or folder can be made at `path`, or written to if it is a folder; nothing is left there.

    For a command whose work would be lost if it found out at its end.
    Raises: InvalidInputError if `path` is in a file, or in a folder that cannot be written to.
    """
    folder = path.absolute().parent if path.is_file() else path.absolute()  # a file is replaced by one beside it
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise InvalidInputError(f"{path} cannot be written: {folder} is no folder; give a path in a folder of yours")
    try:
        draft, descriptor = create_draft(folder, 0o600)
        os.close(descriptor)
        draft.unlink()
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {folder}: {error.strerror}; give a path in a folder of yours"
        ) from None


def is_leftover(path: Path) -> bool:
    """Return whether a file has the name of an unfinished write."""
    return _LEFTOVER.fullmatch(path.name) is not None


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; one system call may take fewer than it is given."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Return a file open for reading. Raises: DamagedFileError if it is missing, or is a folder, pipe or device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a zero byte in the name
        raise DamagedFileError(f"{str(path)!r} cannot be read: {error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFileError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """Return the content of a file. Raises: DamagedFileError if it cannot be read or has more than `limit` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise DamagedFileError(f"{path} has more than {limit:,} bytes: it is not a file of a run")
    return content


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file of any size, None if there is none. Raises: DamagedFileError if it is no file."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises: ValueError.

    Guarantee: numbers are finite and fit 64 bits, no key occurs twice, nesting is at most 32 levels.
    """
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_distinct_keys,
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels") from None
    _require_limits(value)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises: DamagedFileError, with the file's name, if it holds anything else."""
    try:
        content = parse_json(read_bytes(path))
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} is damaged: not a JSON object")
    return content


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write one JSON record, whole or not at all. Raises: ValueError for a number that could not be read back."""
    write_whole(path, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())


def read_toml(path: Path, limit: int = MAX_TOML) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises: DamagedFileError, with the file's name, if it is not one."""
    try:
        content = tomllib.loads(read_bytes(path, limit).decode("utf-8"))
        _require_limits(content)
    except RecursionError:
        raise DamagedFileError(f"{path} is damaged: not a TOML file: nested deeper than {MAX_NESTING} levels") from None
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: not a TOML file: {error}") from None
    return content


def _require_limits(value: Any) -> None:
    """Raise ValueError unless numbers are finite and of 64 bits, and nesting is at most MAX_NESTING levels."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise ValueError(f"nested deeper than {MAX_NESTING} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{item} is not a finite number")
            elif isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ValueError("an integer has more than 64 bits")
        level = below


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice")
    return record


def _remove_leftovers(folder: Path) -> None:
    """Remove the drafts of killed processes from a folder; a draft that is still being written is younger."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_leftover(Path(entry.name)) and time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED:
                Path(entry).unlink(missing_ok=True)
