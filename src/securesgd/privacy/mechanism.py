"""The heterogeneous Gaussian mechanism (HGM) for any vector query, on its own.

    query(D) + N(0, σ² K r)

is the ordinary Gaussian mechanism on the whitened query A/√(K r), rescaled afterwards. So r can be combined with every
calibration, also the exact one (`analytic`, the default); the paper says otherwise (docs/reference/errata.md).
"""

__all__ = ["Guarantee", "HeterogeneousGaussianMechanism", "Release"]

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError
from securesgd.theory.gaussian import Mechanism, noise_multiplier
from securesgd.theory.linear_maps import LinearMap, as_linear_map
from securesgd.theory.redistribution import component_std, validated
from securesgd.theory.sensitivity import Norm, sensitivity
from securesgd.validate import Array, finite_array, nonnegative_array, positive_array


class Guarantee(TypedDict):
    """What every constructor also takes: the budget, and the theorem that calibrates the noise (analytic)."""

    epsilon: float
    delta: float
    mechanism: NotRequired[Mechanism]


@dataclass(frozen=True, kw_only=True)
class Release:
    """A noisy answer with its noise scale and its guarantee. The noise itself is not kept: it would undo it."""

    values: Array
    std: Array
    """Standard deviation of the noise in each component, σ·√(K r_k)."""
    epsilon: float
    delta: float
    statement: str
    """What is guaranteed, in words."""


@dataclass(frozen=True, kw_only=True)
class HeterogeneousGaussianMechanism:
    """Releases a K-vector with (epsilon, delta)-DP and noise shared out by r.

    Guarantee: `release(A(D), generator)` is (epsilon, delta)-DP for every pair D, D' of neighbours for which
    ‖(A(D) − A(D'))/√(K r)‖₂ <= sensitivity. Each call is a separate release; repeated calls compose.
    It holds in floating point: values are rounded to a public grid of powers of two, noise is an exact integer multiple
    of it, and σ covers the rounding (docs/reference/noise.md).
    Assumes: the values are deterministic given the data, and the reader knows nothing of the generator.

    `sensitivity` is the *whitened* one. If you know something else, use a constructor:
    `for_components` (how far each component can move), `for_l2_sensitivity` (how far the plain vector can move), or
    `for_linear_query` (a matrix or convolution and the norm of the change of its input).
    """

    epsilon: float
    delta: float
    sensitivity: float
    r: ArrayLike = field(repr=False)
    mechanism: Mechanism = "analytic"
    neighbours: str = "any two data sets whose answers differ by at most the sensitivity"

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", validated(self.r))
        self.r.setflags(write=False)  # type: ignore[union-attr]
        object.__setattr__(self, "sensitivity", float(positive_array("sensitivity", self.sensitivity)))
        _ = self.sigma  # an epsilon or delta outside the theorem fails here, not at the first release

    @classmethod
    def for_components(
        cls, bounds: ArrayLike, r: ArrayLike, **guarantee: Unpack[Guarantee]
    ) -> "HeterogeneousGaussianMechanism":
        """Return the mechanism for a query whose component k moves by at most bounds[k] between neighbours."""
        vector, moves = validated(r), nonnegative_array("bounds", bounds)
        if moves.shape != vector.shape:
            raise InvalidInputError(f"bounds must have one entry per component {vector.shape}, got {moves.shape}")
        relative = moves / np.sqrt(vector.size * vector)
        largest = max(float(relative.max()), np.finfo(np.float64).tiny)  # so that squares do not underflow
        whitened = float(np.linalg.norm(relative / largest)) * largest * (1 + 1e-12)
        words = "any two data sets whose answers differ by at most the given bound in each component"
        return cls(sensitivity=whitened, r=vector, neighbours=words, **guarantee)

    @classmethod
    def for_l2_sensitivity(
        cls, l2: float, r: ArrayLike, **guarantee: Unpack[Guarantee]
    ) -> "HeterogeneousGaussianMechanism":
        """Return the mechanism for a query whose whole vector moves by at most `l2`: the quietest component decides."""
        vector = validated(r)
        whitened = float(positive_array("l2", l2)) / float(np.sqrt(vector.size * vector.min())) * (1 + 1e-12)
        words = f"any two data sets whose answers differ by at most {float(l2)!r} in l2 norm"
        return cls(sensitivity=whitened, r=vector, neighbours=words, **guarantee)

    @classmethod
    def for_linear_query(
        cls,
        query: "LinearMap | ArrayLike",
        norm: Norm,
        r: ArrayLike | None = None,
        *,
        distance: float = 1.0,
        **guarantee: Unpack[Guarantee],
    ) -> "HeterogeneousGaussianMechanism":
        """Return the mechanism for x ↦ W x where neighbours are inputs at most `distance` apart in `norm`."""
        layer = as_linear_map(query)
        vector = np.full(layer.output_size, 1 / layer.output_size) if r is None else validated(r, layer.output_size)
        whitened = sensitivity(layer, norm, vector).upper * float(positive_array("distance", distance))
        words = f"any two inputs at most {float(distance)!r} apart in {norm} norm"
        return cls(sensitivity=whitened, r=vector, neighbours=words, **guarantee)

    @cached_property
    def sigma(self) -> float:
        """σ = c(epsilon, delta)·sensitivity."""
        return float(noise_multiplier(self.epsilon, self.delta, self.mechanism)) * self.sensitivity

    @property
    def std(self) -> Array:
        """Standard deviation of each component's noise."""
        return component_std(self.r, self.sigma)

    def release(self, values: ArrayLike, generator: np.random.Generator | None = None) -> Release:
        """Return `values` plus fresh noise. Charges (epsilon, delta) each time it is called.

        The noise comes from the operating system's secret randomness. A numpy generator makes it repeatable: then there
        is no privacy towards anyone who knows the generator's state, and the statement says so.
        """
        if generator is not None and not isinstance(generator, np.random.Generator):
            raise InvalidInputError(f"generator must be a numpy.random.Generator or None, got {generator!r}")
        answer = finite_array("values", values)
        if answer.size != self.std.size:
            raise InvalidInputError(f"values must have {self.std.size} components, got shape {answer.shape}")
        noisy, std = self._with_noise(answer.ravel(), generator)
        caution = "" if generator is None else " The noise is from a given generator: no privacy towards who knows it."
        return Release(
            values=noisy.reshape(answer.shape),
            std=std.reshape(answer.shape),
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            statement=(
                f"({self.epsilon!r}, {self.delta!r})-differentially private for {self.neighbours}; "
                f"{self.mechanism} Gaussian mechanism with sigma = {self.sigma:.6g} and heterogeneous variance "
                f"sigma² K r. One release; several compose.{caution}"
            ),
        )

    def _with_noise(self, answer: Array, generator: np.random.Generator | None) -> tuple[Array, Array]:
        """Return the noisy vector and the std really used, on a grid of its own for each component.

        Rounding component k to a grid γ_k <= std_k·2⁻ᵐ adds at most σ·√K·2⁻ᵐ to the whitened sensitivity Δ.
        """
        import torch  # here, so that the mechanism's numbers can be had without it

        from securesgd.runtime.grid_release import to_grid_
        from securesgd.runtime.key_stream import KeyStream
        from securesgd.runtime.rounded_gaussian import LARGEST_SCALE, rounded_gaussian

        digits = math.log2(LARGEST_SCALE) - 2
        if not 1e-200 <= self.std.min() <= self.std.max() <= 1e200:
            # The inverse of a finer grid is infinite, and 0 · inf would tell zeros from other answers.
            raise InvalidInputError(
                f"the noise has a standard deviation of {self.std.min():.3g} to {self.std.max():.3g}; "
                "valid: 1e-200 to 1e200; measure the answer in another unit"
            )
        grid = 2.0 ** (np.floor(np.log2(self.std)) - digits)
        wider = 1 + self.sigma / self.sensitivity * math.sqrt(grid.size) * 2.0**-digits
        std = self.std * (wider * (1 + 1e-12))
        stream = KeyStream.secret() if generator is None else KeyStream.from_generator(generator)
        noise = rounded_gaussian(stream, grid.size, torch.from_numpy(std / grid))
        noisy = to_grid_(torch.tensor(answer), torch.from_numpy(grid)).add_(noise).numpy() * grid
        return noisy, std
