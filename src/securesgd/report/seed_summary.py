"""Several seeds in one row: mean, smallest and largest of what was measured."""

__all__ = ["seed_summary"]

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any


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
