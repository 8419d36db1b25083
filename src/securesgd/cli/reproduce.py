"""`securesgd reproduce`: the paper's figures and our tables, from rows that can be gathered over several sittings."""

__all__ = ["reproduce"]

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from securesgd.cli.app import app
from securesgd.errors import InvalidInputError, nearest


@app.command(epilog="Example: securesgd reproduce redistribution --profile quick")
def reproduce(
    experiment: Annotated[str, typer.Argument(help="fig1, paper-network, redistribution, certified, attacks or all")],
    profile: Annotated[str, typer.Option(help="quick: fewer seeds and images; paper: the full grid.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for rows, figures and environments.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for the trained models.")] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once, each on one thread; the number of cores if not given.")
    ] = None,
) -> None:
    """Make a figure of the paper, or a table of ours: rows first, then the picture drawn from them.

    Every finished cell is on disk at once: stop whenever you like, the same command goes on where it was. Models stay
    in --work, so that they can be certified and attacked again without training.
    """
    from securesgd.experiments.grid import open_cells
    from securesgd.experiments.reproduce import EXPERIMENTS, PROFILES
    from securesgd.experiments.reproduce import reproduce as make

    names = list(EXPERIMENTS) if experiment == "all" else [experiment]
    if names[0] not in EXPERIMENTS:
        raise InvalidInputError(f"unknown figure {experiment!r}: {nearest(experiment, [*EXPERIMENTS, 'all'])}")
    if profile not in PROFILES:
        raise InvalidInputError(f"unknown profile {profile!r}: {nearest(profile, PROFILES)}")
    console = Console(stderr=True, highlight=False)
    for name in names:
        cells = EXPERIMENTS[name].cells(profile)
        todo = open_cells(out / name / "rows.csv", cells)
        console.print(f"{name}: {len(todo)} of {len(cells)} cells to do")

        def show(cell: dict[str, Any], done: int, still: int, seconds: float) -> None:
            what = " ".join(str(value) for value in cell.values())
            console.print(f"  {what}: done; {still} to go, about {seconds / done * still / 60:.0f} min")

        at_once = min(len(todo), os.cpu_count() or 1) if jobs is None else jobs
        for path in make(name, out / name, work / name, profile=profile, jobs=max(1, at_once), on_cell=show):
            print(path)
