"""Does redistribution pay? Sound certified l_inf accuracy on MNIST by the way r is obtained, all at the same Δ.

One network, noise at the input, training data protected with epsilon = 3; what differs is r and nothing else: the noise
is scaled so that one standard deviation is worth the same radius (`unit`) in every cell.
"""

__all__ = ["MINUTES", "RADII", "cells", "draw", "measure", "trained_model"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.reproduce.gains import seed_summary
from securesgd.reproduce.plots import ways_figure
from securesgd.runtime.tables import write_rows

if TYPE_CHECKING:
    from securesgd.run import TrainedRun

RADII = (0.02, 0.04, 0.06, 0.08, 0.10)
_WAYS: dict[str, dict[str, Any]] = {
    "uniform": {"redistribution": "uniform"},
    "prior": {"redistribution": "prior"},
    "private-vulnerable": {"redistribution": "private", "direction": "vulnerable"},
    "private-inverse": {"redistribution": "private", "direction": "inverse"},
    "learned": {"redistribution": "learned", "start": "uniform"},
    "learned-from-prior": {"redistribution": "learned", "start": "prior"},
}
_SETTINGS: dict[str, Any] = {
    "network": "tanh-cnn", "epsilon": 3.0, "batch_size": 1024, "steps": 703, "learning_rate": 1.0, "copies": 1,
    "place": "input", "norm": "linf", "unit": 0.036,
}  # fmt: skip
_PROFILES: dict[str, dict[str, Any]] = {
    "paper": {"seeds": (0, 1, 2), "examples": 500, "draws": 10_000},
    "quick": {"seeds": (0,), "examples": 200, "draws": 10_000},
}
MINUTES = {"quick": 4, "paper": 4}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the grid: way × seed, on so many images with so many draws."""
    size = _PROFILES[profile]
    fixed = {"examples": size["examples"], "draws": size["draws"]}
    return [{"way": way, "seed": seed, **fixed} for seed in size["seeds"] for way in _WAYS]


def trained_model(way: str, seed: int, work: Path) -> "TrainedRun":
    """Return the model of a cell, trained as far as is still to do."""
    from securesgd.reproduce.trained import trained

    return trained("mnist", "secure-sgd", work / f"{way}-{seed}", _SETTINGS | _WAYS[way], seed)


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Train one cell's model, certify, and return its row."""
    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings
    from securesgd.reproduce.trained import command

    run = trained_model(cell["way"], cell["seed"], work)
    settings = _SETTINGS | _WAYS[cell["way"]]
    asked = CertifySettings(norm="linf", draws=cell["draws"], selection_draws=100, failure_prob=0.001, seed=0)
    inputs, targets = run.data.test_inputs[: cell["examples"]], run.data.test_targets[: cell["examples"]].numpy()
    found = certify(run.model, inputs, asked)
    right = (found.prediction == targets) & ~found.abstained
    certified = {f"certified_at_{r:g}": float((right & (found.radius["tight"] >= r)).mean()) for r in RADII}
    return [
        {
            **cell,
            "epsilon_spent": run.statement.accounted_epsilon,
            "delta": run.statement.delta,
            "sensitivity_upper": found.sensitivity.upper,
            "sensitivity_lower": found.sensitivity.lower,
            "test_accuracy": run.test_accuracy,
            "test_images": len(run.data.test_targets),
            "smoothed_accuracy": float(right.mean()),
            **certified,
            "average_certified_radius": float((right * found.radius["tight"]).mean()),
            "command": command("mnist", "secure-sgd", settings, cell["seed"]),
        }
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    ways_figure(rows, path)
    values = ["test_accuracy", *(f"certified_at_{r:g}" for r in RADII), "average_certified_radius"]
    write_rows(path.with_name("summary.csv"), seed_summary(rows, ["way"], values))
