"""The figure of audits: claimed epsilon against what canaries prove, a point for every run."""

__all__ = ["audit_figure"]

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from securesgd.report.plots import write_picture
from securesgd.reproduce.plots import Row, line_styles, tidy_axes

_BOUND = "white_box_tradeoff"


def audit_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw two panels: bounds by claimed epsilon of training as shipped, and bounds by kind of sabotage."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    shipped, broken = figure.subplots(1, 2, width_ratios=(2, 3))
    honest = [row for row in rows if row["kind"] == "as-shipped"]
    claims = sorted({float(row["epsilon"]) for row in rows})
    columns = {"trade-off curve": _BOUND, "(ε, δ) alone": "white_box_simple", "black box": "black_box_tradeoff"}
    for offset, (label, (colour, _)) in zip((-0.12, 0.0, 0.12), line_styles(columns).items(), strict=True):
        x = [claims.index(float(row["epsilon"])) + offset + _spread(row) for row in honest]
        y = [float(row[columns[label]]) for row in honest]
        shipped.plot(x, y, ".", color=colour, markersize=5, alpha=0.7, label=label)
    for place, claim in enumerate(claims):
        label = "claimed" if place == 0 else "_nolegend_"
        shipped.plot([place - 0.35, place + 0.35], [claim, claim], color="black", linewidth=1.2, label=label)
    shipped.set_xticks(range(len(claims)), [f"{claim:g}" for claim in claims])
    runs = len(honest) // max(1, len({row["epsilon"] for row in honest}))
    shipped.set(xlabel="claimed ε", ylabel="proven: ε is at least", title=f"As shipped, {runs} runs each")
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in rows) if kind != "as-shipped"]
    for words, (colour, marker) in line_styles(f"{claim:g}" for claim in claims).items():
        group = [row for row in rows if f"{float(row['epsilon']):g}" == words and row["kind"] in kinds]
        x = [kinds.index(row["kind"]) + 6 * _spread(row) for row in group]
        y = [float(row[_BOUND]) for row in group]
        broken.plot(x, y, marker, color=colour, markersize=3.5, alpha=0.7, label=f"claimed ε = {words}")
        broken.axhline(float(words), color=colour, linewidth=0.8, linestyle="--")
    broken.set_xticks(range(len(kinds)), [kind.replace("-", "\n") for kind in kinds])
    broken.set(title="Broken on purpose (dashed: the claim), and canaries never inserted (null)")
    for axes, corner in ((shipped, "upper left"), (broken, "center right")):  # where no point is
        axes.title.set_fontsize(10)
        tidy_axes(axes)
        axes.legend(framealpha=1, edgecolor="none", fontsize=8, loc=corner)
    write_picture(figure, path)


def _spread(row: Row) -> float:
    """Return a small shift by the seed, so that points do not hide each other."""
    return 0.1 * float(np.modf(0.618 * float(row["seed"]))[0] - 0.5)
