"""Releases on a grid: integers, noise of the stated size, and a bound that no rounding can exceed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from securesgd.errors import InvalidInputError
from securesgd.runtime.grid_release import GridRelease, to_grid_
from securesgd.runtime.key_stream import KeyStream


def vectors(size, shift, seed, dtype):
    generator = np.random.default_rng(seed)
    first = generator.normal(size=size) * 10.0 ** generator.uniform(-6, 3)
    moved = generator.normal(size=size)
    return torch.tensor(first).to(dtype), torch.tensor(first + shift * moved / np.linalg.norm(moved)).to(dtype)


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 3000),
    sensitivity=st.floats(1e-10, 1e10),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rounding_stays_within_the_bound(size, sensitivity, seed, dtype):
    release = GridRelease(sensitivity=sensitivity, noise_multiplier=1.0, size=size)
    first, second = vectors(size, 0.9 * sensitivity, seed, dtype)
    distance = (first.double() - second.double()).norm().item()
    grown = distance + release.grid * np.sqrt(size)
    rounded = [to_grid_(values.clone(), release.grid) for values in (first, second)]
    assert all(torch.equal(values, values.round()) for values in rounded)
    moved = (rounded[0].double() - rounded[1].double()).norm().item() * release.grid
    assert moved <= grown * (1 + 1e-12)
    assert release.sensitivity < release.bound <= release.sensitivity * (1 + 2.0**-8)
    assert np.log2(release.grid) == np.round(np.log2(release.grid))


def test_the_bound_is_needed():
    """Half a grid step to either side in every coordinate: the rounded vectors are grid·√size further apart."""
    release = GridRelease(sensitivity=1.0, noise_multiplier=1.0, size=10_000)
    almost = release.grid * (0.5 - 1e-9)
    first, second = (torch.full((10_000,), x, dtype=torch.float64) for x in (almost, release.grid - almost))
    rounded = [to_grid_(values.clone(), release.grid) for values in (first, second)]
    assert (first - second).norm() < 1e-6
    assert (rounded[0] - rounded[1]).norm() * release.grid == pytest.approx(release.grid * 100)
    assert release.bound >= release.sensitivity + release.grid * 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_stated_size_and_lies_on_the_grid(dtype):
    release = GridRelease(sensitivity=0.7, noise_multiplier=1.3, size=300_000)
    values = [torch.zeros(100_000, dtype=dtype), torch.zeros(2, 100_000, dtype=dtype)]
    noisy = torch.cat([part.flatten() for part in release.release(values, KeyStream(bytes(16)))]).double()
    steps = noisy / release.grid
    assert torch.equal(steps, steps.round())

    def accepts(std):
        statistic = (noisy.square().sum() / std**2).item()
        return chi2.ppf(1e-7, len(noisy)) < statistic < chi2.ppf(1 - 1e-7, len(noisy))

    assert accepts(1.3 * release.bound)
    assert release.std == pytest.approx(1.3 * release.bound)
    assert not accepts(0.98 * release.std)
    assert not accepts(1.02 * release.std)


def test_division_is_after_the_noise_and_shapes_stay():
    release = GridRelease(sensitivity=1.0, noise_multiplier=2.0, size=7)
    values = [torch.arange(4.0).view(2, 2), torch.ones(3)]
    whole = release.release([v.clone() for v in values], KeyStream(bytes(16)))
    parts = release.release([v.clone() for v in values], KeyStream(bytes(16)), divisor=4.0)
    assert [part.shape for part in parts] == [v.shape for v in values]
    assert all(torch.allclose(a / 4, b) for a, b in zip(whole, parts, strict=True))
    with pytest.raises(InvalidInputError, match="values have 4 coordinates; valid: 7"):
        release.release(values[:1], KeyStream(bytes(16)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensitivity": 0.0}, "sensitivity is 0.0"),
        ({"sensitivity": float("inf")}, "sensitivity is inf"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"noise_multiplier": 1e9}, "noise_multiplier is 1000000000.0; valid for 100 coordinates: above 0, up to"),
    ],
)
def test_out_of_range(change, message):
    with pytest.raises(InvalidInputError, match=message):
        GridRelease(**{"sensitivity": 1.0, "noise_multiplier": 1.0, "size": 100} | change)
