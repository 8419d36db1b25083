"""The figure of interval bounds under differential privacy."""

__all__ = ["interval_figure"]

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securesgd.report.plots import write_picture
from securesgd.reproduce.plots import Row, line_styles, mean_and_band, tidy_axes

_PREFIX = "certified_at_"
_NAMES = {"dp-ibp": "interval bounds", "secure-sgd": "smoothing"}


def interval_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw three panels: MNIST by epsilon and family, MNIST by the radius of training, and the other data sets."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    by_epsilon, by_radius, others = figure.subplots(1, 3, sharey=True)
    mnist = [row for row in rows if row["dataset"] == "mnist"]
    preset = [row for row in mnist if not row["train_radius"]]
    for epsilon, (colour, marker) in line_styles(f"{row['epsilon']:g}" for row in preset).items():
        for method, dashes in (("dp-ibp", "-"), ("secure-sgd", "--")):
            group = [r for r in preset if f"{r['epsilon']:g}" == epsilon and r["method"] == method]
            _curve(by_epsilon, group, f"{_NAMES[method]}, ε = {epsilon}", colour, marker, dashes)
    at_three = [row for row in mnist if row["method"] == "dp-ibp" and row["epsilon"] == 3]
    radii = sorted({row["train_radius"] or 0.0 for row in at_three})
    for radius, (colour, marker) in line_styles(f"{radius:g}" for radius in radii).items():
        group = [row for row in at_three if f"{row['train_radius'] or 0.0:g}" == radius]
        _curve(by_radius, group, f"trained at {radius if radius != '0' else 'the preset'}", colour, marker)
    rest = [row for row in rows if row["dataset"] != "mnist"]
    for dataset, (colour, marker) in line_styles(row["dataset"] for row in rest).items():
        _curve(others, [row for row in rest if row["dataset"] == dataset], dataset, colour, marker)
    by_epsilon.set(ylabel="certified accuracy", title="MNIST, by family and ε", ylim=(0, 1))
    by_radius.set(title="MNIST, ε = 3, by radius of training")
    others.set(title="Fashion-MNIST and CIFAR-10, ε = 8")
    for axes, place in ((by_epsilon, "lower left"), (by_radius, "lower left"), (others, "upper right")):
        axes.set_xlabel("l∞ radius (pixels in [0, 1])")
        axes.title.set_fontsize(10)
        tidy_axes(axes)
        if axes.lines:
            axes.legend(framealpha=1, edgecolor="none", fontsize=7, loc=place)
    write_picture(figure, path)


def _curve(axes: Axes, group: Sequence[Row], label: str, colour: str, marker: str, dashes: str = "-") -> None:
    """Draw certified accuracy against the radius, from accuracy at 0, with the range of the seeds."""
    if not group:
        return
    columns = ["accuracy", *(name for name in group[0] if name.startswith(_PREFIX))]
    radii = [0.0, *(float(name.removeprefix(_PREFIX)) for name in columns[1:])]
    middle, low, high = zip(*(mean_and_band(group, column) for column in columns), strict=True)
    words = f"{label} ({int(group[0]['examples']):,} images, {len(group)} seed{'s' * (len(group) > 1)})"
    axes.plot(radii, middle, color=colour, marker=marker, markersize=4, linewidth=1.6, linestyle=dashes, label=words)
    axes.fill_between(radii, low, high, color=colour, alpha=0.15)
