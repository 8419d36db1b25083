"""Why the noise is spread over pixels and not over frequencies or colours: docs/concepts/sensitivity.md, in numbers."""

import numpy as np
import pytest
from scipy.fft import dctn

from securesgd.theory import sensitivity

SIDE = 8
UNITS = SIDE**2


def cosines() -> np.ndarray:
    """Return the orthonormal cosine basis of SIDE×SIDE pictures, a row for each frequency."""
    pictures = np.eye(UNITS).reshape(UNITS, SIDE, SIDE)
    return dctn(pictures, norm="ortho", axes=(1, 2)).reshape(UNITS, UNITS).T


def test_at_the_same_delta_no_frequency_can_have_a_fifth_less_noise_than_even_pixels():
    basis = cosines()
    np.testing.assert_allclose(basis @ basis.T, np.eye(UNITS), atol=1e-12)
    longest = np.abs(basis).sum(axis=1) / SIDE  # ‖w_k‖₁/√d, a lower bound of Δ·std_k/√d
    assert longest.min() > 0.8  # 8/π² in the limit of many pixels
    assert longest[0] == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_delta_is_at_least_what_each_unit_alone_makes_it(seed):
    basis, r = cosines(), np.random.default_rng(seed).dirichlet(np.full(UNITS, 0.5)) * 0.98 + 0.02 / UNITS
    std = np.sqrt(UNITS * r)
    measured = sensitivity(basis, "linf", r)
    alone = np.abs(basis).sum(axis=1) / std
    assert measured.upper >= alone.max() * (1 - 1e-9)
    assert measured.upper >= np.sqrt((1 / std**2).sum())  # the average over random signs
    pixels = sensitivity(np.eye(UNITS), "linf", r)
    assert pixels.upper == pytest.approx(np.sqrt((1 / std**2).sum()), rel=1e-6)
    assert pixels.upper < measured.lower


@pytest.mark.parametrize("basis", [cosines(), np.eye(UNITS)], ids=["cosines", "pixels"])
def test_in_l2_the_smallest_noise_decides_in_every_basis(basis):
    r = np.random.default_rng(0).dirichlet(np.full(UNITS, 5.0))
    assert sensitivity(basis, "l2", r).upper == pytest.approx(1 / np.sqrt(UNITS * r.min()), rel=1e-3)


def test_colours_cannot_be_spread_either():
    """Light, red–blue, green–purple for one pixel: at the Δ of even noise, light cannot have less of it."""
    basis = np.array([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    even = sensitivity(basis, "linf").lower
    for share in (0.02, 0.1, 0.2, 0.3):  # of light, the others the same
        r = np.array([share, (1 - share) / 2, (1 - share) / 2])
        light = np.sqrt(3 * share)  # its deviation, where even noise has 1
        assert sensitivity(basis, "linf", r).lower * light >= even * (1 - 1e-9)
