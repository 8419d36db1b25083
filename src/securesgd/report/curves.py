"""Certified accuracy against radius, a line per rule: what one set of votes proves by each of them."""

__all__ = ["certified_curves_figure", "summary_curves_figure"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe & Ito's colours; the rule that proves nothing is dotted.
_STYLES: dict[str, dict[str, Any]] = {
    "tight": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2},
    "analytic": {"color": "#009E73", "linestyle": "-"},
    "extended": {"color": "#E69F00", "linestyle": "--"},
    "classic": {"color": "#CC79A7", "linestyle": "-."},
    "as-published": {"color": "#D55E00", "linestyle": ":", "label": "as-published (no guarantee)"},
}
_AXES = {"l1": "l1 radius", "l2": "l2 radius", "linf": "l∞ radius"}


def certified_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm from the rows of `certificates.csv`: the share right and proven at each radius."""
    norms = [norm for norm in ("linf", "l2", "l1") if any(row["norm"] == norm for row in rows)]
    figure = Figure(figsize=(0.8 + 4.2 * len(norms), 3.6), layout="constrained")
    for axes, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
        _panel(axes, [row for row in rows if row["norm"] == norm], norm)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def summary_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm from rows of norm, rule, radius and certified accuracy with its interval."""
    norms = [norm for norm in ("linf", "l2", "l1") if any(row["norm"] == norm for row in rows)]
    figure = Figure(figsize=(0.8 + 4.2 * len(norms), 3.6), layout="constrained")
    for axes, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
        for rule, style in _STYLES.items():
            mine = sorted((r for r in rows if (r["norm"], r["rule"]) == (norm, rule)), key=lambda r: float(r["radius"]))
            if not mine:
                continue
            radii, shares = [row["radius"] for row in mine], [row["certified_accuracy"] for row in mine]
            off = [[s - r["lower"] for s, r in zip(shares, mine, strict=True)],
                   [r["upper"] - s for s, r in zip(shares, mine, strict=True)]]  # fmt: skip
            axes.errorbar(radii, shares, yerr=off, capsize=2, marker="o", markersize=3, **{"label": rule} | style)
        axes.set(
            xlabel=f"{_AXES[norm]} (units of the input)",
            ylabel="certified accuracy",
            ylim=(0, 1),
            title=f"{int(rows[0]['examples']):,} test examples, {int(rows[0]['draws']):,} draws",
        )
        _tidy(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _tidy(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.grid(True, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=1, edgecolor="none", fontsize=7)


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], norm: str) -> None:
    right = np.array([not row["abstained"] and row["prediction"] == row["label"] for row in rows])
    proven = 0.0
    for rule, style in _STYLES.items():
        radii = np.sort(np.array([row[f"radius_{rule}"] for row in rows])[right])
        if rule != "as-published" and len(radii):
            proven = max(proven, float(radii[-1]))
        # At radius r the share of examples with a radius of at least r: a staircase down from the accuracy.
        shares = (len(radii) - np.arange(len(radii))) / len(rows)
        ends = np.concatenate([[0.0], radii, radii[-1:]])
        heights = np.concatenate([shares[:1], shares, [0.0] * bool(len(radii))])
        axes.step(ends[: len(heights)], heights, where="pre", **{"label": rule, "linewidth": 1.6} | style)
    axes.set(
        xlabel=f"{_AXES[norm]} (units of the input)",
        ylabel="certified accuracy",
        ylim=(0, 1),
        xlim=(0, 1.15 * proven if proven > 0 else None),
        title=f"{len(rows)} test examples",
    )
    _tidy(axes)
