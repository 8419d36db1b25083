"""`securesgd reproduce`: rows of an experiment to disk, then its figure from the rows on disk."""

__all__ = ["EXPERIMENTS", "FIGURES", "PROFILES", "recorded_profile", "reproduce"]

from collections.abc import Callable
from pathlib import Path
from typing import Any

from securesgd import __version__
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.reproduce import (
    adlm_table,
    attacks_table,
    certified_table,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    paper_network,
    redistribution,
)
from securesgd.reproduce.grid import Cell, fill, open_cells, rows_of
from securesgd.runtime.machine import environment
from securesgd.runtime.storage import read_json, write_json

FIGURES: dict[str, Any] = {
    "fig1": fig1,
    "fig2": fig2.FIGURE,
    "fig3": fig3.FIGURE,
    "fig4": fig4.FIGURE,
    "fig5": fig5.FIGURE,
}
"""The paper's five figures: what `all` means."""
EXPERIMENTS: dict[str, Any] = FIGURES | {
    "paper-network": paper_network,
    "redistribution": redistribution,
    "certified": certified_table,
    "attacks": attacks_table,
    "adlm": adlm_table,
}
PROFILES = ("quick", "paper")
SEEDED_ROWS = (
    "fixed seeds, so that the rows can be made again: their epsilon is that of the same training with a secret key, "
    "and no guarantee for these very models"
)


def reproduce(
    name: str,
    folder: Path,
    work: Path,
    *,
    profile: str = "quick",
    jobs: int = 1,
    only_draw: bool = False,
    on_cell: Callable[[Cell, int, int, float], None] | None = None,
) -> list[Path]:
    """Measure what is missing in `folder/rows.csv`, draw the figure from it, and return the files.

    Only rows of the profile's own cells are drawn; a larger profile adds to the same table. With `only_draw` nothing is
    measured: the figure is of the rows there are, whatever version made them.
    Raises: InvalidInputError if there are no rows to draw; DamagedFileError if rows are to be added to those of another
    version: what changed in between could be what the rows measure.
    """
    experiment = EXPERIMENTS[name]
    rows, picture, record = folder / "rows.csv", folder / "figure.png", folder / "environment.json"
    cells = experiment.cells(profile)
    if not only_draw and open_cells(rows, cells):
        _require_same_version(rows, record)
        write_json(record, environment() | {"profile": profile} | ({} if name == "fig1" else {"noise": SEEDED_ROWS}))
        fill(rows, cells, experiment.measure, work, jobs=jobs, on_cell=on_cell)
    there = rows_of(rows, cells) if rows.exists() else []
    if not there:
        raise InvalidInputError(f"{folder} has no rows of the profile {profile!r} to draw")
    experiment.draw(there, picture)
    return [rows, picture, record]


def recorded_profile(folder: Path) -> str | None:
    """Return the profile that the rows in a folder were last measured by; None if there are none, or it is not said."""
    try:
        profile = read_json(folder / "environment.json")["profile"]
    except (DamagedFileError, KeyError, TypeError):
        return None
    return profile if profile in PROFILES else None


def _require_same_version(rows: Path, record: Path) -> None:
    """Pass if there are no rows yet, or rows of this version."""
    if not rows.exists():
        return
    try:
        made_by = read_json(record)["versions"]["securesgd"]
    except (DamagedFileError, KeyError, TypeError):
        raise DamagedFileError(
            f"{record} does not say which version made the rows beside it; move them away, or give another --out"
        ) from None
    if made_by != __version__:
        raise DamagedFileError(
            f"{rows} is of securesgd {made_by}, this is {__version__}: rows of two versions do not go into one table; "
            "move it away, or give another --out"
        )
