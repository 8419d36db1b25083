"""Certified accuracy against radius, a line per rule: what one set of votes proves by each of them."""

__all__ = ["certified_curves_figure", "compared_curves_figure", "summary_curves_figure"]

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securesgd.report.certified import is_right
from securesgd.report.picture import picture_bytes, plain_text, write_picture

# Okabe & Ito's colours; the rule that proves nothing is dotted.
_STYLES: dict[str, dict[str, Any]] = {
    "tight": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2},
    "analytic": {"color": "#009E73", "linestyle": "-"},
    "extended": {"color": "#E69F00", "linestyle": "--"},
    "classic": {"color": "#CC79A7", "linestyle": "-."},
    "as-published": {"color": "#D55E00", "linestyle": ":", "label": "as-published (no guarantee)"},
}
_AXES = {"linf": "l∞ radius", "l2": "l2 radius", "l1": "l1 radius"}


def certified_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm from the rows of `certificates.csv`: the share right and proven at each radius."""
    figure, panels = _figure(rows)
    for norm, axes in panels.items():
        mine = [row for row in rows if row["norm"] == norm]
        for rule, style in _STYLES.items():
            _staircase(axes, mine, rule, **{"label": rule, "linewidth": 1.6} | style)
        rules = [rule for rule in _STYLES if rule != "as-published"]
        proven = max((row[f"radius_{rule}"] for row in mine if is_right(row) for rule in rules), default=0.0)
        axes.set(xlim=(0, 1.15 * proven or None), title=f"{len(mine)} test examples", **_labels(norm))
        _tidy(axes)
    write_picture(figure, path)


def compared_curves_figure(runs: Mapping[str, Sequence[dict[str, Any]]]) -> bytes:
    """Return a picture, a panel per norm and a line per run, of the rows of their `certificates.csv`, rule tight."""
    figure, panels = _figure([row for rows in runs.values() for row in rows])
    for norm, axes in panels.items():
        for (name, rows), line in zip(runs.items(), cycle(("-", "--", "-.", ":")), strict=False):
            mine = [row for row in rows if row["norm"] == norm]
            if mine:
                label = f"{plain_text(name)} ({len(mine)} examples)"
                _staircase(axes, mine, "tight", label=label, linewidth=1.6, linestyle=line)
        axes.set(xlim=(0, None), title=f"{norm}, rule tight", **_labels(norm))
        _tidy(axes)
    return picture_bytes(figure)


def summary_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm from rows of norm, rule, radius and certified accuracy with its interval."""
    figure, panels = _figure(rows)
    for norm, axes in panels.items():
        for rule, style in _STYLES.items():
            mine = sorted((r for r in rows if (r["norm"], r["rule"]) == (norm, rule)), key=lambda r: float(r["radius"]))
            if not mine:
                continue
            radii, shares = [row["radius"] for row in mine], [row["certified_accuracy"] for row in mine]
            off = [[s - r["lower"] for s, r in zip(shares, mine, strict=True)],
                   [r["upper"] - s for s, r in zip(shares, mine, strict=True)]]  # fmt: skip
            axes.errorbar(radii, shares, yerr=off, capsize=2, marker="o", markersize=3, **{"label": rule} | style)
        title = f"{int(rows[0]['examples']):,} test examples, {int(rows[0]['draws']):,} draws"
        axes.set(title=title, **_labels(norm))
        _tidy(axes)
    write_picture(figure, path)


def _figure(rows: Sequence[dict[str, Any]]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with a panel for each norm in the rows."""
    norms = [norm for norm in _AXES if any(row["norm"] == norm for row in rows)]
    figure = Figure(figsize=(0.8 + 4.2 * len(norms), 3.6), layout="constrained")
    return figure, dict(zip(norms, figure.subplots(1, len(norms), squeeze=False)[0], strict=True))


def _labels(norm: str) -> dict[str, Any]:
    return {"xlabel": f"{_AXES[norm]} (units of the input)", "ylabel": "certified accuracy", "ylim": (0, 1)}


def _tidy(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.grid(True, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=1, edgecolor="none", fontsize=7)


def _staircase(axes: Axes, rows: Sequence[dict[str, Any]], rule: str, **style: Any) -> None:
    """Draw the share of examples that are right and have at least this radius: a staircase down from the accuracy."""
    radii = np.sort([row[f"radius_{rule}"] for row in rows if is_right(row)])
    shares = (len(radii) - np.arange(len(radii))) / len(rows)
    ends = np.concatenate([[0.0], radii, radii[-1:]])
    heights = np.concatenate([shares[:1], shares, [0.0] * bool(len(radii))])
    axes.step(ends[: len(heights)], heights, where="pre", **style)
