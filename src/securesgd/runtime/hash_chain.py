"""JSON lines sealed in a chain: an edited, deleted, inserted or reordered line is detected.

A line is a JSON object whose first key is its index and whose last key is
    digest = sha256(digest of the line before + the line's bytes up to its own digest).
Line 0 is the header and has no line before. The digest is taken over the bytes in the file, so any edit
counts.

The end of the file is the one place where a chain cannot help:
  * Torn end. A crash in the middle of a write leaves a piece of a line without a newline. Nothing was
    acknowledged then: the writer returns, and the caller releases something, only after the whole line is on
    disk. So a last piece without newline, which begins as the next line would, is ignored. If it is a whole
    sealed line that only lacks its newline, it counts (that can only overstate).
  * Whole lines cut off the end leave a valid, shorter chain. A reader who relies on a line keeps (index, digest)
    elsewhere, as a checkpoint does, and compares. The chain has no secret: it shows accidents and careless
    edits, not a forger who recomputes every digest.
"""

__all__ = ["Chain", "seal_line", "verify_chain"]

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import parse_json

_SEAL = b',"digest":"'


@dataclass(frozen=True)
class Chain:
    """The verified lines of a file: their contents and digests, and the bytes they fill.

    `size` is the number of bytes of whole lines; what is beyond it in the file is a torn end (`torn_end`).
    `has_final_newline` is False if the last line is whole but lacks its newline.
    """

    bodies: tuple[dict[str, Any], ...]
    digests: tuple[str, ...]
    size: int
    has_final_newline: bool
    torn_end: bool


def seal_line(index: int, body: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """Return the line (with its newline) that holds `body`, and its digest.

    Assumes: `body` holds finite numbers, strings, lists and objects, and no key "index" or "digest".
    """
    text = json.dumps({"index": index, **body}, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    content = text.encode("ascii")[:-1]
    digest = _digest(previous, content)
    return content + _SEAL + digest.encode("ascii") + b'"}\n', digest


def verify_chain(data: bytes, path: Path) -> Chain:
    """Return the lines in `data`, each checked against the one before; `path` is for the messages.

    Guarantee: the lines are exactly those written, in order, up to a torn end and up to lines cut off the
    end.
    Raises: DamagedFileError with the line number (from 1) and the reason.
    """
    pieces = data.split(b"\n")
    rest = pieces.pop()
    bodies: list[dict[str, Any]] = []
    digests: list[str] = []
    for index, line in enumerate(pieces):
        body, digest = _parse_line(index, line, digests[-1] if digests else "", path)
        bodies.append(body)
        digests.append(digest)
    size, has_final_newline, torn_end = len(data) - len(rest), True, False
    if rest:
        index = len(pieces)
        try:
            body, digest = _parse_line(index, rest, digests[-1] if digests else "", path)
        except DamagedFileError:
            if not _begins_line(rest, index):
                raise
            torn_end = True
        else:
            bodies.append(body)
            digests.append(digest)
            size, has_final_newline = len(data), False
    return Chain(tuple(bodies), tuple(digests), size, has_final_newline, torn_end)


def _parse_line(index: int, line: bytes, previous: str, path: Path) -> tuple[dict[str, Any], str]:
    """Return content and digest of a line. Raises: DamagedFileError if it is not the next in the chain."""
    content, seal, tail = line.rpartition(_SEAL)
    if not seal or len(tail) != 66 or not tail.endswith(b'"}'):
        raise _damage(path, index, "is not a sealed line of a securesgd ledger")
    try:
        body = parse_json(content + b"}")
    except ValueError as error:
        raise _damage(path, index, f"is not valid JSON ({error})") from None
    if not isinstance(body, dict) or body.pop("index", None) != index:
        raise _damage(path, index, f"does not have the index {index}: a line was removed, added or moved")
    digest = tail[:64].decode("ascii", "replace")
    if digest != _digest(previous, content):
        raise _damage(path, index, "does not match its digest: it, or the line before, was changed")
    return body, digest


def _begins_line(piece: bytes, index: int) -> bool:
    """Return whether `piece` could be the beginning of line `index` (a file system may pad it with zeros)."""
    piece = piece.rstrip(b"\0")
    start = b'{"index":%d,' % index
    return piece[: len(start)] == start[: len(piece)]


def _digest(previous: str, content: bytes) -> str:
    return hashlib.sha256(previous.encode("ascii") + content).hexdigest()


def _damage(path: Path, index: int, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path}, line {index + 1}: {reason}; the file was left untouched")
