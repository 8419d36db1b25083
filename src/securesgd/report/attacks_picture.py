"""Accuracy under attack against budget: a panel per attack, a line per method, the certified floor below it."""

__all__ = ["attacks_figure"]

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from securesgd.report.picture import write_picture

# Okabe & Ito's colours, each with a marker of its own for print.
_STYLES = {"dpsgd": ("#D55E00", "v"), "secure-sgd-agm": ("#000000", "o"), "secure-sgd": ("#0072B2", "P")}


def attacks_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the sound attacks (all, if none is sound): mean over seeds, intervals of one seed or range of several.

    Solid: right under attack. Dashed: right and proven at the clean image; no attack can go below it.
    """
    sound = [row for row in rows if row["protocol"] == "sound"] or list(rows)
    attacks = list(dict.fromkeys(row["attack"] for row in sound))
    figure = Figure(figsize=(3 * len(attacks) + 0.5, 3.4), layout="constrained")
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    for axes, attack in zip(panels, attacks, strict=True):
        for method, (colour, marker) in _STYLES.items():
            mine = [row for row in sound if row["attack"] == attack and row["method"] == method]
            if not mine:
                continue
            budgets = sorted({row["budget"] for row in mine})
            at = [[row for row in mine if row["budget"] == budget] for budget in budgets]
            x = [0.0, *budgets]
            middle = [mean(row["clean"] for row in at[0]), *(mean(row["attacked"] for row in group) for group in at)]
            axes.plot(x, middle, color=colour, marker=marker, markersize=4, linewidth=1.6)
            low, high = zip(*(_spread(group) for group in at), strict=True)
            axes.fill_between(budgets, low, high, color=colour, alpha=0.15)
            floor = [mean(row["certified_clean"] for row in group) for group in at]
            if any(floor):
                axes.plot(budgets, floor, color=colour, linewidth=1.2, linestyle="--")
        axes.set(xlabel="l∞ budget", ylim=(0, 1), title=attack)
        axes.title.set_fontsize(10)
        axes.grid(True, color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy")
    lines = [Line2D([], [], color=c, marker=m, label=name) for name, (c, m) in _STYLES.items()]
    lines.append(Line2D([], [], color="0.4", linestyle="--", label="certified"))
    panels[-1].legend(handles=lines, framealpha=1, edgecolor="none", fontsize=8)
    seeds, examples = len({row["seed"] for row in sound}), int(sound[0]["examples"])
    figure.suptitle(f"MNIST, {examples} test images, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=10)
    write_picture(figure, path)


def _spread(group: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the range over seeds, or the interval of a single one."""
    if len(group) == 1:
        return group[0]["attacked_lower"], group[0]["attacked_upper"]
    return min(row["attacked"] for row in group), max(row["attacked"] for row in group)
