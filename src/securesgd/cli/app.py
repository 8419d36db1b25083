"""What commands share: the root they are registered with, options, option values, and the words about an accuracy."""

__all__ = [
    "Dataset",
    "Device",
    "Interrupted",
    "Network",
    "Resize",
    "Schema",
    "SkipBad",
    "Target",
    "app",
    "parse_numbers",
    "parse_settings",
    "print_balance",
]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from securesgd import __version__
from securesgd.errors import InvalidInputError
from securesgd.runtime.storage import parse_json

if TYPE_CHECKING:
    from securesgd.theory.class_balance import ClassBalance

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train networks that are private for their data and certify every prediction.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"securesgd {__version__}")
        raise typer.Exit


Network = Annotated[
    str, typer.Option(help="The run's own network as package.module:function or file.py:function, if it has one.")
]
Dataset = Annotated[
    str, typer.Option(help="Test data instead of the run's own: name, path or package.module:function.")
]

Target = Annotated[str | None, typer.Option(help="Of a table: the column of the class.")]
Schema = Annotated[
    str | None, typer.Option(help="Of a table: its public bounds and categories; NAME.schema.toml or schema.toml.")
]
Resize = Annotated[str | None, typer.Option(help="Of a folder: make all images this size.", metavar="WIDTHxHEIGHT")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Of a folder: leave out files that cannot be used.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A command was interrupted and has something to say about it; exit code 130."""


_MOST_NUMBERS = 1000
"""Of one option; each is a row of a table, or an attack of minutes."""


def parse_settings(changes: list[str]) -> dict[str, Any]:
    """Return the settings of --set options: numbers and true/false as such, everything else as text.

    Raises: InvalidInputError if an option is not key=value, has an option of its own or is null.
    """
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidInputError(f"--set takes key=value, got {change!r}")
        if name in ("dataset", "method"):
            raise InvalidInputError(f"--set {change}: use --{name} {text}")
        try:
            values[name] = parse_json(text)
        except ValueError:
            values[name] = text.strip()
        if values[name] is None:
            raise InvalidInputError(f"--set {change}: null is not a value; leave the setting out to have its default")
    return values


def parse_numbers(name: str, text: str) -> list[float]:
    """Return the numbers of an option like 0.5,1,4. Raises: InvalidInputError if there are others or too many."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidInputError(f"--{name} must be a number or numbers like 0.5,1,4, got {text!r}") from None
    if len(values) > _MOST_NUMBERS:
        raise InvalidInputError(f"--{name} has {len(values):,} numbers; valid: at most {_MOST_NUMBERS:,}")
    return values


def print_balance(balance: "ClassBalance", class_names: Sequence[str], about: str = "") -> None:
    """Print what an accuracy is worth: that of always giving one answer, recall by class, and a warning in red."""
    from securesgd.theory.class_balance import WARNING

    console = Console(highlight=False)
    for number, line in enumerate(balance.lines(class_names)):
        style = "bold red" if line.startswith(WARNING) else None
        console.print(about + line if number == 0 else line, style=style, markup=False, soft_wrap=True)
