"""The redistribution vector r: where the noise of a heterogeneous Gaussian mechanism goes.

Component k of K gets noise of variance σ²·K·r_k. r lies on the simplex and **every r_k > 0**: a component without
noise would be published exactly. (The paper allows r_k = 0; see docs/reference/errata.md.) Uniform r is the ordinary
mechanism.
"""

__all__ = ["component_std", "expand_channels", "from_scores", "mix_with_uniform", "uniform", "validated"]

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import Array, finite_array, nonnegative_array, positive_array, validate_count

Direction = Literal["vulnerable", "inverse"]
_SUM_TOLERANCE = 1e-6


def validated(r: ArrayLike, size: int | None = None) -> Array:
    """Return r as a float64 vector, or raise InvalidInputError: all r_k > 0, Σ r_k = 1 (to 1e-6), right length."""
    vector = finite_array("r", r).copy()
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidInputError(f"r must be a non-empty vector, got shape {vector.shape}")
    if size is not None and vector.size != size:
        raise InvalidInputError(f"r must have one entry per component ({size}), got {vector.size}")
    if (vector <= 0).any():
        k = int(np.argmax(vector <= 0))
        raise InvalidInputError(
            f"every r_k must be > 0 (a component without noise is published exactly), got r[{k}] = {vector[k]:g}"
        )
    if abs(vector.sum() - 1) > _SUM_TOLERANCE:
        raise InvalidInputError(f"r must sum to 1, got {vector.sum():.9g}")
    return vector


def uniform(size: int) -> Array:
    """Return r_k = 1/K: the ordinary Gaussian mechanism."""
    size = validate_count("size", size, 1)
    return np.full(size, 1 / size)


def component_std(r: ArrayLike, sigma: float) -> Array:
    """Return the standard deviation of each component's noise, σ·√(K r_k)."""
    vector = validated(r)
    return np.asarray(positive_array("sigma", sigma) * np.sqrt(vector.size * vector))


def mix_with_uniform(r: ArrayLike, floor: float) -> Array:
    """Return (1 − floor)·r + floor/K, so that K·r_k >= floor: no component has less than `floor` of its even share.

    `r` may have zeros here if floor > 0; the result is always valid.
    """
    vector, share = nonnegative_array("r", r), float(nonnegative_array("floor", floor))
    if share > 1:
        raise InvalidInputError(f"floor must be in [0, 1] (the even share is 1), got {share:g}")
    return validated((1 - share) * vector + share / vector.size)


def from_scores(
    scores: ArrayLike, *, beta: float = 1.0, direction: Direction = "vulnerable", floor: float = 0.01
) -> Array:
    """Return r from non-negative scores: r ∝ score^beta (`vulnerable`) or r ∝ 1/score^beta (`inverse`).

    Scores are the paper's mean |∂L/∂h₁| before the power: with `vulnerable`, its choice, more noise goes where the
    derivative is larger. `floor` keeps every component at or above that fraction of the even share, 1/K.
    Computing scores on private data is a release of its own; this function is post-processing.
    """
    if direction not in get_args(Direction):
        raise InvalidInputError(f"unknown direction {direction!r}: {nearest(direction, get_args(Direction))}")
    floor = float(positive_array("floor", floor))
    raw = nonnegative_array("scores", scores)
    if raw.ndim != 1 or raw.size == 0:
        raise InvalidInputError(f"scores must be a non-empty vector, got shape {raw.shape}")
    if raw.max() == 0:
        return uniform(raw.size)
    powered = (raw / raw.max()) ** float(nonnegative_array("beta", beta))
    shares = mix_with_uniform(powered / powered.sum(), floor)
    if direction == "inverse":
        shares = 1 / shares
        shares = mix_with_uniform(shares / shares.sum(), floor)
    return shares


def expand_channels(r: ArrayLike, positions: int) -> Array:
    """Return the per-unit r of a layer laid out channel by channel: each channel's share split over its positions."""
    positions = validate_count("positions", positions, 1)
    return np.repeat(validated(r) / positions, positions)
