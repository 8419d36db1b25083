"""The picture of r over the first layer: where the noise is."""

__all__ = ["redistribution_figure"]

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from securesgd.report.picture import plain_text, write_picture

_SHOWN = 8  # channels shown one by one; the rest only in the mean


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
        axes.set(xlabel="unit of the first layer", ylabel="noise / median", yscale="log", title=plain_text(title))
        axes.spines[["top", "right"]].set_visible(False)
    write_picture(figure, path)


def _maps(relative: np.ndarray, title: str) -> Figure:
    mean = np.exp(np.log(relative).mean(axis=0))
    maps = {"all channels": mean}
    if len(relative) > 1:
        apart = (np.log(relative / mean) ** 2).sum(axis=(1, 2))
        if apart.max() > 1e-6:
            maps |= {f"channel {k}": relative[k] for k in sorted(np.argsort(apart)[-_SHOWN:])}
    columns = min(len(maps), 3)
    rows = -(-len(maps) // columns)
    figure = Figure(figsize=(2.2 * columns + 1.8, 2.3 * rows + 0.7), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    low, high = np.percentile(np.stack(list(maps.values())), (2, 98))
    if high < 1.01 * low:
        low, high = 0.5, 2.0  # uniform noise: one plain colour in the middle of the scale
    image = None
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (name, values) in zip(grid.flat, maps.items(), strict=False):
        image = axes.imshow(values, cmap="viridis", norm=LogNorm(low, high))
        axes.set_title(name if len(maps) > 1 else "", fontsize=9)
    assert image is not None
    bar = figure.colorbar(image, ax=grid, label="noise / median", shrink=0.85, extend="both")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.ax.minorticks_off()
    figure.suptitle(plain_text(title), fontsize=10)
    return figure
