"""`securesgd reproduce`: rows of an experiment to disk, then its figure from the rows on disk."""

__all__ = ["FIGURES", "reproduce"]

from pathlib import Path

from securesgd.environment import environment
from securesgd.experiments import fig1
from securesgd.report.rows import read_rows, write_json, write_rows

FIGURES = {"fig1": fig1}


def reproduce(figure: str, folder: Path) -> list[Path]:
    """Make one figure in `folder` and return the files written."""
    experiment = FIGURES[figure]
    rows, picture, record = folder / "rows.csv", folder / "figure.png", folder / "environment.json"
    write_rows(rows, experiment.rows())
    write_json(record, environment())
    experiment.draw(read_rows(rows), picture)
    return [rows, picture, record]
