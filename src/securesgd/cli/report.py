"""`securesgd report`: one HTML file about a run, or several side by side."""

__all__ = ["report"]

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from securesgd.cli.app import app
from securesgd.errors import printable
from securesgd.runtime.run_folder import REPORT


@app.command(epilog="Example: securesgd report runs/a runs/b --out comparison.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; report.html in the first run's folder if not given.")
    ] = None,
) -> None:
    """Write a report: privacy and robustness statements, attacks, where the noise is, and what is not guaranteed.

    One file without links to the network. It is made from the run folder alone, whose claims are checked on the way as
    far as that takes no network: a number that they do not back is shown as not believed, and the exit code is 1.
    The model card beside it, MODEL_CARD.md, is written anew.
    """
    from securesgd.report.model_card import refresh_model_card
    from securesgd.report.page import report as make

    path = out or runs[0] / REPORT
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    written = make(runs, path)
    for line in [*(f"in {words}" for words in written.missing), *refresh_model_card(runs, path)]:
        console.print(f"[yellow]missing[/] {escape(printable(line))}", markup=True)
    for line in written.failures:
        console.print(f"[red]not believed[/] {escape(printable(line))}", markup=True)
    print(path)
    if written.failures:
        raise typer.Exit(1)
