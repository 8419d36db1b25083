"""`securesgd tune`: the best of a random number of private runs, at the epsilon of the whole search."""

__all__ = ["tune"]

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securesgd.cli.app import Device, Interrupted, Resize, Schema, SkipBad, Target, app, parse_settings
from securesgd.cli.train import print_run
from securesgd.errors import InvalidInputError, printable
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.storage import require_writable

if TYPE_CHECKING:
    from securesgd.tuning import TrialReport

_EXAMPLES = """Examples:

securesgd tune --dataset mnist --method dpsgd --epsilon 3 --set holdout=5000 --try learning_rate=0.5,1,2 --out runs/b

securesgd tune --dataset people.csv --method dpsgd --validate-on public.csv --try steps=200,400 --out runs/c
--try learning_rate=0.5,1 --trials-mean 8 --out runs/people
"""


@app.command(epilog=_EXAMPLES)
def tune(
    out: Annotated[Path, typer.Option(help="Run folder of the chosen run; must be new, or --resume.")],
    tries: Annotated[
        list[str], typer.Option("--try", help="A setting and the values to try; may be repeated.", metavar="KEY=A,B,C")
    ],
    dataset: Annotated[str, typer.Option(help="As of securesgd train.")] = "",
    method: Annotated[str, typer.Option(help="dpsgd, dp-ibp, secure-sgd or secure-sgd-agm.")] = "",
    network: Annotated[
        str, typer.Option(help="A built-in network or package.module:function; the preset's if not given.")
    ] = "",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of the whole search.")] = None,
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
    trials_mean: Annotated[float, typer.Option(help="How many trials there are on average.")] = 5.0,
    trials_shape: Annotated[
        float, typer.Option(help="Of their number: 1 geometric; 0 logarithmic, cheaper and more spread out.")
    ] = 1.0,
    validate_on: Annotated[
        str | None, typer.Option(help="Public examples to compare trials on, instead of --set holdout=N private ones.")
    ] = None,
    score_noise: Annotated[
        float, typer.Option(help="Noise of a score on held-out examples, as a number of examples.")
    ] = 10.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the search in --out: the same options again.")
    ] = False,
    device: Device = "cpu",
    show_scores: Annotated[
        bool, typer.Option("--show-scores", help="Print the score of each trial; private, as all about trials is.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose settings by trying them, within one privacy budget, and keep the best run.

    The number of trials is random and secret; each draws its settings from those of --try. Epsilon is that of the whole
    search, the choice included. Trials are compared on public examples (--validate-on) or, with noise, on examples set
    apart (--set holdout=N). Only the best trial is kept. A search that was stopped goes on by the same command with
    --resume.
    """
    from securesgd.fitted_config import fitted_config
    from securesgd.runtime.machine import keep_memory
    from securesgd.tuning import tune as tune_run

    keep_memory()
    options = {"network": network or None, "epsilon": epsilon, "delta": delta}
    options |= {"target": target, "schema": schema, "resize": resize, "skip_bad": skip_bad or None}
    given = {name: value for name, value in options.items() if value is not None} | parse_settings(changes or [])
    if RunFolder(out).occupied and not resume:  # before data are read
        raise InvalidInputError(f"{out} is not empty; resume its search with --resume, or choose another folder")
    require_writable(out)
    was_complete = RunFolder(out).complete
    fitted = fitted_config(dataset, method, config, **given)
    for note in () if fitted.loaded is None else fitted.loaded.notes:
        print(printable(note), file=sys.stderr)
    print("what is printed about trials is private: epsilon covers the chosen run alone", file=sys.stderr)
    with _stopped_by_signals(out):
        run = tune_run(
            fitted.config,
            out=out,
            tries=_parse_tries(tries),
            trials_mean=trials_mean,
            trials_shape=trials_shape,
            validate_on=validate_on,
            score_noise=score_noise,
            resume=resume,
            loaded=fitted.loaded,
            on_trial=lambda report: _print_trial(report, show_scores),
            device=device,
        )
    if not as_json and not was_complete:
        names = list(run.record["tuning"]["tries"])
        settings = _flat(run.config)
        print("chosen: " + ", ".join(f"{name}={settings[name.rpartition('.')[2]]}" for name in names))
    print_run(run, as_json=as_json, note=f"{out} is finished already" if was_complete else "")


def _flat(config: Any) -> dict[str, Any]:
    """Return all settings of a configuration by name."""
    from dataclasses import asdict

    settings = asdict(config)
    tables = [table for table in settings.values() if isinstance(table, dict)]
    return settings | {name: value for table in tables for name, value in table.items()}


def _parse_tries(tries: list[str]) -> dict[str, list[Any]]:
    """Return the values of --try options. Raises: InvalidInputError if one is not key=value,value or occurs twice."""
    values: dict[str, list[Any]] = {}
    for text in tries:
        name, equals, listed = text.partition("=")
        name, parts = name.strip(), [part.strip() for part in listed.split(",")]
        if not equals or not name or not all(parts):
            raise InvalidInputError(f"--try takes key=value,value, got {text!r}")
        if name in values:
            raise InvalidInputError(f"--try {name} is given twice; valid: all its values in one")
        values[name] = [parse_settings([f"{name}={part}"])[name] for part in parts]
    return values


def _print_trial(report: "TrialReport", show_scores: bool) -> None:
    """Print a line about a trial to standard error."""
    words = [
        f"trial {report.number} of {report.trials}:",
        *(f"{name}={value}" for name, value in report.values.items()),
    ]
    if show_scores:
        known = "weights not finite" if report.score is None else f"score {report.score:.1f} of {report.examples}"
        words.append(f"({known})")
    print(printable(" ".join(words)), file=sys.stderr)


@contextmanager
def _stopped_by_signals(out: Path) -> Iterator[None]:
    """Within the context SIGTERM is as Ctrl-C, and an interruption ends with what to do to go on.

    Raises: Interrupted with that.
    """
    former = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        left = RunFolder(out).occupied
        how = "the same command with --resume goes on" if left else "nothing was released, and nothing is left"
        raise Interrupted(f"the search was stopped; {how}") from None
    finally:
        signal.signal(signal.SIGTERM, former)
