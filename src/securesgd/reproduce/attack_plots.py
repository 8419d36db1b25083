"""Plots of accuracy under attack: figures 2–5 of the paper, and the table of attacks."""

__all__ = ["attacks_figure", "budget_panels", "certified_panels", "line_name"]

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from securesgd.report.plots import write_picture
from securesgd.reproduce.gains import CERTIFIED_COLUMNS, PROTOCOLS
from securesgd.reproduce.plots import line_styles, mean_and_band, tidy_axes

Row = Mapping[str, Any]

_ATTACK_NAMES = {"fgsm": "FGSM", "ifgsm": "I-FGSM", "mim": "MIM", "madry": "MadryEtAl"}
_METHOD_NAMES = {
    "pixeldp": "PixelDP", "hgm-pixeldp": "HGM_PixelDP", "dpsgd": "DP-SGD", "adlm": "AdLM",
    "secure-sgd": "Secure-SGD", "secure-sgd-agm": "Secure-SGD, AGM", "dp-ibp": "DP interval bounds",
}  # fmt: skip


def certified_panels(rows: Sequence[Row], path: Path) -> None:
    """Draw certified accuracy at the attacked image against the attack size.

    As published: that rule and noiseless attacks. Sound: the tight rule under attacks that average over the noise.
    """
    write_picture(_panels(rows, "budget", CERTIFIED_COLUMNS, "l∞ attack size", "certified accuracy"), path)


def budget_panels(rows: Sequence[Row], path: Path) -> None:
    """Draw accuracy under attack against the privacy budget."""
    columns = dict.fromkeys(PROTOCOLS, "attacked")
    write_picture(_panels(rows, "epsilon", columns, "privacy budget ε", "accuracy under attack"), path)


def line_name(row: Row) -> str:
    """Return what a row's line is called in figures 2–5."""
    name = _METHOD_NAMES.get(row["method"], str(row["method"]))
    if row["method"].endswith("pixeldp"):
        name += f", ε_r = {row['robust_epsilon']:g}"
    if str(row["way"]).startswith("learned"):
        name += ", learned r"
    if row["epsilon"] is not None and not row["guaranteed"]:
        name += " (not private)"
    return name


def _attacks(rows: Iterable[Row]) -> list[str]:
    """Return the attacks in the rows: the paper's in its order, then all others as they come."""
    measured = list(dict.fromkeys(row["attack"] for row in rows))
    return [*(name for name in _ATTACK_NAMES if name in measured), *(n for n in measured if n not in _ATTACK_NAMES)]


def _panels(rows: Sequence[Row], x: str, columns: Mapping[str, str], x_label: str, y_label: str) -> Figure:
    """Return a panel per protocol and attack; lines are means over seeds with their band."""
    attacks = _attacks(rows)
    figure = Figure(figsize=(2.6 * len(attacks) + 2.4, 5.4), layout="constrained")
    panels = figure.subplots(len(PROTOCOLS), len(attacks), sharex=True, sharey=True, squeeze=False)
    network = rows[0]["network"]

    def name_of(row: Row) -> str:  # a second network of a method is a line of its own
        return line_name(row) + ("" if row["network"] == network else f", {row['network']}")

    styles = line_styles(map(name_of, rows))
    handles: dict[str, Any] = {}
    for protocol, panel_row in zip(PROTOCOLS, panels, strict=True):
        for attack, axes in zip(attacks, panel_row, strict=True):
            panel = [row for row in rows if (row["protocol"], row["attack"]) == (protocol, attack)]
            for name in dict.fromkeys(map(name_of, panel)):
                line = [row for row in panel if name_of(row) == name]
                places = sorted({row[x] for row in line})
                groups = [[row for row in line if row[x] == place] for place in places]
                middle, low, high = zip(*(mean_and_band(group, columns[protocol]) for group in groups), strict=True)
                colour, marker = styles[name]
                (handle,) = axes.plot(places, middle, color=colour, marker=marker, markersize=4, linewidth=1.5)
                axes.fill_between(places, low, high, color=colour, alpha=0.08, linewidth=0)
                handles.setdefault(name, handle)
            axes.set_title(f"{_ATTACK_NAMES.get(attack, attack)}, {protocol.replace('-', ' ')}", fontsize=9)
            tidy_axes(axes)
        panel_row[0].set_ylabel(y_label)
    panels[0][0].set_ylim(0, None)  # of all panels, after the last line: from here on the scale is fixed
    places = sorted({row[x] for row in rows})
    for axes in panels[-1]:
        axes.set_xlabel(x_label)
        if x == "budget":  # from sizes where all is proven to sizes where nothing is
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places], fontsize=8)
        axes.minorticks_off()
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, fontsize=8)
    seeds, images = len({row["seed"] for row in rows}), int(rows[0]["examples"])
    title = f"{rows[0]['dataset']}, {rows[0]['network']}, {images} test images, {seeds} seed{'s' * (seeds > 1)}"
    if x == "epsilon":
        title += f", l∞ attacks of size {rows[0]['budget']:g}"
    figure.suptitle(title, fontsize=10)
    return figure


def attacks_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw the sound attacks (all, if none is sound) against the budget: means over seeds with their band.

    Solid: right under attack. Dashed: right and proven at the clean image; no attack can go below it.
    """
    sound = [row for row in rows if row["protocol"] == "sound"] or list(rows)
    attacks = _attacks(sound)
    styles = line_styles(row["method"] for row in sound)
    figure = Figure(figsize=(3 * len(attacks) + 0.5, 3.4), layout="constrained")
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    for axes, attack in zip(panels, attacks, strict=True):
        for method, (colour, marker) in styles.items():
            line = [row for row in sound if row["attack"] == attack and row["method"] == method]
            if not line:
                continue
            budgets = sorted({row["budget"] for row in line})
            groups = [[row for row in line if row["budget"] == budget] for budget in budgets]
            middle, low, high = zip(*(mean_and_band(group, "attacked") for group in groups), strict=True)
            clean = mean(row["clean"] for row in groups[0])
            axes.plot([0.0, *budgets], [clean, *middle], color=colour, marker=marker, markersize=4, linewidth=1.6)
            axes.fill_between(budgets, low, high, color=colour, alpha=0.15)
            certified = [mean(row["certified_clean"] for row in group) for group in groups]
            if any(certified):
                axes.plot(budgets, certified, color=colour, linewidth=1.2, linestyle="--")
        axes.set(xlabel="l∞ budget", ylim=(0, 1), title=attack)
        axes.title.set_fontsize(10)
        tidy_axes(axes)
    panels[0].set_ylabel("accuracy")
    handles = [Line2D([], [], color=c, marker=m, label=name) for name, (c, m) in styles.items()]
    handles.append(Line2D([], [], color="0.4", linestyle="--", label="certified"))
    panels[-1].legend(handles=handles, framealpha=1, edgecolor="none", fontsize=8)
    seeds, examples = len({row["seed"] for row in sound}), int(sound[0]["examples"])
    figure.suptitle(f"MNIST, {examples} test images, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=10)
    write_picture(figure, path)
