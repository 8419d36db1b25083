"""`securesgd plan`: what a privacy budget buys, before any training."""

__all__ = ["plan"]

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import Device, Resize, Schema, SkipBad, Target, app, parse_settings
from securesgd.cli.progress import duration_in_words, progress_bar
from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.config import RunConfig
    from securesgd.planning import Plan

_EXAMPLES = """Examples:

securesgd plan --examples 60000 --epsilon 3 --delta 1e-5

securesgd plan --dataset mnist --method dp-ibp --epsilon 1 --batch-size 1024,4096 --steps 200,400

securesgd plan --dataset people.csv --target diagnosis
"""


@app.command(epilog=_EXAMPLES)
def plan(
    dataset: Annotated[
        str, typer.Option(help="The data to train on: a name, a file or a folder. Gives examples, shape and classes.")
    ] = "",
    examples: Annotated[int | None, typer.Option(help="Number of training examples, without --dataset.")] = None,
    input_shape: Annotated[
        str, typer.Option(help="Of one example, as 1x28x28 or 30; without --dataset.", metavar="SHAPE")
    ] = "1x28x28",
    classes: Annotated[int, typer.Option(help="Number of classes, without --dataset.")] = 10,
    method: Annotated[str, typer.Option(help="dpsgd, secure-sgd, secure-sgd-agm or dp-ibp.")] = "secure-sgd",
    network: Annotated[str, typer.Option(help="A built-in network or package.module:function.")] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee.")] = None,
    batch_size: Annotated[str, typer.Option(help="One or several, as 256,1024.", metavar="NUMBERS")] = "",
    steps: Annotated[str, typer.Option(help="One or several, as 200,400.", metavar="NUMBERS")] = "",
    target: Target = None,
    schema: Schema = None,
    resize: Resize = None,
    skip_bad: SkipBad = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of train, as key=value.", metavar="KEY=VALUE")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, as a run folder has.")] = None,
    timed: Annotated[bool, typer.Option("--time/--no-time", help="Time a few steps on this machine.")] = True,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """What a budget buys: noise, and minutes on this machine, for each batch size and number of steps.

    Nothing is trained and no budget is spent. Noise multipliers are those that train would use. Steps are timed with
    random data, so that another load on the machine changes the minutes.
    """
    from securesgd.config import run_config
    from securesgd.fitted_config import fitted_config
    from securesgd.planning import plan_run

    options = {"network": network or None, "epsilon": epsilon, "delta": delta}
    options |= {"target": target, "schema": schema, "resize": resize, "skip_bad": skip_bad or None}
    given = {name: value for name, value in options.items() if value is not None} | parse_settings(changes or [])
    if dataset or (config is not None and examples is None):
        if examples is not None:
            raise InvalidInputError(f"--examples is {examples}, but --dataset has its own number; leave one out")
        fitted = fitted_config(dataset, method, config, **given)
        chosen, count, shape, width = fitted.config, fitted.examples, fitted.input_shape, fitted.classes
    else:
        if examples is None or examples < 2:
            raise InvalidInputError(f"--examples is {examples}; valid: a number from 2 on, or --dataset")
        count, shape, width = examples, _parse_shape(input_shape), classes
        chosen = run_config(_UNNAMED, method, config, fit_to=(count, shape), **given)
    with progress_bar("{task.description}", description="planning", total=1.0, transient=True) as (progress, task):
        result = plan_run(
            chosen, count, shape, width,
            batch_sizes=_whole("batch-size", batch_size), steps=_whole("steps", steps), timed=timed,
            device=device,
            on_progress=lambda words, share: progress.update(task, completed=share, description=words),
        )  # fmt: skip
    if as_json:
        print(json.dumps(result.json() | {"method": chosen.method, "network": chosen.network}, indent=2))
    else:
        _print_plan(result, chosen, "×".join(map(str, shape)))


_UNNAMED = "data.npz"
"""Stands for data that are not given: any name without a preset."""


def _parse_shape(text: str) -> tuple[int, ...]:
    sizes = text.lower().replace("×", "x").split("x")
    if not all(size.strip().isdigit() and int(size) > 0 for size in sizes) or len(sizes) not in (1, 3):
        raise InvalidInputError(f"--input-shape is {text!r}; valid: channels, height and width as 1x28x28, or 30")
    return tuple(int(size) for size in sizes)


def _whole(name: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not part.isdigit() or int(part) < 1:
            raise InvalidInputError(f"--{name} is {text!r}; valid: whole numbers from 1 on, as 256,1024")
    return [int(part) for part in parts]


def _print_plan(result: "Plan", config: "RunConfig", shape: str) -> None:
    console = Console(highlight=False)
    table = Table(
        title=f"epsilon {result.epsilon:g}, delta {result.delta:g}, {result.examples:,} examples\n{config.method}, "
        f"{config.network} on {shape} inputs, {result.weights:,} weights",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("batch", "steps", "passes", "noise\nmultiplier", "noise\n/batch", "signal\n/noise", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in result.rows:
        words = "" if row.warning is None else "[yellow]too noisy[/]"
        style = "bold" if row == result.suggested else ""
        minutes = "–" if row.minutes is None else duration_in_words(60 * row.minutes)
        table.add_row(
            f"{row.batch_size:,}", f"{row.steps:,}", f"{row.passes:.1f}", f"{row.noise_multiplier:.4f}",
            f"{row.noise_per_example:.5f}", f"{row.signal_to_noise:.1f}", minutes,
            "suggested" if row == result.suggested else words, style=style,
        )  # fmt: skip
    console.print(table)
    if result.suggested.warning:
        console.print(
            f"[yellow]too noisy: {result.suggested.warning},[/] in the best of these rows too. A larger epsilon, more "
            "examples, or a network with fewer weights (--network linear) would help.",
            soft_wrap=True,
        )
    options = [] if config.dataset == _UNNAMED else ["--dataset", config.dataset]
    for name in () if config.data is None else config.data.changed:
        value = getattr(config.data, name)
        options += ["--set", f"{name}={json.dumps(value) if isinstance(value, bool) else value}"]
    print(f"securesgd train {shlex.join([*options, '--method', config.method])} {result.settings} --out runs/a")
