"""`securesgd reproduce`: measure what is missing of an experiment, then draw its figure from the rows on disk."""

__all__ = [
    "EXPERIMENTS",
    "FIGURES",
    "PROFILES",
    "Only",
    "Plan",
    "estimate_lines",
    "plan_experiments",
    "recorded_profile",
    "reproduce",
    "write_claims",
]

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securesgd import __version__
from securesgd.errors import DamagedFileError, InvalidInputError, nearest
from securesgd.reproduce.audit import AUDIT
from securesgd.reproduce.claims import claim_rows
from securesgd.reproduce.figures import FIG1, FIG2, FIG3, FIG4, FIG5, FIGURE_GAINS
from securesgd.reproduce.grid import Cell, Experiment, cell_rows, fill_grid, open_cells
from securesgd.reproduce.interval import INTERVAL
from securesgd.reproduce.leaderboard import LEADERBOARD
from securesgd.reproduce.redistribution import CERTIFIED, REDISTRIBUTION
from securesgd.reproduce.tables import ADLM, ATTACKS, PAPER_NETWORK
from securesgd.runtime.machine import environment
from securesgd.runtime.storage import read_json, write_json
from securesgd.runtime.tables import write_rows
from securesgd.validate import validate_count

EXPERIMENTS: dict[str, Experiment] = {
    "fig1": FIG1,
    "fig2": FIG2,
    "fig3": FIG3,
    "fig4": FIG4,
    "fig5": FIG5,
    "paper-network": PAPER_NETWORK,
    "redistribution": REDISTRIBUTION,
    "certified": CERTIFIED,
    "attacks": ATTACKS,
    "adlm": ADLM,
    "interval": INTERVAL,
    "audit": AUDIT,
    "leaderboard": LEADERBOARD,
}
"""By name: a row here is an experiment that can be reproduced."""
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5")
"""The paper's five figures: what `all` means."""
PROFILES = ("quick", "standard")
_FORMER_PROFILES = {"paper": "standard"}  # as rows of version 0.2.0 and before name it
SEEDED_ROWS = (
    "fixed seeds, so that the rows can be made again: their epsilon is that of the same training with a secret key, "
    "and no guarantee for these very models"
)
CLAIMS = "claims.csv"
Only = Mapping[str, Sequence[str]]
_ROWS, _FIGURE, _ENVIRONMENT = "rows.csv", "figure.png", "environment.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What reproducing one experiment takes: its profile, and the cells that are measured and open."""

    name: str
    profile: str
    measured: int
    open: int
    core_minutes: float
    """An estimate for the open cells, on one slow core."""
    jobs: int
    """Cells that are measured at once."""
    seeds: int | None = None
    """Of the profile's seeds, only so many are measured."""
    only: Only = field(default_factory=dict)
    """Only cells with one of these values in each of these columns are measured."""


def plan_experiments(
    experiment: str,
    out: Path,
    *,
    profile: str | None = None,
    jobs: int | None = None,
    seeds: int | None = None,
    only: Only | None = None,
) -> list[Plan]:
    """Return the plan of an experiment, or of each of the paper's figures for `all`, with results in `out/name`.

    Without a profile it is that of the rows in the folder, or quick; without `jobs` there is one per core; without
    `seeds` all of the profile.
    Raises: InvalidInputError for an unknown experiment or profile (the nearest is suggested) or a bad number of jobs or
    seeds; DamagedFileError if `rows.csv` is another table.
    """
    if experiment != "all" and experiment not in EXPERIMENTS:
        raise InvalidInputError(
            f"unknown figure {experiment!r}: {nearest(experiment, [*EXPERIMENTS, 'all', 'claims'])}"
        )
    if profile is not None and profile not in PROFILES:
        raise InvalidInputError(f"unknown profile {profile!r}: {nearest(profile, PROFILES)}")
    if jobs is not None and not 1 <= jobs <= 1024:
        raise InvalidInputError(f"jobs is {jobs}; valid: a whole number from 1 to 1024")
    if seeds is not None:
        validate_count("seeds", seeds, at_least=1, at_most=1024)
    plans = []
    for name in FIGURES if experiment == "all" else (experiment,):
        chosen = profile or recorded_profile(out / name) or "quick"
        cells = _chosen_cells(name, chosen, seeds, only or {})
        todo = len(open_cells(out / name / _ROWS, cells))
        plans.append(
            Plan(
                name=name,
                profile=chosen,
                measured=len(cells) - todo,
                open=todo,
                core_minutes=todo * EXPERIMENTS[name].minutes[chosen],
                jobs=jobs or os.cpu_count() or 1,
                seeds=seeds,
                only=only or {},
            )
        )
    return plans


def _chosen_cells(name: str, profile: str, seeds: int | None, only: Only) -> list[Cell]:
    """Return the cells of a profile, of its first `seeds` seeds if that is given, with the values in `only`."""
    cells = EXPERIMENTS[name].cells(profile)
    chosen = list(dict.fromkeys(cell.get("seed") for cell in cells))[:seeds]
    for column, values in only.items():
        if column not in cells[0]:
            raise InvalidInputError(f"{name} has no column {column!r}: {nearest(column, list(cells[0]))}")
        known = list(dict.fromkeys(_word(cell[column]) for cell in cells))
        for value in values:
            if value not in known:
                raise InvalidInputError(f"{name} has no cells with {column}={value}: {nearest(value, known)}")
    return [
        cell
        for cell in cells
        if cell.get("seed") in chosen and all(_word(cell[column]) in values for column, values in only.items())
    ]


def _word(value: Any) -> str:
    """Return a value of a cell as a user writes it."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def estimate_lines(plans: Sequence[Plan]) -> list[str]:
    """Return, in words, what is to be measured and how long it takes; most machines need less."""
    lines = []
    for plan in plans:
        words = (
            f"{plan.name}: {plan.open} cells to do, {plan.measured} done, {_duration(plan.core_minutes / plan.jobs)}"
        )
        each = f" ({plan.core_minutes / plan.open:g} core-minutes a cell)" if plan.open else ""
        lines.append(words + each)
    if len(plans) > 1:
        lines.append(f"together {_duration(sum(plan.core_minutes / plan.jobs for plan in plans))}")
    return lines


def reproduce(
    name: str,
    folder: Path,
    work: Path,
    *,
    profile: str = "quick",
    jobs: int = 1,
    seeds: int | None = None,
    only: Only | None = None,
    only_draw: bool = False,
    on_cell: Callable[[Cell, int, int, float], None] | None = None,
) -> list[Path]:
    """Measure what is missing in `folder/rows.csv`, draw the figure from it, and return the files.

    Only rows of the profile's own cells are drawn; a larger profile adds to the same table. With `seeds` and `only`,
    fewer cells are measured, as in `plan_experiments`. With `only_draw` nothing is measured: the figure is of the rows
    in the folder, whatever version made them. Under torch.distributed processes share the cells, each alone with its
    own; the first one writes and draws, and all return the files.
    Raises: InvalidInputError if there are no rows to draw; DamagedFileError if rows would be added to those of another
    version: what changed between the versions could be what the rows measure.
    """
    if only_draw:
        return _draw(name, folder, profile)
    from securesgd.runtime.processes import Processes

    experiment, processes, table = EXPERIMENTS[name], Processes(), folder / _ROWS
    cells = _chosen_cells(name, profile, seeds, only or {})
    todo = processes.on_first(lambda: open_cells(table, cells))
    if todo:
        processes.on_first(lambda: _record_environment(folder, profile, seeded=experiment.seeded))
        fill_grid(table, cells, experiment.measure, work, jobs=min(len(todo), jobs), on_cell=on_cell)
    return processes.on_first(lambda: _draw(name, folder, profile))


def write_claims(out: Path) -> Path:
    """Write `out/claims.csv`: each claim of the paper, with what the rows of its figure in `out` say; return the path.

    The rows are those of the profile that was measured last. Nothing is measured.
    """
    gains = {}
    for name, figure_gains in FIGURE_GAINS.items():
        cells, table = EXPERIMENTS[name].cells(recorded_profile(out / name) or "quick"), out / name / _ROWS
        rows = cell_rows(table, cells) if table.exists() else []
        gains[name] = figure_gains(rows) if rows else []
    path = out / CLAIMS
    write_rows(path, claim_rows(gains))
    return path


def _record_environment(folder: Path, profile: str, *, seeded: bool) -> None:
    """Write what the rows to come are measured with, if it may be added to what is there."""
    record = folder / _ENVIRONMENT
    _require_same_version(folder / _ROWS, record)
    write_json(record, environment() | {"profile": profile} | ({"noise": SEEDED_ROWS} if seeded else {}))


def _draw(name: str, folder: Path, profile: str) -> list[Path]:
    """Draw the figure of the rows in a folder, and return its files."""
    experiment, table, figure = EXPERIMENTS[name], folder / _ROWS, folder / _FIGURE
    rows = cell_rows(table, experiment.cells(profile)) if table.exists() else []
    if not rows:
        raise InvalidInputError(f"{folder} has no rows of the profile {profile!r} to draw")
    experiment.draw(rows, figure)
    return [table, figure, folder / _ENVIRONMENT]


def recorded_profile(folder: Path) -> str | None:
    """Return the profile that the rows in a folder were last measured with; None if the folder does not say."""
    try:
        recorded = str(read_json(folder / _ENVIRONMENT)["profile"])
    except (DamagedFileError, KeyError, TypeError):
        return None
    profile = _FORMER_PROFILES.get(recorded, recorded)
    return profile if profile in PROFILES else None


def _require_same_version(table: Path, record: Path) -> None:
    """Raise DamagedFileError if there are rows, and another version than this one measured them."""
    if not table.exists():
        return
    try:
        version = read_json(record)["versions"]["securesgd"]
    except (DamagedFileError, KeyError, TypeError):
        raise DamagedFileError(
            f"{record} does not say which version made the rows beside it; move them away, or give another --out"
        ) from None
    if version != __version__:
        raise DamagedFileError(
            f"{table} was measured with securesgd {version}, this is {__version__}: rows of two versions do not go "
            "into one table; move it away, or give another --out"
        )


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "seconds"
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.1f} hours"
