"""Rows added up: gains of one method over the others with paired t-tests, and several seeds in one row."""

__all__ = ["gain_table", "seed_summary"]

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from securesgd.theory.comparison import gain_rows

_VALUES = ("attacked", "certified_clean", "certified_attacked")
_PAIRED = ("seed", "attack", "budget")


def gain_table(rows: Sequence[Mapping[str, Any]], ours: str) -> list[dict[str, Any]]:
    """Return a row per protocol, accuracy and other method: over all attacks (`all`), and for each attack.

    A pair is the same seed, attack and budget; for the certificate at the clean image, seed and budget. Pairs of one
    trained model share that model, so `seeds` stands beside the p-value: with one seed the test says that the
    difference holds over attacks and budgets, not over trainings.
    """
    found = []
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        mine = [row for row in rows if row["protocol"] == protocol]
        seeds = len({row["seed"] for row in mine})
        for value in _VALUES:
            if value == "certified_clean":  # no attack has a part in it: one of them stands for all
                first = [row for row in mine if row["attack"] == mine[0]["attack"]]
                whole, each = gain_rows(first, ours=ours, value=value, pair_by=("seed", "budget")), []
            else:
                whole = gain_rows(mine, ours=ours, value=value, pair_by=_PAIRED)
                each = gain_rows(mine, ours=ours, value=value, pair_by=("seed", "budget"), per=("attack",))
            for row in [{"attack": "all", **row} for row in whole] + each:
                found.append({"protocol": protocol, **row, "seeds": seeds})
    return found


def seed_summary(rows: Sequence[Mapping[str, Any]], by: Sequence[str], values: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per combination of the columns `by`, in their first order: seeds, and three columns per value."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for key, group in groups.items():
        summary: dict[str, Any] = {**dict(zip(by, key, strict=True)), "seeds": len(group)}
        for value in values:
            measured = [float(row[value]) for row in group]
            summary |= {
                f"{value}_{name}": round(of(measured), 6) for name, of in (("mean", mean), ("min", min), ("max", max))
            }
        found.append(summary)
    return found
