"""Trained models of an experiment's cells: run folders that are trained, resumed or simply read."""

__all__ = ["WAYS", "accuracy_row", "cell_model", "train_command"]

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.reproduce.grid import Cell, Row

if TYPE_CHECKING:
    from securesgd.run import Run

WAYS: dict[str, dict[str, Any]] = {
    "uniform": {"redistribution": "uniform"},
    "prior": {"redistribution": "prior"},
    "private-vulnerable": {"redistribution": "private", "direction": "vulnerable"},
    "private-inverse": {"redistribution": "private", "direction": "inverse"},
    "as-published": {"redistribution": "as-published"},
    "learned": {"redistribution": "learned", "start": "uniform"},
    "learned-from-prior": {"redistribution": "learned", "start": "prior"},
}
"""How the redistribution r of a cell is obtained (its column `way`), as settings of a run."""


def cell_model(dataset: str, method: str, folder: Path, settings: dict[str, Any], seed: int) -> "Run":
    """Return the run of these settings in `folder`; train it, or resume its training, if it is not finished.

    The noise is seeded too, so that the row can be made again; the run's privacy statement says what that costs.
    Several processes may read a finished run at once.
    """
    from securesgd.config import run_config
    from securesgd.run_training import train_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    return train_run(run_config(dataset, method, **settings, seed=seed, noise_seed=seed), folder, resume=True)


def train_command(dataset: str, method: str, settings: dict[str, Any], seed: int) -> str:
    """Return the command that trains the same run."""
    changes = settings | {"seed": seed, "noise_seed": seed}
    words = [f"--epsilon {changes.pop('epsilon'):g}"] if "epsilon" in changes else []
    words += [
        f"--set {name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changes.items()
    ]
    return f"securesgd train --dataset {dataset} --method {method} {' '.join(words)} --out DIR"


def accuracy_row(cell: Cell, folder: Path, settings: dict[str, Any]) -> Row:
    """Train the model of a cell (its data set, method and seed, and `settings`) and return its accuracy as a row."""
    run = cell_model(cell["dataset"], cell["method"], folder, settings, cell["seed"])
    return {
        **cell,
        "epsilon_spent": run.privacy.accounted_epsilon,
        "delta": run.privacy.delta,
        "steps": run.config.training.steps,
        "batch_size": run.config.training.batch_size,
        "test_accuracy": run.test_accuracy,
        "test_images": run.test_images,
        "command": train_command(cell["dataset"], cell["method"], settings, cell["seed"]),
    }
