"""Interval bounds under differential privacy: certified l_inf accuracy without votes, beside smoothing.

MNIST at epsilon 3, Fashion-MNIST and CIFAR-10 at epsilon 8, by the method dp-ibp with the presets of the data sets.
With one seed: MNIST at epsilon 1 and 8, and over the radius of training at epsilon 3; and smoothing on MNIST at the
same epsilons (r learned from the prior, 10,000 draws, fewer images since each takes its votes). How the settings were
found, which no privacy budget covers, is in docs/reference/interval.md; rows are on the test set.
"""

__all__ = ["INTERVAL", "INTERVAL_RADII"]

import time
from pathlib import Path
from typing import Any

from securesgd.reproduce.gains import seed_summary
from securesgd.reproduce.grid import Cell, Experiment, Row
from securesgd.reproduce.interval_plots import interval_figure
from securesgd.reproduce.models import WAYS, cell_model, train_command
from securesgd.reproduce.redistribution import SETTINGS
from securesgd.runtime.tables import write_rows

INTERVAL_RADII = (1 / 255, 2 / 255, 0.02, 0.04, 0.06, 0.08, 0.10)
_TRAIN_RADII = (0.06, 0.2)  # besides the preset's
_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"seeds": (0,), "examples": 1_000, "votes_examples": 100},
    "standard": {"seeds": (0, 1, 2), "examples": 10_000, "votes_examples": 500},
}
_SMOOTHING = SETTINGS | WAYS["learned-from-prior"]
_DRAWS = 10_000


def _cells(profile: str) -> list[Cell]:
    """Return the grid, the most wanted cells first; `train_radius` is empty for the preset's."""
    size = _PROFILES[profile]

    def cell(dataset: str, method: str, epsilon: float, seed: int, train_radius: float | None = None) -> Cell:
        examples = size["examples" if method == "dp-ibp" else "votes_examples"]
        settings = {"dataset": dataset, "method": method, "epsilon": epsilon, "train_radius": train_radius}
        return {**settings, "seed": seed, "examples": examples}

    return [
        *(cell("mnist", "dp-ibp", 3.0, seed) for seed in size["seeds"]),
        *(cell(dataset, "dp-ibp", 8.0, seed) for seed in size["seeds"] for dataset in ("fashion-mnist", "cifar10")),
        cell("mnist", "secure-sgd", 3.0, 0),
        *(cell("mnist", method, epsilon, 0) for epsilon in (1.0, 8.0) for method in ("dp-ibp", "secure-sgd")),
        *(cell("mnist", "dp-ibp", 3.0, 0, radius) for radius in _TRAIN_RADII),
    ]


def measure_interval(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell, certify its predictions, and return its row."""
    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings

    is_interval = cell["method"] == "dp-ibp"
    settings: dict[str, Any] = ({} if is_interval else _SMOOTHING) | {"epsilon": cell["epsilon"]}
    if cell["train_radius"] is not None:
        settings["train_radius"] = cell["train_radius"]
    name = f"{cell['dataset']}-{cell['method']}-{cell['epsilon']:g}-{cell['train_radius'] or 'preset'}-{cell['seed']}"
    run = cell_model(cell["dataset"], cell["method"], work / name, settings, cell["seed"])
    inputs = run.data.test_inputs[: cell["examples"]]
    targets = run.data.test_targets[: cell["examples"]].numpy()
    started = time.perf_counter()
    votes: dict[str, Any] = {"draws": _DRAWS, "failure_prob": 0.001, "seed": 0}
    certificates = certify(run.model, inputs, CertifySettings(norm="linf", **({} if is_interval else votes)))
    right, radius = (certificates.prediction == targets) & ~certificates.abstained, certificates.radius["tight"]
    boxes = certificates.radius["interval"] if is_interval else None
    return [
        {
            **cell,
            "epsilon_spent": run.privacy.accounted_epsilon,
            "delta": run.privacy.delta,
            "batch_size": run.config.training.batch_size,
            "steps": run.config.training.steps,
            "test_accuracy": run.test_accuracy,
            "test_images": run.test_images,
            "accuracy": float((certificates.prediction == targets).mean()),
            **{f"certified_at_{r:.3g}": float((right & (radius >= r)).mean()) for r in INTERVAL_RADII},
            "boxes_at_0.1": None if boxes is None else float((right & (boxes >= 0.1)).mean()),
            "average_certified_radius": float((right * radius).mean()),
            "certify_seconds": round(time.perf_counter() - started, 1),
            "command": train_command(cell["dataset"], cell["method"], settings, cell["seed"]),
        }
    ]


def _draw(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    interval_figure(rows, path)
    values = ["accuracy", *(f"certified_at_{r:.3g}" for r in INTERVAL_RADII)]
    by = ["dataset", "method", "epsilon", "train_radius", "examples"]
    write_rows(path.with_name("summary.csv"), seed_summary(rows, by, values))


INTERVAL = Experiment(cells=_cells, measure=measure_interval, draw=_draw, minutes={"quick": 12, "standard": 12})
