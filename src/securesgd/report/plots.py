"""The plots in a run folder: certified accuracy, where the noise is; and how a figure becomes a file."""

__all__ = [
    "certified_curves_figure",
    "noise_maps",
    "picture_bytes",
    "plain_text",
    "redistribution_figure",
    "summary_curves_figure",
    "tile_png",
    "write_picture",
]

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FixedLocator, LogLocator

from securesgd.certificates.rules import INTERVAL, INTERVAL_RULES, caveat_in, radius_rules, record_key
from securesgd.certificates.summary import is_right
from securesgd.errors import printable
from securesgd.runtime.storage import write_whole
from securesgd.theory.certificates import CERTIFICATE_RULES, rule_caveat


def picture_bytes(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=160, format="png")
    return content.getvalue()


def write_picture(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG file, whole or not at all. Raises: OSError with the name of the file."""
    write_whole(path, picture_bytes(figure))


def plain_text(text: str) -> str:
    """Return a text from outside (a path, the name of a class) as it can stand in a figure.

    Dollar signs are no formula there, and characters without a glyph (control characters, bytes that are no text) are
    shown as their escapes.
    """
    return printable(text).replace("$", r"\$")


# For rules without a style of their own: other colours than those of the table in theory/certificates.py.
_MORE_COLOURS = ("#56B4E9", "#000000", "#999933", "#882255")
_AXES = {"linf": "l∞ radius", "l2": "l2 radius", "l1": "l1 radius", "box": "share of the box"}
_INTERVAL_STYLES = {
    "tight": {"color": "#0072B2", "linestyle": "-"},
    "interval": {"color": "#E69F00", "linestyle": "--"},
    "linear": {"color": "#009E73", "linestyle": "-."},
}


def certified_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm, and one by intervals, from rows of `certificates.csv`: the share proven at each radius."""
    figure, panels = _figure(rows, [*_AXES, INTERVAL], record_key)
    for key, axes in panels.items():
        own_rows = [row for row in rows if record_key(row) == key]
        styles = _rule_styles(radius_rules(own_rows[0])) if key != INTERVAL else _interval_styles()
        for rule, style in styles.items():
            _staircase(axes, own_rows, rule, **{"linewidth": 1.6} | style)
        guaranteed = [rule for rule in styles if not caveat_in(key, rule)]
        proven = max((row[f"radius_{rule}"] for row in own_rows if is_right(row) for rule in guaranteed), default=0.0)
        title = f"{len(own_rows)} test examples" + (", by intervals" if key == INTERVAL else "")
        axes.set(xlim=(0, 1.15 * proven or None), title=title, **_labels(str(own_rows[0]["norm"])))
        _tidy(axes)
    write_picture(figure, path)


def summary_curves_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel per norm from rows of norm, rule, radius and certified accuracy with its interval."""
    figure, panels = _figure(rows)
    for norm, axes in panels.items():
        for rule, style in _rule_styles(row["rule"] for row in rows).items():
            line = sorted((r for r in rows if (r["norm"], r["rule"]) == (norm, rule)), key=lambda r: float(r["radius"]))
            if not line:
                continue
            radii, shares = [row["radius"] for row in line], [row["certified_accuracy"] for row in line]
            off = [[s - r["lower"] for s, r in zip(shares, line, strict=True)],
                   [r["upper"] - s for s, r in zip(shares, line, strict=True)]]  # fmt: skip
            axes.errorbar(radii, shares, yerr=off, capsize=2, marker="o", markersize=3, **style)
        title = f"{int(rows[0]['examples']):,} test examples, {int(rows[0]['draws']):,} draws"
        axes.set(title=title, **_labels(norm))
        _tidy(axes)
    write_picture(figure, path)


def _rule_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how each rule is drawn: those of the table in its order and style, then all others, dotted."""
    present, colours = dict.fromkeys(names), cycle(_MORE_COLOURS)
    styles: dict[str, dict[str, Any]] = {}
    for name in sorted(present, key=lambda name: [*CERTIFICATE_RULES, name].index(name)):
        rule, caveat = CERTIFICATE_RULES.get(name), rule_caveat(name)
        label = plain_text(f"{name} ({caveat})" if caveat else name)
        own = {} if rule is None else dict(rule.style)
        styles[name] = {"label": label} | (own or {"color": next(colours), "linestyle": ":" if caveat else "-"})
    return styles


def _interval_styles() -> dict[str, dict[str, Any]]:
    """Return how each rule of the interval family is drawn."""
    names = {"tight": "tight: the better of both", "interval": "boxes", "linear": "linear bounds"}
    return {rule: {"label": names[rule], **_INTERVAL_STYLES[rule]} for rule in INTERVAL_RULES}


def _figure(
    rows: Sequence[dict[str, Any]],
    panels: Iterable[str] = _AXES,
    panel: Callable[[Mapping[str, Any]], str] = lambda row: str(row["norm"]),
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with a panel for each norm in the rows, or for whatever else `panel` says of a row."""
    norms = [name for name in panels if any(panel(row) == name for row in rows)]
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


_SHOWN = 8  # channels shown one by one; the rest only in the mean
_MAP = "viridis"


def redistribution_figure(r: Sequence[float], shape: Sequence[int], title: str, path: Path) -> None:
    """Draw the standard deviation of each unit's noise, √r, relative to the middle unit, on a logarithmic scale.

    A layer with height and width becomes maps, the mean over channels first and then the channels that differ most
    from it; any other layer becomes one line over its units. The scale ends at the 2nd and 98th percentile: a learned r
    may give a useless unit any amount of noise.
    """
    relative = np.sqrt(np.asarray(r)).reshape(shape)
    relative /= np.median(relative)
    if relative.ndim == 3:
        figure = _maps(relative, title)
    else:
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        axes.plot(relative.ravel(), linewidth=1, color="#0072B2")
        axes.axhline(1, color="0.6", linewidth=0.8)
        axes.set(xlabel="unit of the noisy layer", ylabel="noise / median", yscale="log", title=plain_text(title))
        axes.spines[["top", "right"]].set_visible(False)
    write_picture(figure, path)


def noise_maps(relative: np.ndarray) -> tuple[dict[str, np.ndarray], tuple[float, float]]:
    """Return maps by name, of the mean over channels and of those channels that differ most, and the ends of a scale.

    `relative` is [channels, height, width], relative to its median.
    """
    mean = np.exp(np.log(relative).mean(axis=0))
    maps = {"all channels": mean}
    if len(relative) > 1:
        apart = (np.log(relative / mean) ** 2).sum(axis=(1, 2))
        if apart.max() > 1e-6:
            maps |= {f"channel {k}": relative[k] for k in sorted(np.argsort(apart)[-_SHOWN:])}
    low, high = np.percentile(np.stack(list(maps.values())), (2, 98))
    if high < 1.01 * low:
        low, high = 0.5, 2.0  # uniform noise: one plain colour in the middle of the scale
    return maps, (float(low), float(high))


def tile_png(values: np.ndarray, low: float, high: float) -> bytes:
    """Return a map as PNG, a pixel per unit, on a logarithmic scale from `low` to `high`."""
    content = io.BytesIO()
    imsave(content, np.log(values), vmin=math.log(low), vmax=math.log(high), cmap=_MAP, format="png")
    return content.getvalue()


def _maps(relative: np.ndarray, title: str) -> Figure:
    maps, (low, high) = noise_maps(relative)
    columns = min(len(maps), 3)
    rows = -(-len(maps) // columns)
    figure = Figure(figsize=(2.2 * columns + 1.8, 2.3 * rows + 0.7), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    image = None
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (name, values) in zip(grid.flat, maps.items(), strict=False):
        image = axes.imshow(values, cmap=_MAP, norm=LogNorm(low, high))
        axes.set_title(name if len(maps) > 1 else "", fontsize=9)
    assert image is not None
    bar = figure.colorbar(image, ax=grid, label="noise / median", shrink=0.85, extend="both")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else FixedLocator([low, 1, high]))
    bar.ax.yaxis.set_major_formatter("{x:.2g}")
    bar.ax.minorticks_off()
    figure.suptitle(plain_text(title), fontsize=10)
    return figure
