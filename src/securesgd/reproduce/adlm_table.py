"""AdLM as published, reduced to minutes: test accuracy on MNIST and CIFAR-10 at its authors' budget and a larger one.

`docs/adlm.md` says what is reduced. epsilon is what the method claims; no privacy is guaranteed.
"""

__all__ = ["MINUTES", "cells", "draw", "measure"]

from pathlib import Path
from typing import Any

from securesgd.reproduce.plots import budget_figure as draw

_BUDGETS: dict[str, dict[str, tuple[float, ...]]] = {
    "quick": {"mnist": (0.3,), "cifar10": (2.5,)},
    "paper": {"mnist": (0.3, 2.0), "cifar10": (2.5, 10.0)},
}
_SEEDS = {"quick": (0,), "paper": (0, 1, 2)}
MINUTES = {"quick": 6, "paper": 6}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the grid: data set × claimed epsilon × seed."""
    return [
        {"dataset": dataset, "method": "adlm", "epsilon": epsilon, "seed": seed}
        for seed in _SEEDS[profile]
        for dataset, budgets in _BUDGETS[profile].items()
        for epsilon in budgets
    ]


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Train one cell's model by its preset and return its row."""
    from securesgd.reproduce.trained import accuracy_row

    folder = work / f"{cell['dataset']}-{cell['epsilon']:g}-{cell['seed']}"
    return [accuracy_row(cell, folder, {"epsilon": cell["epsilon"]})]
