"""The figures, drawn from rows and nothing else."""

__all__ = ["noise_scale_figure"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from securesgd.report.picture import write_picture

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
