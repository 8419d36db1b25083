"""The numbers of AdLM: sensitivities, scales of its Laplace noise, and each pixel's share of the input's budget.

The formulas are the published ones. None is a guarantee: docs/adlm.md says why the noise does not give the privacy that
is claimed for it.
"""

__all__ = [
    "INPUT_BOUND",
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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Values = TypeVar("Values")  # numbers, arrays or tensors

INPUT_BOUND = 10.0
"""Noisy pixels are clipped to [-10, 10]."""
_LEAST = 1e-5  # of a relevance, and of a pixel's share


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
    floored = np.maximum(relevance, _LEAST)
    return np.maximum(floored * (floored.size / floored.sum()), _LEAST)


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
