"""Redistribution: the vector r that says which share of the noise each unit of the noisy layer gets.

`WAYS` is the table of the ways to obtain r; one row adds one. A way from outside is an import path to a function of the
layer's shape and a seed that returns a positive number per unit; it must not look at private data.
"""

__all__ = ["WAYS", "Redistribution", "Way", "prior", "random", "redistribution_way", "uniform"]

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from securesgd.errors import DamagedFileError, InvalidInputError, nearest
from securesgd.runtime.import_path import is_import_path, load_function
from securesgd.runtime.storage import read_json, write_json
from securesgd.theory import component_std, expand_channels, mix_with_uniform, validated
from securesgd.theory import uniform as even_shares

Shape = tuple[int, ...]


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


def uniform(shape: Shape, seed: int = 0) -> Redistribution:
    """Return r_k = 1/K: the ordinary Gaussian mechanism."""
    return Redistribution(way="uniform", shape=shape, per="unit", r=tuple(even_shares(_units(shape))), details={})


def random(shape: Shape, seed: int = 0, floor: float = 0.05) -> Redistribution:
    """Return r drawn uniformly from the simplex (the paper's remark), kept at or above `floor` of the even share."""
    r = mix_with_uniform(np.random.default_rng(seed).dirichlet(np.ones(_units(shape))), floor)
    return Redistribution(way="random", shape=shape, per="unit", r=tuple(r), details={"seed": seed, "floor": floor})


def prior(shape: Shape, seed: int = 0, steepness: float = 6.0) -> Redistribution:
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


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to obtain r: `first` gives it without data; otherwise it is `learned`, or computed from what it `reads`.

    `details` are the robustness settings that made it, kept in `redistribution.json`.
    """

    first: Callable[[Shape, int], Redistribution] | None = None
    learned: bool = False
    """r is a parameter of the network, trained like the others."""
    reads: Literal["nothing", "public data", "private data"] = "nothing"
    """The data whose gradients r is computed from during training."""
    protected: bool = True
    """Whether a release of r from private data has noise. Without, the whole run has no guarantee."""
    details: tuple[str, ...] = ()

    def initial(self, shape: Shape, start: str, seed: int) -> Redistribution:
        """Return r before training: that of the way, of `start` for a learned one, else uniform."""
        if self.first is not None:
            return self.first(shape, seed)
        if not self.learned:
            return uniform(shape)
        first = redistribution_way(start, "start").first
        if first is None:
            raise InvalidInputError(f"start is {start!r}; valid: a way without data, {', '.join(_without_data())}")
        return first(shape, seed)


WAYS: dict[str, Way] = {
    "uniform": Way(first=uniform),
    "random": Way(first=random),
    "prior": Way(first=prior),
    "public": Way(reads="public data", details=("direction", "beta")),
    "private": Way(reads="private data", details=("direction", "beta")),
    "learned": Way(learned=True, details=("start", "scale_grid", "scale_rate", "scale_share")),
    "as-published": Way(reads="private data", protected=False, details=("direction", "beta")),
}


def redistribution_way(name: str, what: str = "redistribution") -> Way:
    """Return a way by name, or from outside by import path.

    Raises: InvalidInputError for an unknown name, with the nearest, or a path that cannot be imported.
    """
    if isinstance(name, str) and name in WAYS:
        return WAYS[name]
    if not is_import_path(name):
        valid = f"{nearest(str(name), WAYS)}, or an import path like package.module:function"
        raise InvalidInputError(f"unknown {what} {name!r}: {valid}")
    function = load_function(name, what)

    def first(shape: Shape, seed: int) -> Redistribution:
        shares = np.asarray(function(shape, seed), dtype=np.float64).ravel()
        if shares.size != _units(shape) or not bool((np.isfinite(shares) & (shares > 0)).all()):
            raise InvalidInputError(f"{what} {name!r} must return a positive number for each unit of shape {shape}")
        return Redistribution(way=name, shape=shape, per="unit", r=tuple(shares / shares.sum()), details={"seed": seed})

    return Way(first=first)


def _without_data() -> list[str]:
    return [name for name, way in WAYS.items() if way.first is not None]
