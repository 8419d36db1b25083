"""The charts of the page, from the records of runs: proven radii, accuracy under attack, budget spent, noise."""

__all__ = ["attack_charts", "budget_chart", "certified_charts", "compared_charts", "noise_picture", "png_uri"]

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from securesgd.certificates.rules import INTERVAL, INTERVAL_RULES, caveat_in, radius_rules, record_key
from securesgd.certificates.summary import is_right
from securesgd.models.redistribution import Redistribution
from securesgd.privacy import LedgerContents, SampledGaussianSteps
from securesgd.report.plots import noise_maps, tile_png
from securesgd.report.svg_chart import Chart, Line, staircase
from securesgd.theory.certificates import CERTIFICATE_RULES

Rows = Sequence[Mapping[str, Any]]

_AXES = {"linf": "l∞ radius", "l2": "l2 radius", "l1": "l1 radius", "box": "share of the box"}
_DASHES = ("", "dashed", "dash-dot", "dotted")
_RULES = dict(zip(CERTIFICATE_RULES, ("", "", "dashed", "dash-dot", "dotted"), strict=False))
_INTERVAL_NAMES = {"tight": "tight: the better of both", "interval": "boxes", "linear": "linear bounds"}


def certified_charts(rows: Rows) -> dict[str, Chart]:
    """Return a chart by entry of certificates.json: the share that is right and proven at each radius, by rule.

    If both families have certificates in one norm, the chart `both` has the rule tight of both.
    """
    keys = [key for key in [*_AXES, INTERVAL] if any(record_key(row) == key for row in rows)]
    charts = {key: _family_chart([row for row in rows if record_key(row) == key], key) for key in keys}
    both = [row for row in rows if INTERVAL in keys and record_key(row) in (INTERVAL, _interval_norm(rows))]
    if len({record_key(row) for row in both}) == 2:
        lines = _tight_lines("", both, 0)
        charts["both"] = _radius_chart("both families, rule tight", str(both[0]["norm"]), lines)
    return charts


def _interval_norm(rows: Rows) -> str:
    return next(str(row["norm"]) for row in rows if record_key(row) == INTERVAL)


def _family_chart(rows: Rows, key: str) -> Chart:
    rules = list(INTERVAL_RULES) if key == INTERVAL else _sorted_rules(radius_rules(rows[0]))
    lines = []
    for place, rule in enumerate(rules):
        caveat = caveat_in(key, rule)
        dash = _DASHES[place] if key == INTERVAL else _RULES.get(rule, "dotted" if caveat else "")
        name = _INTERVAL_NAMES[rule] if key == INTERVAL else rule
        label = f"{name} ({caveat})" if caveat else name
        lines.append(Line(label=label, corners=_staircase(rows, rule), colour=place, dash=dash))
    title = f"{rows[0]['norm']}, {'by intervals' if key == INTERVAL else 'by smoothing'}"
    guaranteed = [line for line, rule in zip(lines, rules, strict=True) if not caveat_in(key, rule)]
    return _radius_chart(title, str(rows[0]["norm"]), lines, guaranteed)


def _sorted_rules(rules: Iterable[str]) -> list[str]:
    """Return those of the table in its order, then all others."""
    return sorted(rules, key=lambda rule: [*CERTIFICATE_RULES, rule].index(rule))


def _radius_chart(title: str, norm: str, lines: Sequence[Line], within: Sequence[Line] | None = None) -> Chart:
    """Return a chart that is wide enough for the lines `within`."""
    farthest = max((line.corners[-1][0] for line in within or lines), default=0.0)
    return Chart(
        title=title, lines=lines, x_label=f"{_AXES[norm]}, units of the input", y_label="right and proven",
        x_end=1.1 * farthest if farthest > 0 else 1.0,
    )  # fmt: skip


def _staircase(rows: Rows, rule: str) -> list[tuple[float, float]]:
    return staircase([float(row[f"radius_{rule}"]) for row in rows if is_right(dict(row))], len(rows))


def _tight_lines(name: str, rows: Rows, colour: int) -> list[Line]:
    """Return a line for each family among the rows of one norm, by the rule tight."""
    lines = []
    for key in sorted({record_key(row) for row in rows}, key=lambda key: key == INTERVAL):
        own = [row for row in rows if record_key(row) == key]
        by = "by intervals" if key == INTERVAL else "by smoothing"
        label = f"{name}: {by}, {len(own):,} examples" if name else f"{by}, {len(own):,} examples"
        dash = "dashed" if key == INTERVAL else ""
        place = colour if name or key != INTERVAL else colour + 4
        lines.append(Line(label=label, corners=_staircase(own, "tight"), colour=place, dash=dash))
    return lines


def compared_charts(
    certificates: Mapping[str, Rows],
    attacks: Mapping[str, Sequence[Mapping[str, Any]]],
    ledgers: Mapping[str, LedgerContents],
) -> list[Chart]:
    """Return joint charts of several runs by name: proven radii and worst attack by norm, budget spent.

    A run has the same colour in all of them. A chart that only one run has is left out.
    """
    names = list(dict.fromkeys([*ledgers, *certificates, *attacks]))
    colour = {name: place for place, name in enumerate(names)}
    charts = []
    for norm in _AXES:
        lines = [
            line
            for name, rows in certificates.items()
            for line in _tight_lines(name, [row for row in rows if row["norm"] == norm], colour[name])
        ]
        if len({line.colour for line in lines}) > 1:
            charts.append(_radius_chart(f"{norm}, rule tight", norm, lines))
    for norm in _AXES:
        found = {name: _worst_by_budget(rows, norm) for name, rows in attacks.items()}
        curves = [
            Line(label=name, corners=corners, colour=colour[name], marked=True)
            for name, corners in found.items()
            if len(corners) > 1
        ]
        if len(curves) > 1:
            charts.append(_attack_chart(f"{norm}, the worst attack of each budget", norm, curves))
    spent = [
        Line(label=name, corners=_spent(ledger), colour=colour[name])
        for name, ledger in ledgers.items()
        if len(_spent(ledger)) > 1
    ]
    return [*charts, _budget_chart("budget spent", spent)] if len(spent) > 1 else charts


def _worst_by_budget(attacks: Sequence[Mapping[str, Any]], norm: str) -> list[tuple[float, float]]:
    """Return budget and the lowest accuracy under any attack of it, after the accuracy without attack at 0."""
    cells = [row for row in attacks if row["norm"] == norm]
    if not cells:
        return []
    lowest: dict[float, float] = {}
    for row in cells:
        budget, share = float(row["budget"]), float(row["attacked"]["share"])
        lowest[budget] = min(share, lowest.get(budget, 1.0))
    first = min(cells, key=lambda row: float(row["budget"]))
    return sorted({0.0: float(first["clean"]["share"]), **lowest}.items())


def attack_charts(attacks: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return a chart per norm of the accuracy under each attack against its budget; none of a single budget."""
    charts = []
    for norm in _AXES:
        kinds = dict.fromkeys((row["attack"], row["protocol"]) for row in attacks if row["norm"] == norm)
        several = len({protocol for _, protocol in kinds}) > 1
        dashes = dict(zip(dict.fromkeys(protocol for _, protocol in kinds), cycle(_DASHES), strict=False))
        lines = []
        for place, (attack, protocol) in enumerate(kinds):
            own = [row for row in attacks if (row["attack"], row["protocol"]) == (attack, protocol)]
            label = f"{attack} ({protocol})" if several else str(attack)
            corners = _worst_by_budget(own, norm)
            lines.append(Line(label=label, corners=corners, colour=place, dash=dashes[protocol], marked=True))
        if any(len(line.corners) > 2 for line in lines):
            charts.append(_attack_chart(f"{norm}, by attack", norm, lines))
    return charts


def _attack_chart(title: str, norm: str, lines: Sequence[Line]) -> Chart:
    label = _AXES[norm].replace("radius", "budget")
    end = 1.05 * max(line.corners[-1][0] for line in lines)
    return Chart(title=title, lines=lines, x_label=f"{label}, units of the input", y_label="right", x_end=end or 1.0)


def _spent(ledger: LedgerContents) -> list[tuple[float, float]]:
    """Return steps and the epsilon paid for them, as a staircase: blocks are paid before they are run."""
    corners, done = [(0.0, 0.0)], 0
    for record in ledger.records:
        if math.isinf(record.epsilon):
            continue
        corners.append((float(done), record.epsilon))
        if isinstance(record.event, SampledGaussianSteps):
            done += record.event.steps
            corners.append((float(done), record.epsilon))
    return corners


def budget_chart(ledger: LedgerContents) -> Chart | None:
    """Return the epsilon spent over the steps, with single releases as points; None if there is nothing to draw."""
    corners = _spent(ledger)
    if len(corners) < 2:
        return None
    points, done = [], 0
    for record in ledger.records:
        if isinstance(record.event, SampledGaussianSteps):
            done += record.event.steps
        elif not math.isinf(record.epsilon):
            points.append((float(done), record.epsilon, str(record.event.label)))
    chart = _budget_chart("budget spent", [Line(label="ε paid", corners=corners)], ledger.header.target_epsilon)
    return replace(chart, points=points)


def _budget_chart(title: str, lines: Sequence[Line], budget: float | None = None) -> Chart:
    heights = [height for line in lines for _, height in line.corners]
    steps = max(line.corners[-1][0] for line in lines)
    return Chart(
        title=title, lines=lines, x_label="steps", y_label="ε paid", x_end=steps or 1.0,
        y_end=1.12 * max([*heights, budget or 0.0]) or 1.0, level=None if budget is None else (budget, "budget"),
    )  # fmt: skip


def noise_picture(redistribution: Redistribution) -> dict[str, Any]:
    """Return where the noise is: of a layer with height and width as tiles of pixels with their scale, else as a chart.

    Both show the standard deviation of each unit's noise relative to that of the middle unit.
    """
    relative = np.sqrt(redistribution.per_unit).reshape(redistribution.shape)
    relative /= np.median(relative)
    if relative.ndim == 3:
        maps, (low, high) = noise_maps(relative)
        tiles = [
            {"name": name, "height": len(values), "width": len(values[0]), "uri": png_uri(tile_png(values, low, high))}
            for name, values in maps.items()
        ]
        return {"tiles": tiles, "low": f"{low:.2g}", "high": f"{high:.2g}", "chart": None}
    heights = np.log10(relative.ravel())
    low, high = math.floor(heights.min()), math.ceil(heights.max() + 1e-9)
    line = Line(label="noise of the unit", corners=[(float(k), float(height)) for k, height in enumerate(heights)])
    every = max(1, -(-(high - low) // 6))
    chart = Chart(
        title="noise over the layer", lines=[line], x_label="unit of the noisy layer", y_label="noise / median",
        x_end=float(max(1, len(heights) - 1)), y_start=low, y_end=max(high, low + 1),
        y_ticks=[(float(power), f"{10.0**power:g}") for power in range(low, high + 1, every)],
    )  # fmt: skip
    return {"tiles": [], "low": "", "high": "", "chart": chart}


def png_uri(image: bytes) -> str:
    """Return a PNG picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode()
