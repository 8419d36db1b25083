"""Argument checks: each returns the value in its plain form, or raises one line "name is value; valid: …".

`validate_…` takes a single value, of settings, files or command lines, where everything can be anything; `…_array`
takes a number or an array of them, for the functions of `theory`.
"""

__all__ = [
    "Array",
    "broadcast",
    "finite_array",
    "like_input",
    "nonnegative_array",
    "open_probability_array",
    "positive_array",
    "probability_array",
    "validate_count",
    "validate_delta",
    "validate_noise_multiplier",
    "validate_positive",
    "validate_sampling_rate",
    "validate_text",
    "validate_types",
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
MAX_TEXT = 500
MAX_COUNT = 10**15


def validate_noise_multiplier(value: Any) -> float:
    """Return the noise multiplier as a float. Raises: InvalidInputError unless 0 <= value < infinity."""
    return _validate_real("noise_multiplier", value, "a finite number >= 0", lambda x: x >= 0)


def validate_sampling_rate(value: Any) -> float:
    """Return the sampling rate as a float. Raises: InvalidInputError unless 0 < value <= 1."""
    return _validate_real("sampling_rate", value, "a probability with 0 < sampling_rate <= 1", lambda x: 0 < x <= 1)


def validate_delta(value: Any) -> float:
    """Return delta as a float. Raises: InvalidInputError unless 0 < value < 1."""
    return _validate_real("delta", value, "a probability with 0 < delta < 1", lambda x: 0 < x < 1)


def validate_positive(name: str, value: Any) -> float:
    """Return a positive number as a float. Raises: InvalidInputError unless 0 < value < infinity."""
    return _validate_real(name, value, "a finite number > 0", lambda x: x > 0)


def validate_count(name: str, value: Any, at_least: int, at_most: int = MAX_COUNT) -> int:
    """Return a count as an int. Raises: InvalidInputError unless it is an integer from `at_least` to `at_most`."""
    number = int(value) if isinstance(value, Integral) and value is not True and value is not False else None
    if number is None or not at_least <= number <= at_most:
        raise InvalidInputError(f"{name} is {_quote(value)}; valid: an integer from {at_least:,} to {at_most:,}")
    return number


def validate_text(name: str, value: Any) -> str:
    """Return a one-line text. Raises: InvalidInputError unless it is printable and of 1 to 500 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable() or value.isspace():
        raise InvalidInputError(f"{name} is {_quote(value)}; valid: one line of 1 to {MAX_TEXT} printable characters")
    return value


def validate_types(settings: Any) -> None:
    """Raise InvalidInputError for the first field of a dataclass whose value is not of its declared kind.

    Kinds: bool, int, float (any real number), str or a Literal of them, and None where the declaration has it. Fields
    declared otherwise are not looked at.
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
            raise InvalidInputError(f"{field} is {_quote(value)}; valid: {valid}")


_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "an integer"),
    float: (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number"),
    str: (lambda value: isinstance(value, str) and _is_unicode(value), "a text of Unicode characters"),
}


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; bytes of a path that are not come as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _validate_real(name: str, value: Any, valid: str, holds: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise InvalidInputError(f"{name} is {_quote(value)}; valid: {valid}")
    return number


def _quote(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**60 else "a very large integer"
    return text if len(text) <= 80 else text[:77] + "..."


def positive_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers > 0."""
    array = _float_array(name, value)
    _require(name, array, np.isfinite(array) & (array > 0), "a finite number > 0")
    return array


def nonnegative_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers >= 0."""
    array = _float_array(name, value)
    _require(name, array, np.isfinite(array) & (array >= 0), "a finite number >= 0")
    return array


def finite_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite numbers."""
    array = _float_array(name, value)
    _require(name, array, np.isfinite(array), "a finite number")
    return array


def open_probability_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in (0, 1)."""
    array = _float_array(name, value)
    _require(name, array, (array > 0) & (array < 1), "a number in (0, 1)")
    return array


def probability_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in [0, 1]."""
    array = _float_array(name, value)
    _require(name, array, (array >= 0) & (array <= 1), "a number in [0, 1]")
    return array


def _float_array(name: str, value: ArrayLike) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} is {_quote(value)}; valid: a number or an array of numbers") from None


def _require(name: str, array: Array, holds: NDArray[np.bool_], valid: str) -> None:
    """Raise InvalidInputError for the first entry that does not hold; NaN holds nowhere."""
    if not np.all(holds):
        raise InvalidInputError(f"{name} is {float(array[~holds].flat[0]):g}; valid: {valid}")


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
