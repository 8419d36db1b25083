"""A trained model of an experiment's cell: a run folder that is begun, continued or simply read."""

__all__ = ["accuracy_row", "command", "trained"]

import json
from pathlib import Path
from typing import Any

from securesgd.config import run_config
from securesgd.run import TrainedRun, finished_run, train_run
from securesgd.runtime.machine import keep_memory


def trained(dataset: str, method: str, folder: Path, settings: dict[str, Any], seed: int) -> TrainedRun:
    """Return the run of these settings in `folder`, trained as far as is still to do.

    The noise has the seed too, so that the row can be made again; such a run's statement says what that costs.
    """
    keep_memory()
    if (folder / "environment.json").exists():  # the last file a run writes; several processes may read it at once
        return finished_run(folder)
    config = run_config(dataset, method, **settings, seed=seed, noise_seed=seed)
    return train_run(config, folder, resume=True)


def command(dataset: str, method: str, settings: dict[str, Any], seed: int) -> str:
    """Return the command that trains the same run."""
    changes = settings | {"seed": seed, "noise_seed": seed}
    words = [f"--epsilon {changes.pop('epsilon'):g}"] if "epsilon" in changes else []
    words += [
        f"--set {name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changes.items()
    ]
    return f"securesgd train --dataset {dataset} --method {method} {' '.join(words)} --out DIR"


def accuracy_row(cell: dict[str, Any], folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train the model of a cell (its data set, method and seed; `settings` for the rest) and return its accuracy."""
    run = trained(cell["dataset"], cell["method"], folder, settings, cell["seed"])
    return {
        **cell,
        "epsilon_spent": run.statement.accounted_epsilon,
        "delta": run.statement.delta,
        "steps": run.config.training.steps,
        "batch_size": run.config.training.batch_size,
        "test_accuracy": run.test_accuracy,
        "test_images": len(run.data.test_targets),
        "command": command(cell["dataset"], cell["method"], settings, cell["seed"]),
    }
