"""The paper's MNIST network under a budget: test accuracy of DP-SGD and of Secure-SGD with and without redistribution.

robust_epsilon = 4 and construction attack size 0.1 under l_inf, as in the paper. Settings were found on 5,000 training
images held out (one seed), which no privacy budget covers; the numbers here are on the test set, trained on all 60,000.
"""

__all__ = ["MINUTES", "SETTINGS", "cells", "draw", "measure"]

from pathlib import Path
from typing import Any

from securesgd.reproduce.gains import seed_summary
from securesgd.reproduce.plots import budget_figure
from securesgd.runtime.tables import write_rows

_ROBUST: dict[str, Any] = {"norm": "linf", "robust_epsilon": 4.0, "attack_size": 0.1, "copies": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "secure-sgd": _ROBUST | {"place": "input", "redistribution": "learned", "start": "prior"},
    "secure-sgd-agm": _ROBUST | {"place": "input"},
}
_STEPS: dict[float, dict[str, Any]] = {
    0.2: {"batch_size": 1024, "steps": 90, "learning_rate": 4.0},
    0.5: {"batch_size": 1024, "steps": 120, "learning_rate": 4.0},
    1.0: {"batch_size": 1024, "steps": 150, "learning_rate": 4.0},
    2.0: {"batch_size": 512, "steps": 350, "learning_rate": 2.0},
}
_PROFILES: dict[str, tuple[int, ...]] = {"paper": (0, 1, 2), "quick": (0,)}
MINUTES = {"quick": 3, "paper": 3}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the grid: method × epsilon × seed."""
    return [
        {"dataset": "mnist", "network": "mnist-cnn", "method": method, "epsilon": epsilon, "seed": seed}
        for seed in _PROFILES[profile]
        for epsilon in _STEPS
        for method in SETTINGS
    ]


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Train one cell's model and return its row."""
    from securesgd.reproduce.trained import accuracy_row

    method, epsilon, seed = cell["method"], cell["epsilon"], cell["seed"]
    settings = {"network": cell["network"], "epsilon": epsilon, "micro_batch": 256}
    settings |= _STEPS[epsilon] | SETTINGS[method]
    return [accuracy_row(cell, work / f"{method}-{epsilon:g}-{seed}", settings)]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    budget_figure(rows, path)
    write_rows(path.with_name("summary.csv"), seed_summary(rows, ["method", "epsilon"], ["test_accuracy"]))
