"""Figure 1: noise scale of the classic, extended (HGM) and analytic Gaussian mechanisms against epsilon."""

__all__ = ["GRID", "draw", "rows"]

from typing import Any

import numpy as np

from securesgd.report.figures import noise_scale_figure as draw
from securesgd.theory.noise_table import noise_rows

GRID = {
    "epsilon": [float(f"{e:.4g}") for e in np.geomspace(0.1, 10, 41)],
    "delta": [1e-5],
    "sensitivity": 1.0,
}


def rows() -> list[dict[str, Any]]:
    """Return a row per mechanism and epsilon; sigma is empty where the theorem does not apply."""
    return [
        {name: row.get(name) for name in ("mechanism", "epsilon", "delta", "sensitivity", "sigma")}
        for row in noise_rows(**GRID)  # type: ignore[arg-type]
    ]
