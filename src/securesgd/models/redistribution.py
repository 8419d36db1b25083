"""Redistribution: the vector r that says which share of the noise each unit of the noisy layer gets.

The score of one example is |∂L/∂h₁|^β. On private data its mean is a release like any other: here each example's
score vector is clipped in l2, summed, and Gaussian noise is added, which costs one Gaussian event in the ledger. (The
paper says it costs nothing; docs/errata.md, no. 7.)
"""

__all__ = ["SENSITIVITY", "Redistribution", "from_gradients", "prior", "random", "uniform"]

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.storage import read_json, write_json
from securesgd.theory import component_std, expand_channels, from_scores, mix_with_uniform, validated
from securesgd.theory import uniform as even_shares
from securesgd.theory.redistribution import Direction


@dataclass(frozen=True, kw_only=True)
class Redistribution:
    """r over the units of the noisy layer, of shape `shape`; one value per channel if `per` is "channel"."""

    way: str
    shape: tuple[int, ...]
    per: str
    r: tuple[float, ...]
    details: dict[str, Any]
    """What made it: direction, beta, seed, noise multiplier, …"""

    def __post_init__(self) -> None:
        units = int(np.prod(self.shape))
        size = {"unit": units, "channel": self.shape[0]}.get(self.per)
        if size is None:
            raise InvalidInputError(f"r must be per unit or per channel, got {self.per!r}")
        validated(self.r, size)

    @property
    def per_unit(self) -> np.ndarray:
        """The vector r over all K units."""
        values = np.asarray(self.r)
        return values if self.per == "unit" else expand_channels(values, int(np.prod(self.shape)) // len(values))

    def std(self, sigma: float) -> np.ndarray:
        """Return the noise of each unit, sigma·√(K r_k)."""
        return component_std(self.per_unit, sigma)

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Redistribution":
        """Return the record of a file. Raises: DamagedFileError if it is not one."""
        try:
            content = read_json(path)
            return cls(**content | {"shape": tuple(content["shape"]), "r": tuple(content["r"])})
        except (DamagedFileError, ValueError, TypeError, KeyError) as error:
            raise DamagedFileError(f"{path} is not a redistribution record ({error})") from None


def uniform(shape: tuple[int, ...]) -> Redistribution:
    """Return r_k = 1/K: the ordinary Gaussian mechanism."""
    return Redistribution(way="uniform", shape=shape, per="unit", r=tuple(even_shares(_units(shape))), details={})


def random(shape: tuple[int, ...], seed: int, floor: float = 0.05) -> Redistribution:
    """Return r drawn uniformly from the simplex (the paper's remark), kept at or above `floor` of the even share."""
    r = mix_with_uniform(np.random.default_rng(seed).dirichlet(np.ones(_units(shape))), floor)
    return Redistribution(way="random", shape=shape, per="unit", r=tuple(r), details={"seed": seed, "floor": floor})


def prior(shape: tuple[int, ...], steepness: float = 6.0) -> Redistribution:
    """Return r that grows with the distance from the image centre: K r ∝ exp(steepness · (distance/corner)²).

    A guess about centred pictures, made without looking at one: what is at the border matters less, so it can carry
    more noise, which under l_inf makes the whole layer less sensitive.
    """
    if len(shape) != 3:
        raise InvalidInputError(f"the prior needs a layer with height and width, got shape {shape}")
    height, width = shape[1:]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    shares = np.broadcast_to(np.exp(steepness * (x**2 + y**2) / 2), shape).ravel()
    r = tuple(shares / shares.sum())
    return Redistribution(way="prior", shape=shape, per="unit", r=r, details={"steepness": steepness})


def _units(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


Per = Literal["unit", "channel"]
SCORE_NORM = 1.0  # l2 bound of one example's score vector; scores are normalised per example, so any value is the same
MOST_EXAMPLES = 2**20
SENSITIVITY = SCORE_NORM * (1 + 2.0**-11)
"""What one example can change in the sum of scores, in l2, rounding included: the norm of up to 2^30 numbers in float64
is off by 2^-23 at most, and a float64 sum of n vectors of norm 1, in any order, by n · gamma_n <= 2^-12.9 for
n <= 2^20, once with the example and once without it."""


def from_gradients(
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
