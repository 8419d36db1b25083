"""The outcome of a check: a line for each claim, which is ok, fails, or cannot be checked, and why. No torch."""

__all__ = [
    "FAIL",
    "NOT_CHECKABLE",
    "NOT_CHECKED",
    "OK",
    "CheckResult",
    "Claim",
    "Finding",
    "NotCheckable",
    "examine",
    "require_equal",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from securesgd.errors import DamagedFileError, SecureSGDError, printable

OK, FAIL, NOT_CHECKABLE, NOT_CHECKED = "ok", "FAIL", "not checkable", "not checked"

_LONGEST = 600
"""Characters of a line; a damaged file may hold anything."""
_MALFORMED = (
    ArithmeticError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    SafetensorError,
)
"""What reading a file raises that has another shape than it should; of tensors it is RuntimeError."""


class NotCheckable(Exception):  # noqa: N818 - it is no error
    """What a claim rests on is not there; the message says what."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the outcome."""

    claim: str
    outcome: str
    """`ok`, `FAIL`, `not checkable`, or of a file without a claim that is known here `not checked`."""
    words: str
    """What was found: what holds; or what is stated and what is true; or what is missing."""

    def __str__(self) -> str:
        return f"{self.outcome:<13}  {self.claim}: {self.words}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of a table of claims: a name, the files that it is about, and the function that checks it.

    `check` takes what it is checked with, and returns in words what holds. It raises DamagedFileError if the claim is
    false, and NotCheckable if what it rests on is not there.
    """

    name: str
    files: tuple[str, ...]
    check: Callable[[Any], str]
    tiles: tuple[str, ...] = ()
    """The numbers at the top of a report that are not believed if the claim fails."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of a whole check."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no claim failed."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """The claims that failed."""
        return [finding for finding in self.findings if finding.outcome == FAIL]

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))

    def json(self) -> dict[str, Any]:
        """Return the outcome as JSON holds it."""
        return {"passed": self.passed, "findings": [asdict(finding) for finding in self.findings]}


def examine(claim: Claim, given: Any, folder: Path) -> Finding:
    """Return the outcome of one claim, whatever the files hold. `given` is what the claim is checked with.

    The path of the folder is left out of the words.
    """
    try:
        outcome, words = OK, claim.check(given)
    except NotCheckable as reason:
        outcome, words = NOT_CHECKABLE, str(reason)
    except SecureSGDError as error:
        outcome, words = FAIL, str(error)
    except OSError as error:
        outcome, words = FAIL, f"{Path(str(error.filename or '')).name} cannot be read: {error.strerror or error}"
    except _MALFORMED as error:
        files = " or ".join(claim.files) or "a file"
        outcome, words = FAIL, f"{files} does not hold what it should: {type(error).__name__} {error}"
    for path in {str(folder), str(folder.resolve())}:
        words = words.replace(f"{path}/", "")
    words = printable(words)
    return Finding(
        claim=claim.name, outcome=outcome, words=words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"
    )


def require_equal(file: str, pairs: Sequence[tuple[str, Any, Any]], *, rel_tol: float = 1e-9) -> None:
    """Return if what a file states is what is true. `pairs` are (words, stated, true); numbers may differ by rounding.

    Raises: DamagedFileError with the first pair that differs.
    """
    for words, stated, true in pairs:
        if not _is_equal(stated, true, rel_tol):
            raise DamagedFileError(f"{file} states {words} {_shown(stated)}, but it is {_shown(true)}")


def _is_equal(stated: Any, true: Any, rel_tol: float) -> bool:
    """Return whether two JSON values are equal, numbers up to rounding."""
    if isinstance(true, dict) and isinstance(stated, dict):
        return stated.keys() == true.keys() and all(_is_equal(stated[name], true[name], rel_tol) for name in true)
    if isinstance(true, list | tuple) and isinstance(stated, list | tuple):
        return len(stated) == len(true) and all(_is_equal(*pair, rel_tol) for pair in zip(stated, true, strict=True))
    if isinstance(stated, bool) or isinstance(true, bool):
        return stated is true
    if isinstance(stated, int | float) and isinstance(true, int | float):
        return math.isclose(stated, true, rel_tol=rel_tol, abs_tol=1e-300)
    return bool(stated == true)


def _shown(value: Any) -> str:
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 160 else text[:159] + "…"
