"""Every error this package raises on purpose.

    SecureSGDError            the base: catch this to catch them all
    ├── InvalidInputError     a value is outside what a function or theorem allows (also a ValueError)
    │   └── DivergedError     training ended with weights that are not finite
    ├── PrivacyError          a step would break, or could not prove, the privacy statement
    ├── DamagedFileError      a file of a run folder is missing parts, foreign or corrupt
    ├── DataUnavailableError  a data set could be had from none of its origins
    └── PeerStoppedError      another process of the same job stopped with an error, which it tells itself

A message is one line: it names the value it got and says what would be valid. The command line prints it and
exits with code 2.
"""

__all__ = [
    "DamagedFileError",
    "DataUnavailableError",
    "DivergedError",
    "InvalidInputError",
    "PeerStoppedError",
    "PrivacyError",
    "SecureSGDError",
    "nearest",
    "printable",
]

import difflib
from collections.abc import Iterable


class SecureSGDError(Exception):
    """Base of all errors raised on purpose by securesgd."""


class InvalidInputError(SecureSGDError, ValueError):
    """A value is outside what the function or the theorem behind it allows."""


class DivergedError(InvalidInputError):
    """Weights are not finite any more: a setting of the training, most likely its learning rate, is too large."""


class PrivacyError(SecureSGDError):
    """The requested step would break the privacy statement, or the statement cannot be proven."""


class DamagedFileError(SecureSGDError):
    """A file is missing parts, foreign or corrupt; it was left untouched."""


class DataUnavailableError(SecureSGDError):
    """A data set could be had from none of its origins; the message lists what was tried and what to do by hand."""


class PeerStoppedError(SecureSGDError):
    """Another process of the same job stopped with an error, which it tells itself."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return "a, b or c" preceded by the closest match to `name`, for error messages."""
    options = list(valid)
    close = difflib.get_close_matches(name, options, n=1)
    listed = ", ".join(options[:-1]) + " or " + options[-1] if len(options) > 1 else options[0]
    return f"did you mean {close[0]!r}? valid: {listed}" if close else f"valid: {listed}"


def printable(text: str) -> str:
    """Return a text in one line as a terminal can show it: other control characters than line breaks are escaped."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
