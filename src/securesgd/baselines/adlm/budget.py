"""AdLM's budget: the settings that a run states, and the published sensitivities and scales of its Laplace noise.

The formulas are the published ones. None is a guarantee: docs/reference/adlm.md says why the noise does not give the
privacy that is claimed for it.
"""

__all__ = [
    "INPUT_BOUND",
    "AdlmSettings",
    "affine_sensitivity",
    "budget_shares",
    "input_scales",
    "loss_scale",
    "loss_sensitivity",
    "normalised_relevance",
    "relevance_scale",
    "taylor_losses",
]

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_count, validate_positive, validate_types

Floats = NDArray[np.float64]
Values = TypeVar("Values")  # numbers, arrays or tensors

INPUT_BOUND = 10.0
"""Noisy pixels are clipped to [-10, 10]."""
_SMALLEST = 1e-5  # of a relevance, and of a pixel's share
_SHARES = ("relevance_share", "input_share", "loss_share")


@dataclass(frozen=True, kw_only=True)
class AdlmSettings:
    """The table `[adlm]` of a configuration. The defaults are the authors' for MNIST."""

    epsilon: float = 0.3
    """The budget the method claims to keep. Not a guarantee of ours."""
    relevance_share: float = 0.25
    """Share of epsilon for the relevances."""
    input_share: float = 0.25
    """Share of epsilon for the noise of the input."""
    loss_share: float = 0.5
    """Share of epsilon for the noise of the loss."""
    hidden: int = 25
    """Width of the last hidden layer; the noise of the loss grows with its square."""
    crop: int | None = None
    """Side of the square cut out of the middle of the image; None for all of it."""
    signed: bool = False
    """Whether pixels are mapped from [0, 1] to [-1, 1]."""
    relevance_power: float = 4.0
    """Of the relevances that share out the noise."""
    relevance_offset: float = 0.0
    """Added to the relevances."""
    relevance_examples: int = 2000
    """Examples that the relevances are computed on."""
    pretrain_steps: int = 200
    """Adam steps, of 128 examples each, of the network whose relevances are used; without any privacy."""

    def __post_init__(self) -> None:
        validate_types(self)
        for name in ("epsilon", "relevance_power", *_SHARES):
            validate_positive(name, getattr(self, name))
        if not math.isclose(total := sum(getattr(self, name) for name in _SHARES), 1.0, abs_tol=1e-9):
            raise InvalidInputError(f"{', '.join(_SHARES)} add up to {total:g}; valid: shares of epsilon, together 1")
        for name, most in (("hidden", 10**5), ("relevance_examples", 10**7), ("pretrain_steps", 10**6)):
            validate_count(name, getattr(self, name), at_least=1, at_most=most)
        if self.crop is not None:
            validate_count("crop", self.crop, at_least=1)
        if not 0 <= self.relevance_offset < 1:
            raise InvalidInputError(f"relevance_offset is {self.relevance_offset!r}; valid: 0 <= relevance_offset < 1")

    @property
    def relevance_epsilon(self) -> float:
        """ε₁, for the relevances."""
        return self.epsilon * self.relevance_share

    @property
    def input_epsilon(self) -> float:
        """ε₂, for the noise on the input."""
        return self.epsilon * self.input_share

    @property
    def loss_epsilon(self) -> float:
        """ε₃, for the noise in the loss."""
        return self.epsilon * self.loss_share


def relevance_scale(features: int, epsilon: float, examples: int) -> float:
    """Return the scale of the Laplace noise on each mean relevance: 2·features/(epsilon·examples)."""
    return 2 * features / (epsilon * examples)


def normalised_relevance(mean: Floats, power: float = 1.0, offset: float = 0.0) -> Floats:
    """Return the mean relevances scaled to [0, 1], raised to `power`, plus `offset`, and clipped to [0, 1] again.

    The smallest and largest relevance are read off the private data here, which AdLM's budget does not count.
    """
    spread = float(mean.max() - mean.min())
    scaled = (mean - mean.min()) / spread if spread > 0 else np.ones_like(mean)
    return np.clip(scaled**power + offset, 0.0, 1.0)


def budget_shares(relevance: Floats) -> Floats:
    """Return beta: each pixel's share of the input's budget, of mean 1, larger where the relevance is larger.

    Relevances below 1e-5 (noise makes some negative) count as 1e-5, and so do shares.
    """
    floored = np.maximum(relevance, _SMALLEST)
    return np.maximum(floored * (floored.size / floored.sum()), _SMALLEST)


def affine_sensitivity(channels: int, positions: int, patch: int) -> int:
    """Return Δ₂ = 2·channels·|feature map|·|patch| of the first layer."""
    return 2 * channels * positions * patch


def input_scales(shares: Floats, sensitivity: float, epsilon: float, batch_size: int) -> Floats:
    """Return the scale of each pixel's Laplace noise: Δ₂/(beta·epsilon), divided by the batch size."""
    return sensitivity / (shares * epsilon * batch_size)


def loss_sensitivity(hidden: int, classes: int) -> float:
    """Return Δ₃ = classes·(hidden + hidden²/4) of the coefficients of the order-2 loss."""
    return classes * (hidden + hidden**2 / 4)


def loss_scale(sensitivity: float, epsilon: float, batch_size: int) -> float:
    """Return the scale of the Laplace noise P on the coefficients that read labels: Δ₃/epsilon over the batch size."""
    return sensitivity / (epsilon * batch_size)


def taylor_losses(z: Values, y: Values) -> Values:
    """Return the sigmoid cross-entropy of each logit z and label y in {0, 1}, expanded to order 2 around z = 0.

    max(z, 0) − zy + ln 2 − |z|/2 + z²/8, in which max(z, 0) − |z|/2 = z/2.
    """
    return math.log(2) + z * (0.5 - y) + z * z / 8  # type: ignore[operator]
