"""One file from one web address, resumed where an earlier attempt stopped."""

__all__ = ["Progress", "download"]

import contextlib
import http.client
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
_FRUITLESS_ATTEMPTS = 3


def download(address: str, target: Path, progress: Progress | None = None, timeout: float = 10.0) -> bool:
    """Bring `address` to the file `target`; return whether bytes of an earlier call were used.

    Guarantee: `target` appears only when as many bytes are there as the server announced; until then they are in
    `target` + ".partial", which a later call continues with an HTTP Range request if the server can. A connection
    that breaks is taken up again, until the first or three attempts in a row brought nothing. The content is not
    verified here.
    Raises: DataUnavailableError if it cannot be had; a partial file is then kept for the next call.
    """
    partial = target.with_name(f"{target.name}.partial")
    resumed = partial.exists() and partial.stat().st_size > 0
    fruitless, arrived = 0, False
    while True:
        time.sleep(fruitless)
        before = partial.stat().st_size if partial.exists() else 0
        try:
            complete, resumed_now = _continue(address, partial, progress, timeout)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not before:
                    raise DataUnavailableError(f"HTTP {error.code} {error.reason}") from None
            partial.unlink()  # longer than the file is now, so not a part of it
            resumed = False
            continue
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            complete, resumed_now = False, True
        else:
            reason = "the connection closed early"
        resumed = resumed and resumed_now
        if complete:
            partial.replace(target)
            return resumed
        after = partial.stat().st_size if partial.exists() else 0
        arrived = arrived or after > before
        fruitless = 0 if after > before else fruitless + 1
        if not arrived or fruitless == _FRUITLESS_ATTEMPTS:
            raise DataUnavailableError(reason)


def _continue(address: str, partial: Path, progress: Progress | None, timeout: float) -> tuple[bool, bool]:
    """Append what the server sends; return whether the file is complete and whether earlier bytes were kept."""
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "securesgd"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        first, total = _range(response)
        if first != start:
            start = 0  # the server ignored the range and sends the whole file
        with partial.open("ab" if start else "wb") as file:
            done = start
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress:
                    progress(address, done, total)
    return total is None or done == total, start > 0


def _range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of the first byte the server sends and the size of the whole file, None if not told."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if told is None:
            raise DataUnavailableError("a partial answer without Content-Range")
        return int(told[1]), None if told[2] == "*" else int(told[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None
