"""The command line's root: what every command hangs on."""

__all__ = ["app"]

from typing import Annotated

import typer

from securesgd import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
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
