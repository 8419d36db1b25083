"""One file from one web address, resumed where an earlier attempt stopped."""

__all__ = ["Progress", "download"]

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from securesgd.errors import DataUnavailableError

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how many bytes are done, and how many there are (None: unknown)."""

_BLOCK = 1 << 18
_FRUITLESS_ATTEMPTS = 3  # in a row
_ATTEMPTS = 100  # in all, so that no server can keep us for ever


def download(address: str, target: Path, progress: Progress | None = None, timeout: float = 10.0) -> bool:
    """Bring `address` to the file `target`; return whether bytes of an earlier call were used.

    Guarantee: `target` appears only when as many bytes are there as the server announced; until then they are in
    `target` + ".partial", which a later call continues with an HTTP Range request if the server can. A connection
    that breaks is taken up again, until the first or three attempts in a row brought nothing. The content is not
    verified here.
    Raises: DataUnavailableError if it cannot be had; a partial file is then kept for the next call.
    """
    partial = target.with_name(f"{target.name}.partial")
    resumed = _size(partial) > 0
    reason, fruitless, arrived = "", 0, False
    for _ in range(_ATTEMPTS):
        time.sleep(fruitless)
        before = _size(partial)
        try:
            complete, kept = _continue(address, partial, progress, timeout)
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
        arrived = arrived or _size(partial) > before
        fruitless = 0 if _size(partial) > before else fruitless + 1
        if not arrived or fruitless == _FRUITLESS_ATTEMPTS:
            break
    raise DataUnavailableError(reason)


def _continue(address: str, partial: Path, progress: Progress | None, timeout: float) -> tuple[bool, bool]:
    """Append what the server sends; return whether the file is complete and whether earlier bytes were kept."""
    start = _size(partial)
    request = urllib.request.Request(address, headers={"User-Agent": "securesgd"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        first, total = _range(response)
        if first != start:
            start = 0  # the server ignored the range and sends the whole file
        with os.fdopen(_open_unlinked(partial, start), "ab") as file:
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


def _open_unlinked(partial: Path, start: int) -> int:
    """Return a descriptor that appends at `start`; a symbolic link at that name is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if start else os.O_TRUNC)
    return os.open(partial, flags, 0o644)


def _range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of the first byte the server sends and the size of the whole file, None if not told."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if told is None:
            raise DataUnavailableError("a partial answer without Content-Range")
        return int(told[1]), None if told[2] == "*" else int(told[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
