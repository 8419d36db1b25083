"""Certified accuracy against radius, a line per way to obtain r."""

__all__ = ["ways_figure"]

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from securesgd.report.picture import write_picture

# Okabe & Ito's colours, each with a marker of its own for print.
_STYLES = {
    "uniform": ("#000000", "o"),
    "prior": ("#56B4E9", "s"),
    "private-vulnerable": ("#D55E00", "v"),
    "private-inverse": ("#E69F00", "^"),
    "learned": ("#009E73", "D"),
    "learned-from-prior": ("#0072B2", "P"),
}
_PREFIX = "certified_at_"


def ways_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the mean over seeds with the range of the seeds; radii are read off the columns `certified_at_…`."""
    columns = [name for name in rows[0] if name.startswith(_PREFIX)]
    radii = [float(name.removeprefix(_PREFIX)) for name in columns]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for way, (colour, marker) in _STYLES.items():
        values = [[row[name] for row in rows if row["way"] == way] for name in columns]
        if not values[0]:
            continue
        seeds = len(values[0])
        axes.plot(radii, [mean(v) for v in values], color=colour, marker=marker, linewidth=1.6, label=way)
        axes.fill_between(radii, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
    examples, draws = int(rows[0]["examples"]), int(rows[0]["draws"])
    axes.set(
        xlabel="l∞ radius (pixels in [0, 1])",
        ylabel="certified accuracy",
        title=f"MNIST, {examples} test images, {draws:,} draws, mean and range of {seeds} seeds",
        ylim=(0, 1),
    )
    axes.title.set_fontsize(10)
    axes.grid(True, color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="r", framealpha=1, edgecolor="none", fontsize=8)
    write_picture(figure, path)
