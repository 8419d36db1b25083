"""What figures 2–5 have in common: lines of trained models under attack, a grid per profile, panels drawn from rows."""

__all__ = ["AttackFigure"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securesgd.reproduce import attacked
from securesgd.reproduce.lines import cells_of


def _no_budget() -> dict[str, tuple[float | None, ...]]:
    return {"quick": (None,), "paper": (None,)}


@dataclass(frozen=True, kw_only=True)
class AttackFigure:
    """The grid of a figure as data."""

    lines: Sequence[dict[str, Any]]
    common: dict[str, Any]
    """Columns that all cells share; `profiles` has those that differ by profile, and goes before."""
    profiles: Mapping[str, dict[str, Any]]
    panels: Callable[[list[dict[str, Any]], Path], None]
    """Draws the figure and writes `gains.csv` beside it."""
    MINUTES: Mapping[str, float]
    """Of one core for a cell, by profile."""
    epsilons: Mapping[str, Sequence[float | None]] = field(default_factory=_no_budget)
    """Privacy budgets of the training data."""
    others: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    """Lines with a training of their own."""
    seeds: Mapping[str, Sequence[int]] = field(default_factory=lambda: {"quick": (0,), "paper": (0, 1, 2)})
    measure = staticmethod(attacked.measure)

    def cells(self, profile: str) -> list[dict[str, Any]]:
        """Return the grid: line × privacy budget × seed."""
        lines = [*self.lines, *self.others.get(profile, ())]
        spread = [{**line, "epsilon": epsilon} for epsilon in self.epsilons[profile] for line in lines]
        return cells_of(self.common | self.profiles[profile], spread, self.seeds[profile])

    def draw(self, rows: list[dict[str, Any]], path: Path) -> None:
        """Draw the figure of these rows, and write the gains with their t-tests beside it."""
        self.panels(rows, path)
