"""`securesgd check`: everything that a run folder claims, recomputed."""

__all__ = ["check"]

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import Device, Network, app
from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.check.outcome import CheckResult

_STYLES = {"ok": "green", "FAIL": "bold red", "not checkable": "yellow", "not checked": "dim"}


@app.command(epilog="Example: securesgd check runs/a --dataset data/patients.csv --recompute all")
def check(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    dataset: Annotated[str, typer.Option(help="Where the run's own data are, if not where they were.")] = "",
    recompute: Annotated[
        str,
        typer.Option(help="Certificates of each norm to compute again, chosen at random; or all.", metavar="N|all"),
    ] = "50",
    public_key: Annotated[
        Path | None, typer.Option(help="File of the public key that must have signed the folder.")
    ] = None,
    network: Network = "",
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a run and trust nobody: a line for each claim; exit 1 if one is false. Writes nothing.

    The ledger is replayed, digests are compared, radii, counts and pages are computed again from the rows, and
    sensitivity, accuracy and some of the certificates and votes from the weights.
    """
    from securesgd.run_check import check_run

    result = check_run(
        run, network=network or None, dataset=dataset or None, examples=_parse_count(recompute), public_key=public_key,
        device=device,
    )  # fmt: skip
    if as_json:
        print(json.dumps(result.json(), indent=2))
    elif sys.stdout.isatty():
        _print_table(result)
    else:
        print(result)
    if not result.passed:
        raise typer.Exit(1)


def _parse_count(text: str) -> int | None:
    """Return a number of certificates, None for all. Raises: InvalidInputError if it is neither."""
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdecimal() or len(text) > 18:
        raise InvalidInputError(f"--recompute is {text!r}; valid: a whole number, 0 or more, or all")
    return int(text)


def _print_table(result: "CheckResult") -> None:
    table = Table("outcome", "claim", "what was found")
    for finding in result.findings:
        table.add_row(finding.outcome, finding.claim, finding.words, style=_STYLES[finding.outcome])
    console = Console(highlight=False, markup=False)
    console.print(table)
    failed = len(result.failures)
    console.print(f"{failed} claims are false" if failed else "no claim was found false")
