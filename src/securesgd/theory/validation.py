"""Arguments of the theory functions as float64 arrays, or an error that names the value and what is valid."""

from typing import Any

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
