"""Values a user hands in, checked: the plain Python value, or an error of one line."""

__all__ = [
    "count_checked",
    "delta_checked",
    "epsilon_checked",
    "noise_multiplier_checked",
    "sampling_rate_checked",
    "text_checked",
]

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from securesgd.errors import InvalidInputError

MAX_TEXT = 500
MAX_COUNT = 10**15


def noise_multiplier_checked(value: Any) -> float:
    """Return the noise multiplier as a float. Raises: InvalidInputError unless 0 <= value < infinity."""
    return _real_checked("noise_multiplier", value, "a finite number >= 0", lambda x: x >= 0)


def sampling_rate_checked(value: Any) -> float:
    """Return the sampling rate as a float. Raises: InvalidInputError unless 0 < value <= 1."""
    return _real_checked("sampling_rate", value, "a probability with 0 < sampling_rate <= 1", lambda x: 0 < x <= 1)


def delta_checked(value: Any) -> float:
    """Return delta as a float. Raises: InvalidInputError unless 0 < value < 1."""
    return _real_checked("delta", value, "a probability with 0 < delta < 1", lambda x: 0 < x < 1)


def epsilon_checked(name: str, value: Any) -> float:
    """Return a target epsilon as a float. Raises: InvalidInputError unless 0 < value < infinity."""
    return _real_checked(name, value, "a finite number > 0", lambda x: x > 0)


def count_checked(name: str, value: Any, *, at_least: int) -> int:
    """Return a count as an int. Raises: InvalidInputError unless it is an integer from `at_least` to 1e15."""
    number = int(value) if isinstance(value, Integral) and value is not True and value is not False else None
    if number is None or not at_least <= number <= MAX_COUNT:
        raise InvalidInputError(f"{name} is {_shown(value)}; valid: an integer from {at_least} to {MAX_COUNT:g}")
    return number


def text_checked(name: str, value: Any) -> str:
    """Return a one-line text. Raises: InvalidInputError unless it is printable and of 1 to 500 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable() or value.isspace():
        raise InvalidInputError(f"{name} is {_shown(value)}; valid: one line of 1 to {MAX_TEXT} printable characters")
    return value


def _real_checked(name: str, value: Any, valid: str, holds: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise InvalidInputError(f"{name} is {_shown(value)}; valid: {valid}")
    return number


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**60 else "a very large integer"
    return text if len(text) <= 80 else text[:77] + "..."
