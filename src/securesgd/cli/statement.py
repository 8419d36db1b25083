"""`securesgd statement`: everything that the privacy of a run rests on, and what it means, in one table."""

__all__ = ["statement"]

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import app
from securesgd.errors import printable


@app.command(epilog="Example: securesgd statement runs/a --group 2 --group 5")
def statement(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    group: Annotated[
        list[int] | None,
        typer.Option(help="Examples that one person may have, 2 to 100; may be repeated. 2, 5 and 10 if not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statement as JSON.")] = False,
) -> None:
    """State the privacy of a run in full: the claim, what it means to an attacker, and what it rests on.

    Computed from the ledger, in seconds; nothing is written. Every bound is rounded up. The lines are explained in
    docs/reference/statement.md.
    """
    from securesgd.privacy import run_statement, statement_rows
    from securesgd.privacy.group import GROUP_SIZES

    full = run_statement(run, groups=group or GROUP_SIZES)
    if as_json:
        print(json.dumps(full.json(), indent=2, allow_nan=False))
        return
    console = Console(highlight=False, markup=False)
    table, lists = Table(box=SIMPLE, show_header=False, pad_edge=False), dict[str, list[str]]()
    for width in (None, 3, 2):
        table.add_column(no_wrap=width is None, overflow="fold", ratio=width, style="dim" if width == 2 else None)
    for label, value, meaning in statement_rows(full):
        if label in _LISTS:
            lists.setdefault(f"{label} ({meaning}):", []).append(printable(value))
        else:
            table.add_row(label, printable(value), meaning)
    console.print(table)
    for title, values in lists.items():
        console.print(title, *(f"  - {value}" for value in values), sep="\n", soft_wrap=True)
    console.print(printable(full.statement.in_words), soft_wrap=True)


_LISTS = ("released", "not covered", "assumed")
"""Labels whose rows are sentences: shown below the table."""
