"""Plots of accuracy under attack: figures 2–5 of the paper with gains and t-tests, and the table of attacks."""

__all__ = ["attacks_figure", "budget_panels", "certified_panels", "line_name", "stated_gains"]

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from securesgd.report.plots import write_picture
from securesgd.runtime.tables import write_rows
from securesgd.theory.comparison import gain_rows

PROTOCOLS = {"as-published": "as published", "sound": "sound"}
_ATTACKS = {"fgsm": "FGSM", "ifgsm": "I-FGSM", "mim": "MIM", "madry": "MadryEtAl"}
# Okabe & Ito's colours, each with a marker of its own for print.
_STYLES = [("#000000", "o"), ("#E69F00", "^"), ("#56B4E9", "s"), ("#0072B2", "P"), ("#D55E00", "v"), ("#009E73", "D")]
Row = Mapping[str, Any]


def certified_panels(
    rows: Sequence[Row], path: Path, *, robust_epsilon: float, stated: Mapping[str, tuple[float, float]]
) -> None:
    """Draw certified accuracy at the attacked image against the attack size, and write `gains.csv` beside the figure.

    As published: that rule and noiseless attacks. Sound: the tight rule under attacks that average over the noise.
    `robust_epsilon` is that of the paper's claim, `stated` its gain and p-value over each other method.
    """
    values = {"as-published": "published_attacked", "sound": "certified_attacked"}
    figure = _panels(rows, "budget", values, "l∞ attack size", "certified accuracy")
    _save(figure, path)
    kept = [row for row in rows if row["method"] == "pixeldp" or row["robust_epsilon"] == robust_epsilon]
    gains = [
        gain
        for protocol in PROTOCOLS
        for way in dict.fromkeys(row["way"] for row in kept if row["method"] == "hgm-pixeldp")
        for gain in stated_gains(
            [row for row in kept if row["protocol"] == protocol and row["way"] in ("uniform", way)],
            "hgm-pixeldp", values[protocol], ("seed", "attack", "budget"), stated,
        )
    ]  # fmt: skip
    _write(gains, path)


def budget_panels(
    rows: Sequence[Row], path: Path, *, stated: Mapping[str, tuple[float, float]], stated_rise: float
) -> None:
    """Draw accuracy under attack against the privacy budget, and write `gains.csv` beside the figure.

    `stated_rise` is what the paper says Secure-SGD gains from the smallest budget to the largest.
    """
    values = dict.fromkeys(PROTOCOLS, "attacked")
    _save(_panels(rows, "epsilon", values, "privacy budget ε", "accuracy under attack"), path)
    gains = []
    for protocol in PROTOCOLS:
        mine = [row for row in rows if row["protocol"] == protocol]
        gains += stated_gains(mine, "secure-sgd", "attacked", ("seed", "attack", "epsilon"), stated)
        ends = [end((row["epsilon"] for row in mine), default=0.0) for end in (max, min)]
        rise = [
            {**row, "method": f"secure-sgd at epsilon {row['epsilon']:g}"}
            for row in mine
            if row["method"] == "secure-sgd" and row["epsilon"] in ends
        ]
        large, small = (f"secure-sgd at epsilon {epsilon:g}" for epsilon in ends)
        gains += stated_gains(rise, large, "attacked", ("seed", "attack"), {small: (stated_rise, None)})
    _write(gains, path)


def stated_gains(
    rows: Sequence[Row],
    ours: str,
    value: str,
    pair_by: Sequence[str],
    stated: Mapping[str, tuple[float, float | None]],
) -> list[dict[str, Any]]:
    """Return our gains over the other methods in one protocol, with the gain and p-value that the paper states."""
    if not any(row["method"] == ours for row in rows):
        return []
    found = []
    for gain in gain_rows(rows, ours=ours, value=value, pair_by=pair_by):
        paper_gain, paper_p = stated.get(gain["against"], (None, None))
        way = next(row["way"] for row in rows if row["method"] == ours)
        first = {"protocol": rows[0]["protocol"], "way": way}
        seeds = {"seeds": len({row["seed"] for row in rows})}
        found.append(first | gain | seeds | {"paper_gain": paper_gain, "paper_p_value": paper_p})
    return found


def line_name(row: Row) -> str:
    """Return what a row's line is called in the figures."""
    names = {
        "pixeldp": "PixelDP", "hgm-pixeldp": "HGM_PixelDP", "dpsgd": "DP-SGD", "adlm": "AdLM",
        "secure-sgd": "Secure-SGD", "secure-sgd-agm": "Secure-SGD, AGM",
    }  # fmt: skip
    name = names[row["method"]]
    if row["method"].endswith("pixeldp"):
        name += f", ε_r = {row['robust_epsilon']:g}"
    if str(row["way"]).startswith("learned"):
        name += ", learned r"
    if row["epsilon"] is not None and not row["guaranteed"]:
        name += " (not private)"
    return name


def _panels(rows: Sequence[Row], x: str, values: Mapping[str, str], x_label: str, y_label: str) -> Figure:
    """Return a figure of two rows of panels; lines are means over seeds with intervals, or the range of the seeds."""
    attacks = [name for name in _ATTACKS if any(row["attack"] == name for row in rows)]
    figure = Figure(figsize=(2.6 * len(attacks) + 2.4, 5.4), layout="constrained")
    panels = figure.subplots(len(PROTOCOLS), len(attacks), sharex=True, sharey=True, squeeze=False)
    style = dict(zip(dict.fromkeys(map(line_name, rows)), _STYLES, strict=False))
    handles: dict[str, Any] = {}
    for (protocol, words), line_of_panels in zip(PROTOCOLS.items(), panels, strict=True):
        column = values[protocol]
        for attack, axes in zip(attacks, line_of_panels, strict=True):
            mine = [row for row in rows if (row["protocol"], row["attack"]) == (protocol, attack)]
            for name in dict.fromkeys(map(line_name, mine)):
                line = [row for row in mine if line_name(row) == name]
                at = [[row for row in line if row[x] == place] for place in sorted({row[x] for row in line})]
                places, middle = [group[0][x] for group in at], [mean(row[column] for row in group) for group in at]
                colour, marker = style[name]
                (drawn,) = axes.plot(places, middle, color=colour, marker=marker, markersize=4, linewidth=1.5)
                low, high = zip(*(_spread(group, column) for group in at), strict=True)
                axes.fill_between(places, low, high, color=colour, alpha=0.08, linewidth=0)
                handles.setdefault(name, drawn)
            axes.set_title(f"{_ATTACKS[attack]}, {words}", fontsize=9)
            axes.grid(True, color="0.9")
            axes.spines[["top", "right"]].set_visible(False)
        line_of_panels[0].set_ylabel(y_label)
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


def _spread(group: Sequence[Row], column: str) -> tuple[float, float]:
    """Return the range over seeds, or the interval of a single one."""
    if len(group) == 1:
        return group[0][f"{column}_lower"], group[0][f"{column}_upper"]
    return min(row[column] for row in group), max(row[column] for row in group)


def _write(gains: Sequence[dict[str, Any]], path: Path) -> None:
    """Write `gains.csv` beside the figure; a table that is still being filled may have no pair yet."""
    if gains:
        write_rows(path.with_name("gains.csv"), gains)


def _save(figure: Figure, path: Path) -> None:
    write_picture(figure, path)


# Okabe & Ito's colours, each with a marker of its own for print.
_METHOD_STYLES = {"dpsgd": ("#D55E00", "v"), "secure-sgd-agm": ("#000000", "o"), "secure-sgd": ("#0072B2", "P")}


def attacks_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the sound attacks (all, if none is sound): mean over seeds, intervals of one seed or range of several.

    Solid: right under attack. Dashed: right and proven at the clean image; no attack can go below it.
    """
    sound = [row for row in rows if row["protocol"] == "sound"] or list(rows)
    attacks = list(dict.fromkeys(row["attack"] for row in sound))
    figure = Figure(figsize=(3 * len(attacks) + 0.5, 3.4), layout="constrained")
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    for axes, attack in zip(panels, attacks, strict=True):
        for method, (colour, marker) in _METHOD_STYLES.items():
            mine = [row for row in sound if row["attack"] == attack and row["method"] == method]
            if not mine:
                continue
            budgets = sorted({row["budget"] for row in mine})
            at = [[row for row in mine if row["budget"] == budget] for budget in budgets]
            x = [0.0, *budgets]
            middle = [mean(row["clean"] for row in at[0]), *(mean(row["attacked"] for row in group) for group in at)]
            axes.plot(x, middle, color=colour, marker=marker, markersize=4, linewidth=1.6)
            low, high = zip(*(_seed_range(group) for group in at), strict=True)
            axes.fill_between(budgets, low, high, color=colour, alpha=0.15)
            floor = [mean(row["certified_clean"] for row in group) for group in at]
            if any(floor):
                axes.plot(budgets, floor, color=colour, linewidth=1.2, linestyle="--")
        axes.set(xlabel="l∞ budget", ylim=(0, 1), title=attack)
        axes.title.set_fontsize(10)
        axes.grid(True, color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy")
    lines = [Line2D([], [], color=c, marker=m, label=name) for name, (c, m) in _METHOD_STYLES.items()]
    lines.append(Line2D([], [], color="0.4", linestyle="--", label="certified"))
    panels[-1].legend(handles=lines, framealpha=1, edgecolor="none", fontsize=8)
    seeds, examples = len({row["seed"] for row in sound}), int(sound[0]["examples"])
    figure.suptitle(f"MNIST, {examples} test images, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=10)
    write_picture(figure, path)


def _seed_range(group: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the range over seeds, or the interval of a single one."""
    if len(group) == 1:
        return group[0]["attacked_lower"], group[0]["attacked_upper"]
    return min(row["attacked"] for row in group), max(row["attacked"] for row in group)
