"""Plots of the experiments against epsilon and radius, and what all of them share: one style per line, one band."""

__all__ = [
    "accuracy_figure",
    "leaderboard_figure",
    "line_styles",
    "mean_and_band",
    "noise_scale_figure",
    "tidy_axes",
    "ways_figure",
]

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securesgd.report.plots import write_picture

Row = Mapping[str, Any]

# Okabe & Ito's colours, which stay apart for colour-blind readers, each with a marker of its own for print.
_BLACK, _ORANGE, _SKY = ("#000000", "o"), ("#E69F00", "^"), ("#56B4E9", "s")
_BLUE, _RED, _GREEN = ("#0072B2", "P"), ("#D55E00", "v"), ("#009E73", "D")
_CYCLE = (_BLACK, _ORANGE, _SKY, _BLUE, _RED, _GREEN)
STYLES = {
    "dpsgd": _BLACK, "secure-sgd": _BLUE, "secure-sgd-agm": _ORANGE, "adlm": _RED,
    "uniform": _BLACK, "prior": _SKY, "private-vulnerable": _RED, "private-inverse": _ORANGE,
    "learned": _GREEN, "learned-from-prior": _BLUE,
}  # fmt: skip
"""Colour and marker of the methods and of the ways to obtain r. A line without a row here takes a free one in turn."""
_MECHANISMS = {
    "classic": {"color": "#D55E00", "linestyle": "-", "label": "classic (Dwork–Roth)"},
    "extended": {"color": "#0072B2", "linestyle": "--", "label": "extended (the paper's HGM)"},
    "analytic": {"color": "#009E73", "linestyle": "-", "label": "analytic (exact; our default for HGM)"},
}
_RADIUS_PREFIX = "certified_at_"


def line_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each line: those of the table first, in its order, then all others as they come."""
    given = list(dict.fromkeys(names))
    known = {name: STYLES[name] for name in STYLES if name in given}
    free = cycle([style for style in _CYCLE if style not in known.values()] or _CYCLE)
    return known | {name: next(free) for name in given if name not in known}


def mean_and_band(group: Sequence[Row], column: str) -> tuple[float, float, float]:
    """Return the mean over the seeds of a group, and its band: the range of the seeds, or the interval of a single one.

    A single row without columns for its interval has no band.
    """
    values = [row[column] for row in group]
    if len(group) == 1 and f"{column}_lower" in group[0]:
        return values[0], group[0][f"{column}_lower"], group[0][f"{column}_upper"]
    return mean(values), min(values), max(values)


def _seeds(rows: Sequence[Row]) -> str:
    """Return what a line and its band are made of, for a title."""
    seeds = len({row["seed"] for row in rows})
    return f"mean and range of {seeds} seeds" if seeds > 1 else "1 seed"


def tidy_axes(axes: Axes) -> None:
    """Draw a light grid and no frame at the top and on the right."""
    axes.grid(True, color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def noise_scale_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw the paper's Figure 1: noise scale against epsilon, and beside it how much more than needed each one adds."""
    delta, sensitivity = rows[0]["delta"], rows[0]["sensitivity"]
    exact = {row["epsilon"]: row["sigma"] for row in rows if row["mechanism"] == "analytic"}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    scale, excess = figure.subplots(1, 2)
    for name in dict.fromkeys([*_MECHANISMS, *(row["mechanism"] for row in rows)]):
        style: dict[str, Any] = _MECHANISMS.get(name, {"label": name})
        points = [(row["epsilon"], row["sigma"]) for row in rows if row["mechanism"] == name and row["sigma"]]
        epsilon, sigma = zip(*points, strict=True)
        scale.plot(epsilon, sigma, linewidth=1.8, **style)
        excess.plot(epsilon, [s / exact[e] for e, s in points], linewidth=1.8, **style)
    scale.set(
        xscale="log",
        yscale="log",
        xlabel="ε",
        ylabel="noise scale σ",
        title=f"δ = {delta:g}, Δ = {sensitivity:g}",
    )
    excess.set(xscale="log", xlabel="ε", ylabel="σ / smallest private σ", title="noise beyond what is needed")
    for axes in (scale, excess):
        axes.axvline(1, color="0.6", linewidth=0.8)
        axes.grid(True, which="major", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    scale.annotate(
        "classic is not\nproven beyond ε = 1",
        xy=max((row["epsilon"], row["sigma"]) for row in rows if row["mechanism"] == "classic" and row["sigma"]),
        xytext=(0.6, 0.75),
        textcoords="axes fraction",
        fontsize=8,
        color="0.3",
        arrowprops={"arrowstyle": "->", "color": "0.5"},
    )
    excess.legend(framealpha=1, edgecolor="none", fontsize=8, loc="upper right")
    write_picture(figure, path)


def accuracy_figure(rows: Sequence[Row], path: Path, column: str = "test_accuracy") -> None:
    """Draw the mean over seeds with the range of the seeds against epsilon, a line per method and data set."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    datasets = sorted({row["dataset"] for row in rows})
    names = [row["method"] if len(datasets) == 1 else f"{row['method']}, {row['dataset']}" for row in rows]
    for name, (colour, marker) in line_styles(names).items():
        line = [row for row, its_name in zip(rows, names, strict=True) if its_name == name]
        epsilons = sorted({row["epsilon"] for row in line})
        groups = [[row for row in line if row["epsilon"] == epsilon] for epsilon in epsilons]
        middle, low, high = zip(*(mean_and_band(group, column) for group in groups), strict=True)
        axes.plot(epsilons, middle, color=colour, marker=marker, linewidth=1.6, label=name)
        axes.fill_between(epsilons, low, high, color=colour, alpha=0.15)
    title = f"{' and '.join(datasets)}, {int(rows[0]['test_images']):,} test images, {_seeds(rows)}"
    axes.set(xlabel="privacy budget ε", ylabel=column.replace("_", " "), title=title)
    axes.title.set_fontsize(10)
    tidy_axes(axes)
    axes.legend(framealpha=1, edgecolor="none", fontsize=8)
    write_picture(figure, path)


def ways_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw the mean over seeds with the range of the seeds against the radius, a line per way to obtain r.

    Radii are read off the names of the columns `certified_at_…`.
    """
    columns = [name for name in rows[0] if name.startswith(_RADIUS_PREFIX)]
    radii = [float(name.removeprefix(_RADIUS_PREFIX)) for name in columns]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for way, (colour, marker) in line_styles(row["way"] for row in rows).items():
        group = [row for row in rows if row["way"] == way]
        middle, low, high = zip(*(mean_and_band(group, column) for column in columns), strict=True)
        axes.plot(radii, middle, color=colour, marker=marker, linewidth=1.6, label=way)
        axes.fill_between(radii, low, high, color=colour, alpha=0.15)
    examples, draws = int(rows[0]["examples"]), int(rows[0]["draws"])
    axes.set(
        xlabel="l∞ radius (pixels in [0, 1])",
        ylabel="certified accuracy",
        title=f"MNIST, {examples} test images, {draws:,} draws, {_seeds(rows)}",
        ylim=(0, 1),
    )
    axes.title.set_fontsize(10)
    tidy_axes(axes)
    axes.legend(title="r", framealpha=1, edgecolor="none", fontsize=8)
    write_picture(figure, path)


def leaderboard_figure(lines: Sequence[tuple[str, Sequence[float], float | None]], path: Path) -> None:
    """Draw each line, (words, [mean, least, most] over the seeds, published number or None)."""
    figure = Figure(figsize=(8, 0.9 + 0.26 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for place, (_, (middle, low, high), published) in enumerate(lines):
        axes.plot([low, high], [place, place], color=_BLUE[0], linewidth=2)
        axes.plot([middle], [place], "o", color=_BLUE[0])
        if published is not None:
            axes.plot([published], [place], "D", color=_ORANGE[0], fillstyle="none")
    axes.plot([], [], "o", color=_BLUE[0], label="ours: mean and range of the seeds")
    axes.plot([], [], "D", color=_ORANGE[0], fillstyle="none", label="best published")
    axes.set_yticks(range(len(lines)), [words for words, *_ in lines], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of test images, or mean radius")
    tidy_axes(axes)
    figure.legend(fontsize=8, edgecolor="none", loc="outside upper right", ncols=2)
    write_picture(figure, path)
