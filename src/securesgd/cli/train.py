"""`securesgd train`: a run folder from a data set and a method."""

__all__ = ["print_run", "train", "training_progress"]

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securesgd.cli.app import Device, Interrupted, Resize, Schema, SkipBad, Target, app, parse_settings, print_balance
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError, printable
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.storage import require_writable

if TYPE_CHECKING:
    from securesgd.config import RunConfig
    from securesgd.run import Run
    from securesgd.training.loop import StepReport


_EXAMPLES = """Examples:

securesgd train --dataset mnist --method secure-sgd --epsilon 2 --out runs/a --set steps=1000

securesgd train --dataset people.csv --target diagnosis --method dp-ibp --out runs/people

securesgd train --dataset photos/ --resize 64x64 --skip-bad --method dpsgd --out runs/photos

securesgd train --resume --out runs/a
"""


@app.command(epilog=_EXAMPLES)
def train(
    out: Annotated[Path, typer.Option(help="Run folder; must be new, or --resume or --finish.")],
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, a table (.csv, .parquet), a folder of images, a .npz file or "
            "package.module:function."
        ),
    ] = "",
    method: Annotated[
        str, typer.Option(help="sgd, dpsgd, ibp, dp-ibp, adlm, secure-sgd, secure-sgd-agm, pixeldp or hgm-pixeldp.")
    ] = "",
    network: Annotated[
        str, typer.Option(help="A built-in network or package.module:function; the preset's if not given.")
    ] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget for the training data.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the guarantee.")] = None,
    target: Target = None,
    schema: Schema = None,
    resize: Resize = None,
    skip_bad: SkipBad = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, as a run folder has, or securesgd config prints.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as key=value; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="End the stopped run in --out: its weights as they are, epsilon as paid.")
    ] = False,
    device: Device = "cpu",
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard: epsilon and held-out accuracy, never the loss.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a network, private for its data and ready to be certified, into a run folder.

    Settings come from the preset of data set and method, then --config, then the options here; for data of your own the
    preset fits their number and shape. The run can be stopped at any moment (Ctrl-C, kill, power cut) and resumed with
    --resume, or ended there with --finish; what was spent is in its ledger. Under torchrun processes share the work:
    [dim]torchrun --nproc-per-node 2 -m securesgd train --dataset mnist --method dpsgd --out runs/a[/]
    A job that torchrun restarts (--max-restarts) resumes its run by itself.
    """
    from securesgd.config import resumed_config
    from securesgd.fitted_config import fitted_config
    from securesgd.run_training import train_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.runtime.processes import process_group

    if resume and finish:
        raise InvalidInputError("--resume and --finish are both given; valid: one of them")
    keep_memory()
    options = {"network": network or None, "epsilon": epsilon, "delta": delta}
    options |= {"target": target, "schema": schema, "resize": resize, "skip_bad": skip_bad or None}
    given = {name: value for name, value in options.items() if value is not None} | parse_settings(changes or [])
    with process_group() as processes:
        loaded = None
        if resume or finish:
            named = {"dataset": dataset, "method": method, "config": config and str(config)}
            named = {name: value for name, value in named.items() if value}
            chosen = processes.on_first(lambda: resumed_config(out, named | given))
        else:
            restarted = _is_restart()
            if not restarted:
                processes.on_first(lambda: _require_free(out))  # before data are read
            fitted = processes.together(lambda: fitted_config(dataset, method, config, **given))
            chosen, loaded = fitted.config, fitted.loaded
            resume = restarted and processes.on_first(lambda: _has_same_run(out, chosen))
            for note in loaded.notes if loaded is not None and processes.is_first else ():
                print(printable(note), file=sys.stderr)
        if chosen.public_steps and processes.is_first and not RunFolder(out).started:
            print(f"first weights: {chosen.public_steps} steps on {chosen.public_dataset}, public", file=sys.stderr)
        was_complete = processes.on_first(lambda: RunFolder(out).complete)
        with (
            _stopped_by_signals(chosen, out, device),
            training_progress(chosen.training.epsilon, chosen.training.steps, tensorboard) as on_step,
        ):
            run = train_run(chosen, out, loaded=loaded, resume=resume, finish=finish, on_step=on_step, device=device)
        if processes.is_first:
            print_run(run, as_json=as_json, note=f"{out} is finished already" if was_complete else "")


def _is_restart() -> bool:
    """Return whether torchrun started this job again, after a process of it had ended."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _has_same_run(out: Path, config: "RunConfig") -> bool:
    """Return whether there is a run to resume, which a job before this one started with the same settings.

    Raises: InvalidInputError if there is anything else: it may not be this job's.
    """
    from securesgd.config import saved_config

    if RunFolder(out).occupied and saved_config(out) != config:
        _require_free(out)
    return RunFolder(out).occupied


def _require_free(out: Path) -> None:
    if RunFolder(out).occupied:
        raise InvalidInputError(f"{out} is not empty; resume it with --resume, or choose another folder")
    require_writable(out)


def print_run(run: "Run", *, as_json: bool, note: str) -> None:
    """Print the privacy statement and the accuracy of a finished run."""
    accuracy, images = run.test_accuracy, run.test_images  # before anything is printed: metrics.jsonl may be damaged
    steps, planned = run.record.get("steps"), run.config.training.steps
    if as_json:
        record = {"folder": str(run.path), "steps": steps, "test_accuracy": accuracy, "test_images": images}
        record["balance"] = None if run.test_balance is None else run.test_balance.json(run.record["class_names"])
        print(json.dumps(record | {"statement": run.privacy.json()}, indent=2))
        return
    if note:
        print(note)
    print(run.privacy)
    if steps is not None and steps < planned:
        print(f"ended after step {steps} of {planned}")
    print(f"accuracy {accuracy:.4f} on {images} test examples; everything is in {run.path}")
    if run.test_balance is not None:
        print_balance(run.test_balance, run.record["class_names"])


@contextmanager
def _stopped_by_signals(config: "RunConfig", out: Path, device: str) -> Iterator[None]:
    """Within the context SIGTERM is as Ctrl-C, and an interruption ends with the commands by which to go on.

    Raises: Interrupted with them.
    """
    from securesgd.training.interrupt import TrainingInterrupted

    former = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as stop:
        is_whole = isinstance(stop, TrainingInterrupted)
        words = [printable(str(stop)) if is_whole else "interrupted"]
        if RunFolder(out).occupied:
            words.append(f"  to resume it:       {_command('--resume', config, out, device)}")
        else:
            words[0] += " before the first step; nothing was released, and nothing is left"
        if is_whole:
            words.append(f"  to end it here:     {_command('--finish', config, out, device)}")
        raise Interrupted("\n".join(words)) from None
    finally:
        signal.signal(signal.SIGTERM, former)


def _command(what: str, config: "RunConfig", out: Path, device: str) -> str:
    """Return the command that resumes or finishes a run; code from outside is named again, as it must be."""
    words = ["securesgd", "train", what, "--out", str(out)]
    for name, path in config.import_paths.items():
        words += [f"--{name}", path] if name in ("dataset", "network") else ["--set", f"{name}={path}"]
    return shlex.join(words + (["--device", device] if device != "cpu" else []))


@contextmanager
def training_progress(
    target: float | None, steps: int, tensorboard: Path | None = None
) -> Iterator[Callable[["StepReport"], Any]]:
    """Yield a step callback that shows the progress on standard error, and writes it for TensorBoard if asked to.

    The loss is not shown: a terminal is read over shoulders, a log file is kept, and epsilon does not cover it.
    """
    from securesgd.theory.rounding import round_up

    log: Callable[[StepReport], Any] | None = None
    if tensorboard is not None:
        from securesgd.training.tensorboard import tensorboard_logger

        log = tensorboard_logger(tensorboard)
    columns = ("step {task.completed:.0f}/{task.total:.0f}", "{task.description}")
    with progress_bar(*columns, total=steps) as (progress, task):
        held_out = ""

        def on_step(report: "StepReport") -> None:
            nonlocal held_out
            held_out = held_out if report.held_out is None else f"  held-out {report.held_out:.3f}"
            epsilon = report.epsilon
            spent = f"epsilon {round_up(epsilon, decimals=3):.3f}" if math.isfinite(epsilon) else "not private"
            budget = f" of {target:g}" if target is not None else ""
            progress.update(task, completed=report.step, description=f"{spent}{budget}{held_out}")
            if log is not None:
                log(report)

        yield on_step
