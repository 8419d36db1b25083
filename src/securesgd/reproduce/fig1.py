"""Figure 1: noise scale of the classic, extended (HGM) and analytic Gaussian mechanisms against epsilon."""

__all__ = ["GRID", "MINUTES", "cells", "draw", "measure"]

from pathlib import Path
from typing import Any

import numpy as np

from securesgd.reproduce.plots import noise_scale_figure as draw
from securesgd.theory.gaussian import MECHANISMS
from securesgd.theory.noise_table import noise_rows

GRID = {
    "epsilon": [float(f"{e:.4g}") for e in np.geomspace(0.1, 10, 41)],
    "delta": [1e-5],
    "sensitivity": 1.0,
}
MINUTES = {"quick": 0.02, "paper": 0.02}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the mechanisms: the whole figure takes a second, so every profile is the full grid."""
    return [{"mechanism": mechanism} for mechanism in MECHANISMS]


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Return a row per epsilon; sigma is empty where the theorem does not apply."""
    return [
        {name: row.get(name) for name in ("mechanism", "epsilon", "delta", "sensitivity", "sigma")}
        for row in noise_rows(**GRID)  # type: ignore[arg-type]
        if row["mechanism"] == cell["mechanism"]
    ]
