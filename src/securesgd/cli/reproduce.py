"""`securesgd reproduce`: the paper's figures."""

__all__ = ["reproduce"]

from pathlib import Path
from typing import Annotated

import typer

from securesgd.cli.app import app
from securesgd.errors import InvalidInputError, nearest


@app.command(epilog="Example: securesgd reproduce fig1 --out results")
def reproduce(
    figure: Annotated[str, typer.Argument(help="fig1")],
    out: Annotated[Path, typer.Option(help="Folder for rows, figure and environment.")] = Path("results"),
) -> None:
    """Make a figure of the paper: rows first, then the picture drawn from them."""
    from securesgd.experiments.reproduce import FIGURES
    from securesgd.experiments.reproduce import reproduce as make

    if figure not in FIGURES:
        raise InvalidInputError(f"unknown figure {figure!r}: {nearest(figure, FIGURES)}")
    for path in make(figure, out / figure):
        print(path)
