import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securesgd.theory.group_norm import least_alignment, linear_remainder

NUMBERS = st.floats(-3, 3, allow_nan=False)


def parts(w, u, eps):
    """Return W·U/s, |w|, √(|w|² − (W·U/s)²) and s of a group, as the lemmas name them."""
    s = math.sqrt(np.sum(u**2) + len(u) * eps)
    along = float(w @ u) / s
    return along, float(np.linalg.norm(w)), math.sqrt(max(float(w @ w) - along**2, 0)), s


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=6), st.floats(0.01, 3), st.floats(1e-6, 1))
def test_no_change_of_a_group_goes_below_the_bounds(rows, size, eps):
    """Against torch's definition: (x − mean)/√(variance + eps), with weights w."""
    x, d, w = np.array(rows).T
    d = size * d / max(float(np.linalg.norm(d)), 1e-9)
    w, n = w - w.mean(), len(w)
    u, moved = x - x.mean(), d - d.mean()
    along, length, across, s = parts(w, u, eps)
    t = float(np.linalg.norm(moved)) / s
    after = float(w @ ((x + d) - (x + d).mean())) / math.sqrt((x + d).var() + eps) / math.sqrt(n)
    slack = 1e-9 * (1 + length)
    assert after >= least_alignment(along, length, t) - slack
    if t < 1:
        linear = along + float((w - along / s * u) @ moved) / s
        assert after >= linear - linear_remainder(along, across, t) * t**2 - slack


def test_the_remainder_is_reached_by_changes_between_outwards_and_across():
    """u = (1, 0, …), W across it: D = t(−1, −1)/√2 loses t²/2 to second order."""
    for t in (0.01, 0.1, 0.3):
        angle = np.linspace(0, 2 * math.pi, 2000)
        v = np.stack([1 + t * np.cos(angle), t * np.sin(angle)])
        lost = float((t * np.sin(angle) - v[1] / np.linalg.norm(v, axis=0)).max())
        proven = float(linear_remainder(0.0, 1.0, t)) * t**2
        assert lost <= proven <= lost * (1 + 2 * t)


def test_what_lies_along_the_group_is_lost_as_its_cosine():
    for t in (0.1, 0.6, 0.99):
        assert float(linear_remainder(2.0, 0.0, t)) * t**2 == pytest.approx(2 * (1 - math.sqrt(1 - t**2)))
    assert float(linear_remainder(-2.0, 0.0, 0.5)) == 0


def test_the_least_alignment_is_reached():
    assert float(least_alignment(1.0, 1.0, 0.5)) == pytest.approx(math.sqrt(0.75))  # turned by 30 degrees
    assert float(least_alignment(0.0, 2.0, 0.5)) == pytest.approx(-1.0)
    assert float(least_alignment(-1.0, 1.0, 0.5)) == -1
    assert float(least_alignment(0.5, 3.0, 1.0)) == -3
    assert float(least_alignment(0.0, 0.0, 0.3)) == 0


def test_nothing_is_known_of_a_group_that_may_turn_around():
    assert float(linear_remainder(0.3, 1.0, 1.0)) == math.inf
