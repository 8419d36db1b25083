"""Argument checks: each returns the value in its plain form, or raises one line that names it and what would be valid.

Arrays of the theory functions come first, then single values of settings, files and command lines.
"""

__all__ = [
    "count_checked",
    "delta_checked",
    "noise_multiplier_checked",
    "positive_checked",
    "sampling_rate_checked",
    "text_checked",
    "types_checked",
]

import math
import typing
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securesgd.errors import InvalidInputError

Array = NDArray[np.float64]


def _as_floats(name: str, value: ArrayLike) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be a number or an array of numbers, got {value!r}") from None
    if np.isnan(array).any():
        raise InvalidInputError(f"{name} must not be NaN")
    return array


def _refuse(name: str, array: Array, bad: NDArray[np.bool_], valid: str) -> None:
    """Raise for the first bad entry; silent if there is none."""
    if bad.any():
        value = array[bad].ravel()[0] if array.ndim else array
        raise InvalidInputError(f"{name} must be {valid}, got {float(value):g}")


def positive(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers > 0."""
    array = _as_floats(name, value)
    _refuse(name, array, ~(np.isfinite(array) & (array > 0)), "finite and > 0")
    return array


def nonnegative(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers >= 0."""
    array = _as_floats(name, value)
    _refuse(name, array, ~(np.isfinite(array) & (array >= 0)), "finite and >= 0")
    return array


def finite(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers."""
    array = _as_floats(name, value)
    _refuse(name, array, ~np.isfinite(array), "finite")
    return array


def open_probability(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in (0, 1)."""
    array = _as_floats(name, value)
    _refuse(name, array, ~((array > 0) & (array < 1)), "in (0, 1)")
    return array


def closed_probability(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in [0, 1]."""
    array = _as_floats(name, value)
    _refuse(name, array, ~((array >= 0) & (array <= 1)), "in [0, 1]")
    return array


def whole_number(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int >= minimum, and <= maximum if there is one."""
    if isinstance(value, bool) or int(value) != value or value < minimum:
        raise InvalidInputError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    if maximum is not None and value > maximum:
        raise InvalidInputError(f"{name} is {value!r}; valid: a whole number from {minimum} to {maximum:,}")
    return int(value)


def broadcast(**arrays: Array) -> list[Array]:
    """Return the arrays at their common shape, or say which shapes do not fit."""
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidInputError(f"shapes do not fit together: {shapes}") from None


def like_input(array: Array) -> Any:
    """Return a float for a 0-d result, the array otherwise: scalars in, scalars out."""
    return float(array) if array.ndim == 0 else array


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


def positive_checked(name: str, value: Any) -> float:
    """Return a positive number as a float. Raises: InvalidInputError unless 0 < value < infinity."""
    return _real_checked(name, value, "a finite number > 0", lambda x: x > 0)


def count_checked(name: str, value: Any, *, at_least: int, at_most: int = MAX_COUNT) -> int:
    """Return a count as an int. Raises: InvalidInputError unless it is an integer from `at_least` to `at_most`."""
    number = int(value) if isinstance(value, Integral) and value is not True and value is not False else None
    if number is None or not at_least <= number <= at_most:
        raise InvalidInputError(f"{name} is {_shown(value)}; valid: an integer from {at_least} to {at_most:g}")
    return number


def text_checked(name: str, value: Any) -> str:
    """Return a one-line text. Raises: InvalidInputError unless it is printable and of 1 to 500 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable() or value.isspace():
        raise InvalidInputError(f"{name} is {_shown(value)}; valid: one line of 1 to {MAX_TEXT} printable characters")
    return value


def types_checked(settings: Any) -> None:
    """Pass if each field of a dataclass has a value of its declared kind. Raises: InvalidInputError with the field.

    Kinds: bool, int, float (any real number), str or a Literal of them, and None where the declaration has it. Other
    fields are not looked at. Values come from files and command lines, where everything can be anything.
    """
    for field, kind in typing.get_type_hints(type(settings)).items():
        value, kinds = getattr(settings, field), set(typing.get_args(kind)) or {kind}
        if typing.get_origin(kind) is Literal:
            kinds = {str}
        if value is None and type(None) in kinds:
            continue
        known = [name for name in _KINDS if name in kinds]
        if known and not any(_KINDS[name][0](value) for name in known):
            valid = " or ".join(_KINDS[name][1] for name in known)
            raise InvalidInputError(f"{field} is {_shown(value)}; valid: {valid}")


_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "an integer"),
    float: (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number"),
    str: (lambda value: isinstance(value, str) and _is_unicode(value), "a text of Unicode characters"),
}


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; bytes of a path that are not come as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


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
