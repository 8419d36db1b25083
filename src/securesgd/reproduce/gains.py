"""Rows added up: gains of one method over the others with paired t-tests over seeds, and several seeds in one row."""

__all__ = [
    "CERTIFIED_COLUMNS",
    "PROTOCOLS",
    "Stated",
    "attack_gains",
    "budget_gains",
    "certified_gains",
    "seed_summary",
    "write_gains",
]

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from securesgd.runtime.tables import write_rows
from securesgd.theory.comparison import gain_rows

Row = Mapping[str, Any]
Stated = Mapping[str, tuple[float, float | None]]
"""By method: the gain over it that the paper states, and its p-value."""

PROTOCOLS = ("as-published", "sound")
CERTIFIED_COLUMNS = {"as-published": "published_attacked", "sound": "certified_attacked"}
"""By protocol: the certified accuracy at the attacked image, by the published rule or by the tight one."""


def attack_gains(rows: Sequence[Row], ours: str) -> list[dict[str, Any]]:
    """Return a row per protocol, accuracy and other method: over all attacks (`all`), and for each attack."""
    gains = []
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        chosen = [row for row in rows if row["protocol"] == protocol]
        for value in ("attacked", "certified_clean", "certified_attacked"):
            if value == "certified_clean":  # it is the same whatever the attack: the rows of one attack are enough
                first = [row for row in chosen if row["attack"] == chosen[0]["attack"]]
                overall, by_attack = gain_rows(first, ours=ours, value=value, points=("budget",)), []
            else:
                overall = gain_rows(chosen, ours=ours, value=value, points=("attack", "budget"))
                by_attack = gain_rows(chosen, ours=ours, value=value, points=("budget",), per=("attack",))
            for row in [{"attack": "all", **row} for row in overall] + by_attack:
                gains.append({"protocol": protocol, **row})
    return gains


def certified_gains(rows: Sequence[Row], robust_epsilon: float, stated: Stated) -> list[dict[str, Any]]:
    """Return what HGM_PixelDP gains over PixelDP in certified accuracy, by protocol and way to obtain r.

    `robust_epsilon` is that of the paper's claim.
    """
    chosen = [row for row in rows if row["method"] == "pixeldp" or row["robust_epsilon"] == robust_epsilon]
    ways = dict.fromkeys(row["way"] for row in chosen if row["method"] == "hgm-pixeldp")
    gains = []
    for protocol in PROTOCOLS:
        for way in ways:
            pair = [row for row in chosen if row["protocol"] == protocol and row["way"] in ("uniform", way)]
            points = ("attack", "budget")
            gains += _compare_with_paper(pair, "hgm-pixeldp", CERTIFIED_COLUMNS[protocol], points, stated)
    return gains


def budget_gains(rows: Sequence[Row], stated: Stated, rise: float) -> list[dict[str, Any]]:
    """Return what Secure-SGD gains over the other methods in accuracy under attack, by protocol.

    And what it gains from its smallest privacy budget to its largest: `rise` in the paper. A second network of a
    method, there at fewer budgets to show the difference, has no part in it.
    """
    gains = []
    for protocol in PROTOCOLS:
        chosen = [row for row in rows if row["protocol"] == protocol]
        chosen = [row for row in chosen if row["network"] == _main_network(chosen, row["method"])]
        gains += _compare_with_paper(chosen, "secure-sgd", "attacked", ("attack", "epsilon"), stated)
        ends = [end((row["epsilon"] for row in chosen), default=0.0) for end in (max, min)]
        secure_sgd = [
            {**row, "method": f"secure-sgd at epsilon {row['epsilon']:g}"}
            for row in chosen
            if row["method"] == "secure-sgd" and row["epsilon"] in ends
        ]
        largest, smallest = (f"secure-sgd at epsilon {epsilon:g}" for epsilon in ends)
        gains += _compare_with_paper(secure_sgd, largest, "attacked", ("attack",), {smallest: (rise, None)})
    return gains


def _main_network(rows: Sequence[Row], method: str) -> Any:
    """Return the network that a method has at most budgets, of several the one that comes first."""
    budgets = dict.fromkeys((row["network"], row["epsilon"]) for row in rows if row["method"] == method)
    return Counter(network for network, _ in budgets).most_common(1)[0][0]


def _compare_with_paper(
    rows: Sequence[Row], ours: str, value: str, points: Sequence[str], stated: Stated
) -> list[dict[str, Any]]:
    """Return our gains over the other methods in one protocol, with the gain and p-value that the paper states."""
    if not any(row["method"] == ours for row in rows):
        return []
    way = next(row["way"] for row in rows if row["method"] == ours)
    examples = {int(row["examples"]) for row in rows}
    gains = []
    for gain in gain_rows(rows, ours=ours, value=value, points=points):
        paper_gain, paper_p_value = stated.get(gain["against"], (None, None))
        paper = {"paper_gain": paper_gain, "paper_p_value": paper_p_value}
        gains.append({"protocol": rows[0]["protocol"], "way": way, **gain, "examples": min(examples), **paper})
    return gains


def write_gains(gains: Sequence[dict[str, Any]], figure: Path) -> None:
    """Write `gains.csv` beside a figure; rows that are still being measured may have no pair yet, and no file."""
    if gains:
        write_rows(figure.with_name("gains.csv"), gains)


def seed_summary(rows: Sequence[Row], by: Sequence[str], values: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per combination of the columns `by`, in order of appearance: seeds, and three columns per value."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    summaries = []
    for key, group in groups.items():
        summary: dict[str, Any] = {**dict(zip(by, key, strict=True)), "seeds": len(group)}
        for value in values:
            measured = [float(row[value]) for row in group]
            for name, statistic in (("mean", mean), ("min", min), ("max", max)):
                summary[f"{value}_{name}"] = round(statistic(measured), 6)
        summaries.append(summary)
    return summaries
