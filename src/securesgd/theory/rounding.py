"""Numbers shortened for people to read: a printed bound stays one, no printed epsilon is below the computed one."""

__all__ = ["probability_of_success", "round_down", "round_up"]

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def round_up(value: float, *, decimals: int | None = None, digits: int = 6) -> float:
    """Return the smallest number >= `value` with so many decimals, or if not given so many significant digits.

    Guarantee: the result is >= `value`, so a bound stays one when it is rounded; format it with as many digits.
    Infinity and NaN are returned as they are.
    """
    if value == 0 or not math.isfinite(value):
        return value
    exact = Decimal(repr(float(value)))  # the shortest decimal that is this float: 100.04 stays 100.04
    kept = exact.adjusted() + 1 + decimals if decimals is not None else digits
    if kept > 0:
        return float(Context(prec=kept, rounding=ROUND_CEILING).plus(exact))
    return 10.0 ** -(decimals or 0) if value > 0 else 0.0


def round_down(value: float, *, digits: int = 4) -> float:
    """Return the largest number <= `value` >= 0 with so many significant digits: a radius that is proven stays so."""
    if value == 0 or not math.isfinite(value):
        return value
    return float(Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(repr(float(value)))))


def probability_of_success(failure_prob: float) -> str:
    """Return 1 - failure_prob as a text, rounded down to 15 digits: never 1 if something may fail."""
    return f"{Context(prec=15, rounding=ROUND_FLOOR).subtract(Decimal(1), Decimal(repr(float(failure_prob)))):f}"
