"""Accuracy against the privacy budget, a line per method: the paper's Figures 4 and 5."""

__all__ = ["budget_figure"]

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from securesgd.report.picture import write_picture

# Okabe & Ito's colours, each with a marker of its own for print.
_STYLES = {
    "dpsgd": ("#000000", "o"),
    "secure-sgd": ("#0072B2", "P"),
    "secure-sgd-agm": ("#E69F00", "^"),
    "adlm": ("#D55E00", "v"),
}


def budget_figure(rows: Sequence[dict[str, Any]], path: Path, column: str = "test_accuracy") -> None:
    """Draw the mean over seeds with the range of the seeds, for each method and epsilon."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for method, (colour, marker) in _STYLES.items():
        epsilons = sorted({row["epsilon"] for row in rows if row["method"] == method})
        if not epsilons:
            continue
        values = [[row[column] for row in rows if (row["method"], row["epsilon"]) == (method, e)] for e in epsilons]
        axes.plot(epsilons, [mean(v) for v in values], color=colour, marker=marker, linewidth=1.6, label=method)
        axes.fill_between(epsilons, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
    images, seeds = int(rows[0]["test_images"]), len({row["seed"] for row in rows})
    title = f"{rows[0]['dataset']}, {images:,} test images, mean and range of {seeds} seed{'s' * (seeds > 1)}"
    axes.set(xlabel="privacy budget ε", ylabel=column.replace("_", " "), title=title)
    axes.title.set_fontsize(10)
    axes.grid(True, color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=1, edgecolor="none", fontsize=8)
    write_picture(figure, path)
