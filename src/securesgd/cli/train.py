"""`securesgd train`: a run folder from a data set and a method."""

__all__ = ["train", "training_progress"]

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from securesgd.cli.app import app
from securesgd.cli.options import settings_of
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError


@app.command(
    epilog="Example: securesgd train --dataset mnist --method secure-sgd --epsilon 2 --out runs/a --set steps=1000"
)
def train(
    out: Annotated[Path, typer.Option(help="Run folder; must be new, or --resume.")],
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, a .npz file or a folder.")] = "",
    method: Annotated[
        str, typer.Option(help="sgd, dpsgd, adlm, secure-sgd, secure-sgd-agm, pixeldp or hgm-pixeldp.")
    ] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget for the training data.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee.")] = None,
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
    from securesgd.run import saved_config, train_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    if resume:
        if dataset or method or config or changes or epsilon is not None or delta is not None:
            raise InvalidInputError("--resume goes on with the run's own configuration; leave the other options out")
        chosen: RunConfig = saved_config(out)
    else:
        asked = {name: value for name, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
        chosen = run_config(dataset, method, config, **asked | settings_of(changes or []))
    with training_progress(chosen.training.epsilon, chosen.training.steps) as on_step:
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


@contextmanager
def training_progress(target: float | None, steps: int) -> Iterator[Any]:
    """Yield a step callback that keeps a progress bar on standard error, if that is a terminal."""
    columns = ("step {task.completed:.0f}/{task.total:.0f}", "{task.description}")
    with progress_bar(*columns, total=steps) as (progress, task):
        held_out = ""

        def on_step(report: Any, score: float | None) -> None:
            nonlocal held_out
            held_out = held_out if score is None else f"  held-out {score:.3f}"
            spent = f"  epsilon {report.epsilon:.3f}" if math.isfinite(report.epsilon) else "  not private"
            budget = f" of {target:g}" if target is not None else ""
            progress.update(task, completed=report.step, description=f"loss {report.loss:.3f}{spent}{budget}{held_out}")

        yield on_step
