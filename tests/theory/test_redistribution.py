import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from securesgd.errors import InvalidInputError
from securesgd.theory import component_std, expand_channels, from_scores, mix_with_uniform, uniform, validated


def test_std_is_sigma_sqrt_k_r_and_uniform_is_the_ordinary_mechanism():
    assert component_std([0.1, 0.2, 0.7], 2.0) == pytest.approx(2 * np.sqrt([0.3, 0.6, 2.1]))
    assert component_std(uniform(5), 1.5) == pytest.approx(np.full(5, 1.5))


@given(
    scores=arrays(float, st.integers(1, 40), elements=st.floats(0, 1e6)),
    beta=st.floats(0, 4),
    floor=st.floats(1e-4, 1),
    direction=st.sampled_from(["vulnerable", "inverse"]),
)
def test_scores_give_a_valid_r_above_the_floor(scores, beta, floor, direction):
    r = from_scores(scores, beta=beta, direction=direction, floor=floor)
    validated(r, scores.size)
    assert scores.size * r.min() >= floor * (1 - 1e-9)


def test_directions_and_beta():
    scores = np.array([1.0, 2.0, 4.0])
    vulnerable = from_scores(scores, direction="vulnerable", floor=1e-6)
    inverse = from_scores(scores, direction="inverse", floor=1e-6)
    assert vulnerable == pytest.approx(scores / 7, rel=1e-5)
    assert inverse == pytest.approx(np.array([4, 2, 1]) / 7, rel=1e-4)
    assert from_scores(scores, beta=2, floor=1e-6) == pytest.approx(scores**2 / 21, rel=1e-4)
    assert from_scores(scores, beta=0) == pytest.approx(uniform(3))


def test_channels_expand_to_units_channel_by_channel():
    assert expand_channels([0.25, 0.75], 2) == pytest.approx([0.125, 0.125, 0.375, 0.375])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: validated([0.5, 0.5, 0.0]), r"every r_k must be > 0 .* got r\[2\] = 0"),
        (lambda: validated([1.5, -0.5]), r"every r_k must be > 0"),
        (lambda: validated([0.5, 0.4]), "must sum to 1, got 0.9"),
        (lambda: validated([np.nan, 1]), "r is nan; valid: a"),
        (lambda: validated([[1.0]]), "non-empty vector"),
        (lambda: validated([]), "non-empty vector"),
        (lambda: validated([0.5, 0.5], 3), r"one entry per component \(3\), got 2"),
        (lambda: component_std([0.5, 0.5], 0), "sigma is .*; valid: a finite number > 0"),
        (lambda: mix_with_uniform([0.5, 0.5], 2), r"floor must be in \[0, 1\]"),
        (lambda: from_scores([1, -1]), "scores is .*; valid: a finite number >= 0"),
        (lambda: from_scores([1, 2], direction="invers"), "did you mean 'inverse'"),
        (lambda: from_scores([1, 2], floor=0), "floor is .*; valid: a finite number > 0"),
        (lambda: expand_channels([1.0], 0), "positions is .*; valid: an integer from 1 to"),
        (lambda: uniform(0), "size is 0; valid: an integer from 1 to"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
