"""The heterogeneous Gaussian mechanism (HGM) for any vector query, on its own.

    query(D) + N(0, σ² K r)

is the ordinary Gaussian mechanism on the whitened query A/√(K r), rescaled afterwards. So r can be combined with every
calibration, also the exact one (`analytic`, the default); the paper says otherwise (docs/errata.md).
"""

__all__ = ["Guarantee", "HeterogeneousGaussianMechanism", "Release"]

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError
from securesgd.theory.gaussian import Mechanism, noise_multiplier
from securesgd.theory.linear_maps import LinearMap, as_linear_map
from securesgd.theory.redistribution import component_std, validated
from securesgd.theory.sensitivity import Norm, sensitivity
from securesgd.theory.validation import Array, finite, nonnegative, positive


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
    Assumes: the generator's draws are unknown to the reader, and real-number arithmetic (like all floating-point
    noise, the low-order bits are not protected; Mironov 2012).

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
        object.__setattr__(self, "sensitivity", float(positive("sensitivity", self.sensitivity)))
        _ = self.sigma  # an epsilon or delta outside the theorem fails here, not at the first release

    @classmethod
    def for_components(
        cls, bounds: ArrayLike, r: ArrayLike, **guarantee: Unpack[Guarantee]
    ) -> "HeterogeneousGaussianMechanism":
        """Return the mechanism for a query whose component k moves by at most bounds[k] between neighbours."""
        vector, moves = validated(r), nonnegative("bounds", bounds)
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
        whitened = float(positive("l2", l2)) / float(np.sqrt(vector.size * vector.min())) * (1 + 1e-12)
        words = f"any two data sets whose answers differ by at most {float(l2):g} in l2 norm"
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
        whitened = sensitivity(layer, norm, vector).upper * float(positive("distance", distance))
        words = f"any two inputs at most {distance:g} apart in {norm} norm"
        return cls(sensitivity=whitened, r=vector, neighbours=words, **guarantee)

    @cached_property
    def sigma(self) -> float:
        """σ = c(epsilon, delta)·sensitivity."""
        return float(noise_multiplier(self.epsilon, self.delta, self.mechanism)) * self.sensitivity

    @property
    def std(self) -> Array:
        """Standard deviation of each component's noise."""
        return component_std(self.r, self.sigma)

    def release(self, values: ArrayLike, generator: Any) -> Release:
        """Return `values` plus fresh noise. Charges (epsilon, delta) each time it is called."""
        if not isinstance(generator, np.random.Generator):
            raise InvalidInputError(f"generator must be a numpy.random.Generator, got {generator!r}")
        answer, std = finite("values", values), self.std
        if answer.size != std.size:
            raise InvalidInputError(f"values must have {std.size} components, got shape {answer.shape}")
        noise = generator.standard_normal(std.size) * std
        return Release(
            values=answer + noise.reshape(answer.shape),
            std=std.reshape(answer.shape),
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            statement=(
                f"({self.epsilon!r}, {self.delta!r})-differentially private for {self.neighbours}; "
                f"{self.mechanism} Gaussian mechanism with sigma = {self.sigma:.6g} and heterogeneous variance "
                "sigma² K r. One release; several compose."
            ),
        )
