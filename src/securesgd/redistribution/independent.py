"""Redistribution vectors that do not look at any data: uniform, random, and a prior for centred images."""

__all__ = ["prior", "random", "uniform"]

import numpy as np

from securesgd.errors import InvalidInputError
from securesgd.redistribution.record import Redistribution
from securesgd.theory import mix_with_uniform
from securesgd.theory import uniform as even_shares


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
