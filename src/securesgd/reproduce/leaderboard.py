"""The presets against published numbers: accuracy under DP-SGD, and certified accuracy by smoothing, seed by seed.

Every cell is what `securesgd train --dataset … --method …` gives: the preset of the data set, the method and the norm
of the radii, at the privacy budget that the published number has and a noise that suits the radius; what differs from
the preset is named.
Accuracy is on the full test set; certificates are of its first images.
"""

__all__ = ["LEADERBOARD", "PUBLISHED", "SOURCES", "certified_shares", "leaderboard_lines"]

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from securesgd.reproduce.gains import seed_summary
from securesgd.reproduce.grid import Cell, Experiment, Row
from securesgd.reproduce.models import cell_model, train_command
from securesgd.reproduce.plots import leaderboard_figure
from securesgd.runtime.tables import write_rows

_RADII = {"linf": (0.02, 0.04, 0.06, 0.08, 0.10), "l2": (0.25, 0.5, 0.75, 1.0, 1.5)}
_COMPARED = tuple(f"{norm}_{radius:g}" for norm, radii in _RADII.items() for radius in radii)
_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"seeds": (0,), "examples": 200, "draws": 1_000},
    "standard": {"seeds": (0, 1, 2), "examples": 1_000, "draws": 10_000},
}
_MODELS: tuple[tuple[str, str, str | None, float | None, float, str | None, str], ...] = (
    ("fashion-mnist", "dpsgd", None, None, 3.0, None, "preset"),
    ("mnist", "dpsgd", None, None, 3.0, None, "preset"),
    ("cifar10", "dpsgd", None, None, 3.0, None, "preset"),
    ("fashion-mnist", "secure-sgd", "l2", 0.25, 2.9, None, "preset"),
    ("fashion-mnist", "secure-sgd", "l2", 1.0, 2.9, None, "tanh-cnn"),
    ("cifar10", "secure-sgd", "l2", 0.25, 8.0, None, "preset"),
    ("mnist", "secure-sgd", "linf", None, 3.0, "digits", "preset"),
    ("mnist", "secure-sgd", "l2", 0.75, 2.9, "digits", "short"),
    ("mnist", "secure-sgd", "l2", 0.5, 2.9, "digits", "preset"),
    ("mnist", "secure-sgd", "l2", 0.3, 2.9, "digits", "less-consistent"),
    ("mnist", "secure-sgd", "l2", 0.75, 2.9, None, "short"),
    ("mnist", "secure-sgd", "l2", 0.5, 2.9, None, "preset"),
    ("mnist", "secure-sgd", "l2", 0.3, 2.9, None, "less-consistent"),
    ("mnist", "secure-sgd", "linf", None, 3.0, None, "preset"),
)
"""Data set, method, norm, noise (one standard deviation in that norm; None: the preset's), epsilon, the public data
that the first weights come from, and the recipe."""
_SHORT: dict[str, Any] = {"steps": 200, "copies": 4, "learning_rate": 16.0}
_RECIPES: dict[str, dict[str, Any]] = {
    "preset": {},
    "short": _SHORT,
    "less-consistent": {"consistency": 1.0},
    "tanh-cnn": _SHORT
    | {"network": "tanh-cnn", "batch_size": 2048, "micro_batch": 128, "kept_copies": False, "consistency": 5.0},
}
"""What differs from the preset. Under much noise another network is better, and a quarter of the work is enough for the
published numbers; under little noise copies agree anyway."""
_PUBLIC_STEPS, _FEW_DRAWS = 4_000, 32
PUBLISHED: dict[tuple[str, str, str | None], dict[str, float]] = {
    ("mnist", "secure-sgd", "l2"): {"l2_0.5": 0.933, "l2_1": 0.813, "average_certified_radius": 1.354},
    ("fashion-mnist", "secure-sgd", "l2"): {"l2_0.5": 0.690, "average_certified_radius": 1.185},
    ("mnist", "dpsgd", None): {"test_accuracy": 0.987},
    ("fashion-mnist", "dpsgd", None): {"test_accuracy": 0.897},
    ("cifar10", "dpsgd", None): {"test_accuracy": 0.693},
}
"""The best published numbers at these budgets, each over all noise sizes. None is published for l_inf or CIFAR-10 from
scratch."""
SOURCES = {
    "secure-sgd": ("DP-CERT", "its notebooks, full test set, N = 10,000, failure probability 0.001"),
    "dpsgd": ("Tramèr & Boneh 2021", "scattering features, full test set"),
}
"""Where the published numbers of a method are from."""
_LINES: tuple[tuple[str, str, str | None, str, str], ...] = (
    ("mnist", "secure-sgd", "l2", "l2_0.5", "MNIST, proven within l2 0.5"),
    ("mnist", "secure-sgd", "l2", "l2_1", "MNIST, proven within l2 1"),
    ("mnist", "secure-sgd", "l2", "average_certified_radius", "MNIST, mean l2 radius"),
    ("fashion-mnist", "secure-sgd", "l2", "l2_0.5", "Fashion-MNIST, proven within l2 0.5"),
    ("fashion-mnist", "secure-sgd", "l2", "average_certified_radius", "Fashion-MNIST, mean l2 radius"),
    ("cifar10", "secure-sgd", "l2", "l2_0.25", "CIFAR-10, proven within l2 0.25"),
    *(
        ("mnist", "secure-sgd", "linf", f"linf_{radius:g}", f"MNIST, proven within l_inf {radius:g}, votes")
        for radius in _RADII["linf"][1:]
    ),
    ("mnist", "dpsgd", None, "test_accuracy", "MNIST, accuracy"),
    ("fashion-mnist", "dpsgd", None, "test_accuracy", "Fashion-MNIST, accuracy"),
    ("cifar10", "dpsgd", None, "test_accuracy", "CIFAR-10, accuracy"),
)
"""Of the table: data set, method, norm, column and words."""


_KEY = ("dataset", "method", "norm", "public_dataset")
_PUBLIC = {public for *_, public, _ in _MODELS if public is not None}


def leaderboard_lines(rows: list[Row]) -> list[list[str]]:
    """Return the lines of the table, in words: what, published, ours, at which noise and ε, and from how much.

    Ours is the mean (range) over the seeds, at the noise with the best mean. A line without rows says so; with first
    weights from public data there is a line of its own if it has rows.
    """
    lines = []
    for words, published, method, column, best in _best_models(rows):
        line = [words, "none" if published is None else f"{published:.3f}, {SOURCES[method][0]}"]
        if best is None:
            lines.append([*line, "not measured yet", "", "", ""])
            continue
        mean, low, high = _seed_range(best, column)
        ours = f"{mean:.3f} ({low:.3f}–{high:.3f})" if best["seeds"] > 1 else f"{mean:.3f}"
        noise = f"{best['unit']:g}" if best["unit"] else ("the preset's" if best["norm"] else "none")
        count = (
            f"{best['examples']:,.0f} images, {best['draws']:,.0f} draws"
            if best["norm"]
            else f"{best['test_images']:,.0f} images"
        )
        budget = f"{best['epsilon']:g}, {best['delta']:g}"
        lines.append([*line, ours, noise, budget, f"{count}, {best['seeds']} seed{'s' * (best['seeds'] > 1)}"])
    return lines


def _best_models(rows: list[Row]) -> list[tuple[str, float | None, str, str, dict[str, Any] | None]]:
    """Return for each line its words, the published number, method, column, and the summary of the best noise."""
    chosen = []
    for public, (dataset, method, norm, column, words) in product((None, *sorted(_PUBLIC)), _LINES):
        own = [row for row in rows if tuple(row[name] or None for name in _KEY) == (dataset, method, norm, public)]
        if public is not None and not own:
            continue
        by = ["norm", "unit", "epsilon", "delta", "examples", "draws", "test_images"]
        summaries = seed_summary(own, by, [column])
        best = max(summaries, key=lambda summary: float(summary[f"{column}_mean"]), default=None)
        words += "" if public is None else f", first weights from {public}"
        chosen.append((words, PUBLISHED.get((dataset, method, norm), {}).get(column), method, column, best))
    return chosen


def _seed_range(summary: dict[str, Any], column: str) -> tuple[float, float, float]:
    mean, low, high = (float(summary[f"{column}_{name}"]) for name in ("mean", "min", "max"))
    return mean, low, high


def _cells(profile: str) -> list[Cell]:
    """Return the grid: seed × model, the first seed of all models first."""
    size = _PROFILES[profile]
    return [
        {
            "dataset": dataset, "method": method, "norm": norm, "unit": unit, "epsilon": epsilon, "seed": seed,
            "public_dataset": public, "recipe": recipe, "examples": size["examples"], "draws": size["draws"],
        }
        for seed in size["seeds"]
        for dataset, method, norm, unit, epsilon, public, recipe in _MODELS
    ]  # fmt: skip


def measure_leaderboard(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell by its preset, certify its predictions if it has noise, and return its row."""
    settings = {name: cell[name] for name in ("norm", "unit", "epsilon", "public_dataset") if cell[name] is not None}
    settings |= {} if cell["public_dataset"] is None else {"public_steps": _PUBLIC_STEPS}
    settings |= _RECIPES[cell["recipe"]]
    words = [cell[name] for name in (*_KEY, "unit", "recipe", "seed")]
    folder = work / "-".join(str(word) for word in words if word is not None)
    resumed, started = folder.exists(), time.process_time()
    run = cell_model(cell["dataset"], cell["method"], folder, settings, cell["seed"])
    trained = time.process_time()
    certified = certified_shares(run, cell)
    training = run.config.training
    return [
        {
            **cell,
            "network": run.config.network,
            "epsilon_spent": run.privacy.accounted_epsilon,
            "delta": run.privacy.delta,
            **{name: getattr(training, name) for name in ("batch_size", "steps", "copies")},
            "test_accuracy": run.test_accuracy,
            "test_images": run.test_images,
            **certified,
            "train_cpu_minutes": None if resumed else round((trained - started) / 60, 2),
            "certify_cpu_minutes": round((time.process_time() - trained) / 60, 2) if cell["norm"] else None,
            "command": train_command(cell["dataset"], cell["method"], settings, cell["seed"]),
        }
    ]


def certified_shares(run: Any, cell: Cell) -> dict[str, Any]:
    """Return the smoothed and certified accuracies of a model, empty for one without noise."""
    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings

    names = ("smoothed_accuracy", *_COMPARED, "average_certified_radius")
    if cell["norm"] is None:
        return dict.fromkeys(names)
    count = cell["examples"]
    inputs, targets = run.data.test_inputs[:count], run.data.test_targets[:count].numpy()
    settings = CertifySettings(norm=cell["norm"], draws=cell["draws"], failure_prob=0.001, seed=0)
    # A certificate of a wrong class counts for nothing, so only right ones are drawn in full. The class is that of the
    # selection draws, which do not depend on how many others follow.
    few = certify(run.model, inputs, settings.with_changes(draws=_FEW_DRAWS))
    chosen = np.flatnonzero(few.prediction == targets)
    proofs = certify(run.model, inputs[chosen], settings, indices=chosen)
    radius = proofs.radius["tight"] * (proofs.prediction == targets[chosen])
    shares = {f"{cell['norm']}_{proven:g}": float((radius >= proven).sum() / count) for proven in _RADII[cell["norm"]]}
    values = {
        "smoothed_accuracy": float((radius > 0).sum() / count),
        "average_certified_radius": float(radius.sum() / count),
    }
    return dict.fromkeys(names) | shares | values


def _draw(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    by, values = (
        [*_KEY, "unit", "epsilon"],
        ["test_accuracy", *_COMPARED, "average_certified_radius"],
    )
    measured = [row | {name: row[name] or 0.0 for name in values} for row in rows]
    write_rows(path.with_name("summary.csv"), seed_summary(measured, by, values))
    lines = _best_models(rows)
    drawn = [(words, _seed_range(best, column), known) for words, known, _, column, best in lines if best is not None]
    leaderboard_figure(drawn, path)


LEADERBOARD = Experiment(cells=_cells, measure=measure_leaderboard, draw=_draw, minutes={"quick": 15, "standard": 25})
