"""`securesgd predict`: classes with proven radii for new inputs in files."""

__all__ = ["predict"]

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securesgd.cli.app import Device, Network, app
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError, printable

if TYPE_CHECKING:
    from securesgd.certificates.certify import CertifyProgress
    from securesgd.predict_files import FilePredictions

_SHOWN = 20
"""Rows on a terminal; the others are counted."""
_EXAMPLES = """Examples:

securesgd predict runs/photos new.png more/ --draws 10000

securesgd predict runs/people patients.csv --csv > answers.csv

securesgd predict runs/a images.npz --radius 0.05
"""


@app.command(epilog=_EXAMPLES)
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    paths: Annotated[
        list[Path],
        typer.Argument(help="Images, folders of them, .npz files with x, or for a run on a table .csv or .parquet."),
    ],
    radius: Annotated[
        float | None, typer.Option(help="Only decide whether this radius is proven. Needs far fewer draws.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Noise draws per input; the most, with --radius.")] = 1_000,
    norm: Annotated[str, typer.Option(help="linf, l2 or l1; the run's own if not given.")] = "",
    family: Annotated[
        str,
        typer.Option(help="smoothing, or interval: of a noisy network, without its noise. By the model if not given."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row for each input as CSV.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise, for tests only: it voids the guarantee for chosen inputs.")
    ] = None,
    network: Network = "",
    device: Device = "cpu",
) -> None:
    """Predict the class of new inputs, each with a radius within which no change of the input makes it another one.

    Inputs are read as those of the training were: sizes and colours of images, scaling of a table's columns. The data
    of the training need not be there. The noise is fresh and secret, so inputs may come from anybody.
    What cannot be used is named on standard error, everything else answered, and the exit code is 2.
    """
    if as_json and as_csv:
        raise InvalidInputError("--json and --csv are both given; valid: one of them")
    from securesgd.predict_files import predict_files
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    loaded = load_run(run, network=network or None, device=device)
    changes: dict[str, Any] = {"draws": draws, "radius": radius, "seed": seed}
    changes |= {name: word for name, word in (("norm", norm), ("family", family)) if word}
    columns = ("input {task.completed:.0f}/{task.total}", "{task.description}")
    with progress_bar(*columns, description="proving the sensitivity", transient=True) as (progress, task):

        def show(done: "CertifyProgress") -> None:
            progress.update(task, completed=done.examples, total=done.of, description="")

        result = predict_files(loaded, paths, on_progress=show, **changes)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    for note in result.notes:
        console.print(printable(note))
    for refusal in result.refused:
        console.print(f"securesgd: error: {refusal}")
    if result.predictions:
        if any(row.prediction.seeded for row in result.predictions):
            console.print(
                f"WARNING: the noise has seed {seed}, for repeatable tests only; of an input that was chosen by "
                "somebody who knows it, nothing is proven",
                style="bold red",
            )
        if as_json:
            print(json.dumps(result.json(), indent=2))
        elif as_csv:
            _print_csv(result)
        else:
            _print_table(result, radius)
    if result.refused:
        raise typer.Exit(2)


def _print_csv(result: "FilePredictions") -> None:
    """Print a row for each input; radii in the units of a table's columns have a column each."""
    rows = []
    for prediction in result.predictions:
        row = prediction.json()
        units = row.pop("column_radii", {})
        rows.append(row | {f"radius of {name}": radius for name, radius in units.items()})
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_table(result: "FilePredictions", radius: float | None) -> None:
    """Print the first inputs, how many more there are, and what is proven about all of them."""
    from securesgd.theory.rounding import round_down

    shown = result.predictions[:_SHOWN]
    with_rows = any(row.place.row is not None for row in shown)
    table = Table()
    table.add_column("file", overflow="fold")
    if with_rows:
        table.add_column("row", justify="right")
    table.add_column("class", overflow="fold")
    table.add_column(f"proven {shown[0].prediction.norm} radius", justify="right")
    if radius is not None:
        table.add_column(f"{radius:g} proven")
    table.add_column("draws", justify="right")
    for row in shown:
        said = row.prediction
        name = "abstained" if said.label is None else printable(said.class_name or str(said.label))
        cells = [printable(row.place.file), *([str(row.place.row or "")] if with_rows else ()), name]
        cells.append(f"{round_down(said.radius):.4g}")
        cells += [said.answer] if radius is not None else []
        table.add_row(*(Text(cell) for cell in [*cells, f"{said.draws:,}"]))
    Console().print(table)
    if len(result.predictions) > len(shown):
        print(f"and {len(result.predictions) - len(shown):,} more; --csv or --json prints all")
    if shown[0].column_radii is not None:
        print("radii in the units of the columns: --csv or --json")
    print(result.guarantee)
