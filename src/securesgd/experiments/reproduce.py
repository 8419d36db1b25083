"""`securesgd reproduce`: rows of an experiment to disk, then its figure from the rows on disk."""

__all__ = ["EXPERIMENTS", "PROFILES", "reproduce"]

from collections.abc import Callable
from pathlib import Path
from typing import Any

from securesgd.environment import environment
from securesgd.experiments import attacks_table, certified_table, fig1, paper_network, redistribution
from securesgd.experiments.grid import Cell, fill, rows_of
from securesgd.report.rows import write_json

EXPERIMENTS: dict[str, Any] = {
    "fig1": fig1,
    "paper-network": paper_network,
    "redistribution": redistribution,
    "certified": certified_table,
    "attacks": attacks_table,
}
PROFILES = ("quick", "paper")


def reproduce(
    name: str,
    folder: Path,
    work: Path,
    *,
    profile: str = "quick",
    jobs: int = 1,
    on_cell: Callable[[Cell, int, int, float], None] | None = None,
) -> list[Path]:
    """Measure what is missing in `folder/rows.csv`, draw the figure from it, and return the files.

    Only rows of the profile's own cells are drawn; a larger profile adds to the same table.
    """
    experiment = EXPERIMENTS[name]
    rows, picture, record = folder / "rows.csv", folder / "figure.png", folder / "environment.json"
    cells = experiment.cells(profile)
    fill(rows, cells, experiment.measure, work, jobs=jobs, on_cell=on_cell)
    write_json(record, environment() | {"profile": profile})
    experiment.draw(rows_of(rows, cells), picture)
    return [rows, picture, record]
