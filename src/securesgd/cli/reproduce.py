"""`securesgd reproduce`: the paper's figures and our tables, from rows that can be gathered over several sittings."""

__all__ = ["reproduce"]

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn

from securesgd.cli.app import app
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError, nearest


@app.command(epilog="Example: securesgd reproduce all --profile quick  ·  securesgd reproduce fig3 --draw")
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="fig1 … fig5 of the paper, or all five; our tables: paper-network, redistribution, certified, "
            "attacks, adlm"
        ),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="quick: smaller networks, fewer images and seeds; paper: the full grid (days). If not given, that of "
            "the rows there are, or quick."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for rows, figures and environments.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for the trained models.")] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once, each on one thread; the number of cores if not given.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Train nothing: draw the figure from the rows there are.")] = (
        False
    ),
) -> None:
    """Make a figure of the paper, or a table of ours: rows first, then the picture drawn from them.

    Every finished cell is on disk at once: stop whenever you like, the same command goes on where it was. Models stay
    in --work, so that they can be certified and attacked again without training.
    """
    from securesgd.reproduce.grid import open_cells
    from securesgd.reproduce.reproduce import EXPERIMENTS, FIGURES, PROFILES, recorded_profile
    from securesgd.reproduce.reproduce import reproduce as make

    names = list(FIGURES) if experiment == "all" else [experiment]
    if names[0] not in EXPERIMENTS:
        raise InvalidInputError(f"unknown figure {experiment!r}: {nearest(experiment, [*EXPERIMENTS, 'all'])}")
    if profile is not None and profile not in PROFILES:
        raise InvalidInputError(f"unknown profile {profile!r}: {nearest(profile, PROFILES)}")
    if jobs is not None and not 1 <= jobs <= 1024:
        raise InvalidInputError(f"jobs is {jobs}; valid: a whole number from 1 to 1024")
    console = Console(stderr=True, highlight=False)
    cores = jobs or os.cpu_count() or 1
    chosen = {name: profile or recorded_profile(out / name) or "quick" for name in names}
    grids = {name: EXPERIMENTS[name].cells(chosen[name]) for name in names}
    todo = {name: open_cells(out / name / "rows.csv", grids[name]) for name in names}
    if not draw:
        minutes = {name: len(cells) * EXPERIMENTS[name].MINUTES[chosen[name]] for name, cells in todo.items()}
        for name in names:
            there = len(grids[name]) - len(todo[name])
            console.print(f"{name}: {len(todo[name])} cells to do, {there} done, {_time(minutes[name], cores)}")
        if len(names) > 1:
            console.print(f"together {_time(sum(minutes.values()), cores)}")
    for name in names:
        at_once = max(1, min(len(todo[name]), cores))
        with _progress(name, 0 if draw else len(todo[name])) as show:
            made = make(name, out / name, work / name, profile=chosen[name], jobs=at_once, only_draw=draw, on_cell=show)
        for path in made:
            print(path)


@contextmanager
def _progress(name: str, cells: int) -> Iterator[Callable[[dict[str, Any], int, int, float], None]]:
    """Yield a callback that says what is done, a line per cell, over a bar that shows that work goes on."""
    columns = (name, "{task.completed:.0f}/{task.total:.0f} cells,", TimeElapsedColumn(), "gone,")
    with progress_bar(*columns, total=cells, transient=True) as (progress, task):

        def show(cell: dict[str, Any], done: int, still: int, seconds: float) -> None:
            what = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in _told(cell))
            left = f"{still} to go, about {seconds / done * still / 60:.0f} min"
            progress.console.print(f"  {name} {what}: done; {left}", soft_wrap=True)
            progress.update(task, completed=done)

        yield show


def _told(cell: dict[str, Any]) -> list[Any]:
    """Return what tells a cell from its neighbours, without the sizes that all have in common."""
    common = (
        "examples",
        "votes",
        "eot",
        "attack_steps",
        "budgets",
        "certify_draws",
        "shown",
        "learning_rate",
        "copies",
    )
    return [value for name, value in cell.items() if value is not None and name not in common]


def _time(core_minutes: float, cores: int) -> str:
    """Return an estimate in words; it is of a slow core, so that most machines need less."""
    minutes = core_minutes / cores
    if minutes < 1:
        return "seconds"
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.1f} hours"
