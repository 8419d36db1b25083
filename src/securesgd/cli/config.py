"""`securesgd config`: the settings of a data set and method, as a file to edit."""

__all__ = ["config"]

from pathlib import Path
from typing import Annotated

import typer

from securesgd.cli.app import Resize, Schema, SkipBad, Target, app, parse_settings
from securesgd.errors import InvalidInputError


@app.command(epilog="Example: securesgd config --template --dataset mnist --method dp-ibp > mine.toml")
def config(
    template: Annotated[
        bool, typer.Option("--template/--plain", help="With a comment on every setting, or the settings alone.")
    ] = True,
    dataset: Annotated[str, typer.Option(help="The data to train on: a name, a file or a folder.")] = "digits",
    method: Annotated[str, typer.Option(help="As of train.")] = "secure-sgd",
    target: Target = None,
    schema: Schema = None,
    resize: Resize = None,
    skip_bad: SkipBad = False,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file to start from.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as key=value; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write, which must be new; printed if not given.")] = None,
) -> None:
    """Print the settings of a data set and method as TOML, each with its value and what it means.

    The user's own data are read, so that batch size, steps and network fit them.
    """
    from securesgd.config_template import commented_toml
    from securesgd.fitted_config import fitted_config
    from securesgd.runtime.storage import write_whole

    if out is not None and out.exists():
        raise InvalidInputError(f"{out} exists; give the path of a new file")
    options = {"target": target, "schema": schema, "resize": resize, "skip_bad": skip_bad or None}
    given = {name: value for name, value in options.items() if value is not None} | parse_settings(changes or [])
    chosen = fitted_config(dataset, method, file, **given).config
    text = commented_toml(chosen) if template else chosen.to_toml()
    if out is None:
        print(text, end="")
    else:
        write_whole(out, text.encode())
        print(out)
