"""A rounded bound is still a bound."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securesgd.theory.rounding import round_up

ANY = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False)


@given(ANY, st.integers(0, 8))
def test_decimals_are_never_rounded_down(value, decimals):
    rounded = round_up(value, decimals=decimals)
    assert value <= rounded <= value + 10.0**-decimals * (1 + 1e-9) + 1e-7
    assert float(f"{rounded:.{decimals}f}") == rounded


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 12))
def test_significant_digits_are_never_rounded_down(value, digits):
    rounded = round_up(value, digits=digits)
    assert value <= rounded <= value * (1 + 10.0 ** (1 - digits) * (1 + 1e-9))
    assert float(f"{rounded:.{digits}g}") == rounded


def test_exact_values():
    assert [round_up(x, decimals=4) for x in (3.0004, 100.04, 8.0, 7.99997, 1e-9, 0.0)] == [
        3.0004,
        100.04,
        8,
        8,
        1e-4,
        0,
    ]
    assert [round_up(x) for x in (3.7304801, 1.23456789e-12, 0.1)] == [3.73049, 1.23457e-12, 0.1]
    assert math.isinf(round_up(math.inf, decimals=4))
    assert math.isnan(round_up(math.nan))


@pytest.mark.parametrize("decimals", [0, 4])
def test_negative_numbers_go_up_too(decimals):
    assert round_up(-0.00001, decimals=decimals) == 0
