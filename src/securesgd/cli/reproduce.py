"""`securesgd reproduce`: the paper's figures and our tables, from rows that can be measured over several sittings."""

__all__ = ["reproduce"]

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn

from securesgd.cli.app import app
from securesgd.cli.progress import is_first_process, progress_bar
from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.reproduce.reproduce import Plan

# Columns of a cell that its neighbours share: progress lines leave them out.
_COMMON = (
    "examples", "votes", "eot", "attack_steps", "budgets", "certify_draws", "shown", "learning_rate", "copies",
)  # fmt: skip


@app.command(
    epilog="Examples:\n\nsecuresgd reproduce all --profile quick\n\nsecuresgd reproduce fig3 --draw\n\n"
    "securesgd reproduce leaderboard --profile standard --only dataset=mnist --only norm=l2,linf"
)
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="fig1 … fig5 of the paper, or all five; our tables: paper-network, redistribution, certified, "
            "attacks, adlm, interval, audit, leaderboard; claims: what rows say about each claim of the paper"
        ),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="quick: smaller networks, fewer images, one seed; standard: three seeds, with how many minutes a cell "
            "takes printed first. If not given, that of the rows in --out, or quick."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for rows, figures and environments.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for the trained models.")] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once, each on one thread; the number of cores if not given.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Measure the first so many seeds only, before the others.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="column=value[,value]",
            help="Measure only cells with one of these values in this column of rows.csv, before the others. Can be "
            "given several times.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Train nothing: draw the figure from the rows in --out.")
    ] = False,
) -> None:
    """Make a figure of the paper, or a table of ours: rows first, then the figure drawn from them.

    Every finished cell is on disk at once: stop at any moment, and resume with the same command. Models stay in --work,
    so that they can be certified and attacked again without training. Under torchrun each process measures a cell at
    once: [dim]torchrun --nproc-per-node 4 -m securesgd reproduce all[/]
    """
    from securesgd.reproduce.reproduce import plan_experiments, write_claims

    if experiment == "claims":
        if is_first_process():
            print(write_claims(out))
        return
    plan = partial(plan_experiments, experiment, out, profile=profile, seeds=seeds, only=_conditions(only or []))
    if draw:
        if is_first_process():
            _reproduce(plan(jobs=jobs), out, work, draw=True)
        return
    from securesgd.runtime.processes import process_group
    from securesgd.runtime.storage import require_writable

    for folder in (out, work):
        require_writable(folder / experiment)  # before hours of work
    with process_group() as processes:
        if processes.count > 1 and jobs is not None:
            raise InvalidInputError(f"jobs is {jobs}; valid under torchrun: none, each process measures a cell at once")
        at_once = processes.count if processes.count > 1 else jobs
        plans = processes.on_first(lambda: plan(jobs=at_once))
        _reproduce(plans, out, work, draw=False)


def _conditions(words: list[str]) -> dict[str, list[str]]:
    """Return the values that each column may have, from words like `norm=l2,linf`."""
    conditions = {}
    for word in words:
        column, found, values = word.partition("=")
        if not (column and found and all(values.split(","))):
            raise InvalidInputError(f"--only is {word!r}; valid: column=value, or column=value,value")
        conditions[column] = values.split(",")
    return conditions


def _reproduce(plans: "list[Plan]", out: Path, work: Path, *, draw: bool) -> None:
    """Reproduce what is planned; the first process says so."""
    from securesgd.reproduce.reproduce import estimate_lines
    from securesgd.reproduce.reproduce import reproduce as make_figure

    if not draw and is_first_process():
        for line in estimate_lines(plans):
            Console(stderr=True, highlight=False).print(line)
    for plan in plans:
        with _progress(plan.name, 0 if draw else plan.open) as show:
            files = make_figure(
                plan.name, out / plan.name, work / plan.name,
                profile=plan.profile, jobs=plan.jobs, seeds=plan.seeds, only=plan.only, only_draw=draw,
                on_cell=show if is_first_process() else None,
            )  # fmt: skip
        for path in files if is_first_process() else ():
            print(path)


@contextmanager
def _progress(name: str, cells: int) -> Iterator[Callable[[dict[str, Any], int, int, float], None]]:
    """Yield a callback that prints a line per measured cell, over a bar that shows the time."""
    columns = (name, "{task.completed:.0f}/{task.total:.0f} cells,", TimeElapsedColumn(), "gone,")
    with progress_bar(*columns, total=cells, transient=True) as (progress, task):

        def show(cell: dict[str, Any], done: int, still: int, seconds: float) -> None:
            values = [value for column, value in cell.items() if value is not None and column not in _COMMON]
            words = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
            left = f"{still} to go, about {seconds / done * still / 60:.0f} min"
            progress.console.print(f"  {name} {words}: done; {left}", soft_wrap=True)
            progress.update(task, completed=done)

        yield show
