"""Redistribution by the paper's score: how strongly the loss reacts to each unit of the noisy layer.

The score of one example is |∂L/∂h₁|^β. On private data its mean is a release like any other: here each example's
score vector is clipped in l2, summed, and Gaussian noise is added, which costs one Gaussian event in the ledger. (The
paper says it costs nothing; docs/reference/errata.md, no. 7.)
"""

__all__ = ["SENSITIVITY", "Per", "redistribution_from_gradients"]

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.redistribution import Redistribution
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.theory import from_scores
from securesgd.theory.redistribution import Direction

Per = Literal["unit", "channel"]
SCORE_NORM = 1.0  # l2 bound of one example's score vector; scores are normalised per example, so any value is the same
MOST_EXAMPLES = 2**20
SENSITIVITY = SCORE_NORM * (1 + 2.0**-11)
"""What one example can change in the sum of scores, in l2, rounding included: the norm of up to 2^30 numbers in float64
is off by 2^-23 at most, and a float64 sum of n vectors of norm 1, in any order, by n · gamma_n <= 2^-12.9 for
n <= 2^20, once with the example and once without it."""


def redistribution_from_gradients(
    model: NoisyNetwork,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    way: str,
    noise_multiplier: float,
    stream: KeyStream,
    direction: Direction = "vulnerable",
    beta: float = 1.0,
    per: Per = "unit",
    floor: float = 0.05,
) -> Redistribution:
    """Return r from the gradients of the loss at the noisy layer, over all examples of `batches`.

    Guarantee: with `noise_multiplier` z > 0 the result is a Gaussian mechanism of noise multiplier z on the examples:
    GaussianRelease(noise_multiplier=z). An example, against a null record in its row, changes the sum of scores by
    `SENSITIVITY` at most; one whose gradient is not finite contributes nothing. With 0 it protects nothing.
    Assumes: the model does not depend on the private data except through releases in the ledger. The random numbers of
    its noise layer are secret and drawn for the null record too: to leave the row out would shift the draws of all
    examples after it, and each of their scores may then change by 2.
    Raises: InvalidInputError for a noise multiplier below 0, or more than 2^20 examples.
    """
    if not noise_multiplier >= 0:
        raise InvalidInputError(f"noise_multiplier must be >= 0, got {noise_multiplier}")
    units = model.output_shape[0] if per == "channel" else model.units
    total, count = np.zeros(units), 0
    for inputs, targets in batches:
        total += _clipped_scores(model, inputs, targets, beta, per).sum(dim=0).double().cpu().numpy()
        count += len(inputs)
    if count > MOST_EXAMPLES:
        raise InvalidInputError(f"there are {count} examples: the bound on rounding holds to {MOST_EXAMPLES}")
    if noise_multiplier:
        release = GridRelease(sensitivity=SENSITIVITY, noise_multiplier=noise_multiplier, size=units)
        total = release.release([torch.from_numpy(total)], stream)[0].numpy()
    scores = np.maximum(total, 0)  # beta is in the scores already
    r = from_scores(scores, beta=1.0, direction=direction, floor=floor)
    details = {"direction": direction, "beta": beta, "floor": floor, "noise_multiplier": noise_multiplier}
    return Redistribution(way=way, shape=model.output_shape, per=per, r=tuple(r), details=details)


def _clipped_scores(model: NoisyNetwork, inputs: Tensor, targets: Tensor, beta: float, per: Per) -> Tensor:
    """Return the score vector of each example, of l2 norm at most 1; zeros if its gradient is not finite."""
    device = next(model.parameters()).device
    with torch.enable_grad():
        h = model.noisy.noise(model.noisy.clean(inputs.to(device))).detach().requires_grad_()
        with model.from_layer(h):
            losses = torch.nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device), reduction="sum")
        (gradient,) = torch.autograd.grad(losses, h)
    # Every example gets the same say: scaled to norm 1, so one with a large loss cannot drown the others. In double
    # precision and relative to the largest entry: tiny gradients must not vanish from the norm but stay in the vector.
    scores = gradient.detach().double().abs()
    largest = scores.flatten(1).amax(dim=1).view(-1, *[1] * (scores.dim() - 1))
    scores = torch.where(largest > 0, scores / largest, 0.0).pow(beta)
    scores = scores.flatten(2).mean(dim=2) if per == "channel" and scores.dim() > 2 else scores.flatten(1)
    scores = scores / scores.norm(dim=1, keepdim=True).clamp_min(1e-100) * (SCORE_NORM * (1 - 1e-12))
    finite = scores.isfinite().all(dim=1, keepdim=True)  # an infinite loss has a gradient of NaN
    return torch.where(finite, scores, 0.0)
