"""`securesgd noise`: the noise scale of a Gaussian mechanism."""

__all__ = ["DEFAULT_DELTA", "noise", "print_noise_table"]

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import app, parse_numbers
from securesgd.errors import InvalidInputError

DEFAULT_DELTA = 1e-5


@app.command(epilog="Example: securesgd noise --epsilon 0.5,1,4 --delta 1e-5")
def noise(
    epsilon: Annotated[str, typer.Option(help="Privacy budget; several as 0.5,1,4.", metavar="NUMBERS")] = "",
    delta: Annotated[
        str,
        typer.Option(help="Delta of the guarantee; 1e-5 if none is given.", metavar="NUMBERS"),
    ] = "",
    sigma: Annotated[str, typer.Option(help="The noise you have.", metavar="NUMBERS")] = "",
    sensitivity: Annotated[float, typer.Option(help="l2 sensitivity of the query.")] = 1.0,
    mechanism: Annotated[str, typer.Option(help="classic, extended, analytic or all.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print full-precision rows.")] = False,
) -> None:
    """Noise scale of a Gaussian mechanism, or the privacy a given noise buys.

    Two of epsilon, delta and sigma are given, the third is answered:

    which sigma?    [dim]securesgd noise --epsilon 4 --delta 1e-5[/]
    which epsilon?  [dim]securesgd noise --sigma 2 --delta 1e-5[/]
    which delta?    [dim]securesgd noise --sigma 2 --epsilon 1[/]
    """
    from securesgd.theory.noise_table import noise_rows

    budgets, breaks, stds = (
        parse_numbers(*named) for named in (("epsilon", epsilon), ("delta", delta), ("sigma", sigma))
    )
    if not budgets and not stds:
        raise InvalidInputError(
            "give --epsilon (which sigma?) or --sigma (which epsilon, or with --epsilon which delta?)"
        )
    if not breaks and not (budgets and stds):
        breaks = [DEFAULT_DELTA]
    rows = noise_rows(epsilon=budgets, delta=breaks, sigma=stds, sensitivity=sensitivity, mechanism=mechanism)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print_noise_table(rows, answer="sigma" if not stds else "epsilon" if not budgets else "delta")


def print_noise_table(rows: list[dict[str, Any]], answer: str) -> None:
    """Print the rows, the answered column in bold and rounded up: a printed sigma is as private as the exact one."""
    from securesgd.theory.rounding import round_up

    table = Table(title=f"{answer} of the Gaussian mechanism, rounded up", title_justify="left")
    for column in ("epsilon", "delta", "sigma", "mechanism"):
        table.add_column(column, justify="left" if column == "mechanism" else "right")
    for row in rows:
        cells = {name: f"{row[name]:g}" if row[name] is not None else "—" for name in ("epsilon", "delta", "sigma")}
        if row.get("note") is None:
            cells[answer] = f"[bold]{round_up(row[answer]):.6g}[/]"
        suffix = " [dim](not proven here)[/]" if row.get("note") else ""
        table.add_row(*cells.values(), row["mechanism"] + suffix)
    Console().print(table)
