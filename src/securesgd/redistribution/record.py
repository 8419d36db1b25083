"""A redistribution vector together with how it was made; the file `redistribution.json` of a run."""

__all__ = ["Redistribution"]

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.storage import read_json, write_json
from securesgd.theory import component_std, expand_channels, validated


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
