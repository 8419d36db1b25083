"""`securesgd train`: a run folder from a data set and a method."""

__all__ = ["train", "training_progress"]

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from securesgd.cli.app import app, parse_settings
from securesgd.cli.progress import progress_bar


@app.command(
    epilog="Example: securesgd train --dataset mnist --method secure-sgd --epsilon 2 --out runs/a --set steps=1000"
)
def train(
    out: Annotated[Path, typer.Option(help="Run folder; must be new, or --resume.")],
    dataset: Annotated[
        str,
        typer.Option(help="digits, mnist, fashion-mnist, cifar10, a .npz file, a folder or package.module:function."),
    ] = "",
    method: Annotated[
        str, typer.Option(help="sgd, dpsgd, adlm, secure-sgd, secure-sgd-agm, pixeldp or hgm-pixeldp.")
    ] = "",
    network: Annotated[
        str, typer.Option(help="A built-in network or package.module:function; the preset's if not given.")
    ] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget for the training data.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, as a run folder has.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as key=value; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a network, private for its data and ready to be certified, into a run folder.

    Settings come from the preset of data set and method, then --config, then the options here. The run can be stopped
    at any moment (Ctrl-C, kill, power cut) and resumed with --resume; what was spent is in its ledger.
    """
    from securesgd.config import resumed_config, run_config
    from securesgd.run_training import train_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    options = {"network": network or None, "epsilon": epsilon, "delta": delta}
    given = {name: value for name, value in options.items() if value is not None} | parse_settings(changes or [])
    if resume:
        named = {"dataset": dataset, "method": method, "config": config and str(config)}
        chosen = resumed_config(out, {name: value for name, value in named.items() if value} | given)
    else:
        chosen = run_config(dataset, method, config, **given)
    with training_progress(chosen.training.epsilon, chosen.training.steps) as on_step:
        run = train_run(chosen, out, resume=resume, on_step=on_step)
    accuracy, images = run.test_accuracy, run.test_images  # before anything is printed: metrics.jsonl may be damaged
    if as_json:
        record = {"folder": str(out), "test_accuracy": accuracy, "test_images": images}
        print(json.dumps(record | {"statement": run.privacy.json()}, indent=2))
        return
    print(run.privacy)
    print(f"accuracy {accuracy:.4f} on {images} test images; everything is in {out}")


@contextmanager
def training_progress(target: float | None, steps: int) -> Iterator[Any]:
    """Yield a step callback that keeps a progress bar on standard error, if that is a terminal."""
    columns = ("step {task.completed:.0f}/{task.total:.0f}", "{task.description}")
    with progress_bar(*columns, total=steps) as (progress, task):
        held_out = ""

        def on_step(report: Any) -> None:
            nonlocal held_out
            held_out = held_out if report.held_out is None else f"  held-out {report.held_out:.3f}"
            spent = f"  epsilon {report.epsilon:.3f}" if math.isfinite(report.epsilon) else "  not private"
            budget = f" of {target:g}" if target is not None else ""
            progress.update(task, completed=report.step, description=f"loss {report.loss:.3f}{spent}{budget}{held_out}")

        yield on_step
