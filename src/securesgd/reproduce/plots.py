"""Plots of the other experiments: the noise scale of figure 1, accuracy against epsilon, ways to obtain r."""

__all__ = ["budget_figure", "noise_scale_figure", "ways_figure"]

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from securesgd.report.plots import write_picture

# Colours that stay apart for colour-blind readers (Okabe & Ito), with a dash of their own for print.
_LINES = {
    "classic": {"color": "#D55E00", "linestyle": "-", "label": "classic (Dwork–Roth)"},
    "extended": {"color": "#0072B2", "linestyle": "--", "label": "extended (the paper's HGM)"},
    "analytic": {"color": "#009E73", "linestyle": "-", "label": "analytic (exact; our default for HGM)"},
}


def noise_scale_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the paper's Figure 1: noise scale against epsilon, and beside it how much more than needed each one adds."""
    delta, sensitivity = rows[0]["delta"], rows[0]["sensitivity"]
    exact = {row["epsilon"]: row["sigma"] for row in rows if row["mechanism"] == "analytic"}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    scale, excess = figure.subplots(1, 2)
    for name, style in _LINES.items():
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


# Okabe & Ito's colours, each with a marker of its own for print.
_METHOD_STYLES = {
    "dpsgd": ("#000000", "o"),
    "secure-sgd": ("#0072B2", "P"),
    "secure-sgd-agm": ("#E69F00", "^"),
    "adlm": ("#D55E00", "v"),
}


def budget_figure(rows: Sequence[dict[str, Any]], path: Path, column: str = "test_accuracy") -> None:
    """Draw the mean over seeds with the range of the seeds, for each method and epsilon."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for method, (colour, marker) in _METHOD_STYLES.items():
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


# Okabe & Ito's colours, each with a marker of its own for print.
_WAY_STYLES = {
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
    for way, (colour, marker) in _WAY_STYLES.items():
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
