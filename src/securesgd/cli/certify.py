"""`securesgd certify`: a proven radius for every test example of a run."""

__all__ = ["certify"]

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import app, parse_numbers
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError, nearest


@app.command(epilog="Example: securesgd certify runs/a --norm linf,l2 --draws 10000 --examples 500")
def certify(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    norm: Annotated[
        str, typer.Option(help="linf, l2 or l1; several as linf,l2 share their draws. The run's own if not given.")
    ] = "",
    draws: Annotated[
        int, typer.Option(help="Noise draws per example; the most, with --radius or --tolerance.")
    ] = 10_000,
    failure_prob: Annotated[float, typer.Option(help="Of everything said about one example.")] = 0.001,
    examples: Annotated[int, typer.Option(help="Test examples, from the first; 0 for all.")] = 500,
    rule: Annotated[str, typer.Option(help="Shown: tight, analytic, extended, classic, as-published or all.")] = "all",
    radius: Annotated[
        float | None, typer.Option(help="Only answer: is it proven at this radius? Needs far fewer draws.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="Stop when the radius is known to within this.")] = None,
    at_radii: Annotated[str, typer.Option(help="Radii of the table, as 0.01,0.05.", metavar="NUMBERS")] = "",
    selection_draws: Annotated[int, typer.Option(help="Draws that choose the class, apart from the others.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the noise that is voted under.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Replace certificates made by other settings.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Then search the certified balls for a counter-example; exit 1 if there is one."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Certify predictions: the class, and a radius within which no change of the input can make it another one.

    Writes certificates.csv (a row per example), certificates.json and certificates.png into the run folder. Stop
    whenever you like: the same command goes on where it was. Under torchrun all processes share the work:
    [dim]torchrun --nproc-per-node 4 --no-python securesgd certify runs/a[/]
    """
    from securesgd.certificates.record import ALL_RULES, CertifySettings
    from securesgd.certificates.run_certificates import CERTIFICATES, certify_run
    from securesgd.certificates.summary import certified_summary
    from securesgd.data.load import load
    from securesgd.models.noisy import NoisyNetwork
    from securesgd.report.plots import certified_curves_figure
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.runtime.processes import Processes
    from securesgd.runtime.tables import read_rows

    keep_memory()
    loaded = load_run(run)
    config, model = loaded.config, loaded.model
    if not isinstance(model, NoisyNetwork):
        raise InvalidInputError(
            f"{run} was trained with {config.method}, without noise in the first layer: there is nothing to certify"
        )
    norms = [part.strip() for part in norm.split(",") if part.strip()] or [config.robustness.norm]
    settings = CertifySettings(
        norm=norms[0], draws=draws, failure_prob=failure_prob, selection_draws=selection_draws, seed=seed,
        radius=radius, tolerance=tolerance,
    )  # fmt: skip
    for name in norms[1:]:
        CertifySettings(norm=name)
    radii = parse_numbers("at-radii", at_radii) or None
    if radii and not all(0 <= radius < math.inf for radius in radii):
        raise InvalidInputError(f"--at-radii must be radii >= 0, got {at_radii!r}")
    if examples < 0:
        raise InvalidInputError(f"examples is {examples}; valid: 1 or more, or 0 for all")
    if rule not in (*ALL_RULES, "all"):
        raise InvalidInputError(f"unknown rule {rule!r}: {nearest(rule, [*ALL_RULES, 'all'])}")
    data = load(config.dataset, holdout=config.holdout, seed=config.seed)
    count = min(examples or len(data.test_targets), len(data.test_targets))
    with _together(), _progress() as show:
        writes = Processes().is_first
        records = certify_run(
            run, model, data.test_inputs, data.test_targets, norms, settings,
            examples=count, again=again, on_progress=show,
        )  # fmt: skip
    if not writes:
        return
    every = read_rows(run / CERTIFICATES)
    certified_curves_figure(every, run / "certificates.png")
    shown = {}
    for name in norms:
        rows = [row for row in every if row["norm"] == name and row["index"] < count]
        shown[name] = certified_summary(rows, radii if radii else ([radius] if radius else None))
    checks = {}
    if check:
        for name in norms:
            rows = [row for row in every if row["norm"] == name and row["index"] < count]
            checks[name] = _checked(run, model, data.test_inputs, rows, failure_prob, seed)
    if as_json:
        found = {n: {**records[n], "summary": shown[n]} | ({"check": checks[n]} if check else {}) for n in norms}
        print(json.dumps(found, indent=2))
    else:
        for name in norms:
            _print_summary(name, shown[name], rule)
            print(records[name]["guarantee"])
        for name, result in checks.items():
            for which, searched in result["rules"].items():
                print(f"check of {name} radii, rule {which}: {searched['in_words']}")
        print(f"certificates of {count} examples are in {run / CERTIFICATES}")
    if not all(result["sound"] for result in checks.values()):
        raise typer.Exit(1)


def _checked(run: Path, model: Any, inputs: Any, rows: list[dict[str, Any]], failure_prob: float, seed: int) -> Any:
    """Return the result of attacking the certificates of one norm, with progress."""
    from securesgd.attacks.falsify import check_run
    from securesgd.certificates.run_certificates import SENSITIVITIES
    from securesgd.certificates.weights import known_sensitivity

    worst = known_sensitivity(model, rows[0]["norm"], run / SENSITIVITIES).direction
    words = "searching certified balls"
    with progress_bar("{task.description}", description=words, total=1.0) as (progress, task):

        def show(which: str, share: float) -> None:
            progress.update(task, completed=share, description=f"searching {which} balls")

        return check_run(
            run,
            model,
            inputs,
            rows,
            certificate_failure_prob=failure_prob,
            direction=worst,
            seed=seed,
            on_progress=show,
        )


@contextmanager
def _together() -> Iterator[None]:
    """Within the context this is one of several processes, if torchrun started it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _progress() -> Iterator[Callable[[float, int], None]]:
    """Yield a callback that keeps a progress bar on standard error, if that is a terminal."""
    columns = ("example {task.completed:.0f}/{task.total}", "{task.description}")
    with progress_bar(*columns, description="proving the sensitivity") as (progress, task):

        def show(done: float, of: int) -> None:
            speed = progress.tasks[0].speed or 0.0
            progress.update(task, completed=done, total=of, description=f"{speed:.1f} examples/s")

        yield show


def _print_summary(norm: str, summary: dict[str, Any], rule: str) -> None:
    found = summary["certified_accuracy"]
    title = f"certified accuracy in {norm}, {summary['examples']} examples, 95 % intervals"
    table = Table(title=title, title_justify="left")
    table.add_column("rule", no_wrap=True)
    for radius in found["tight"]:
        table.add_column(f"at {radius}", justify="right")
    table.add_column("mean radius", justify="right")
    for name in found if rule == "all" else [rule]:
        cells = [f"{x['share']:.3f}\n[dim]{x['lower']:.2f}–{x['upper']:.2f}[/]" for x in found[name].values()]
        suffix = "\n[yellow]no guarantee[/]" if name == "as-published" else ""
        table.add_row(name + suffix, *cells, f"{summary['average_certified_radius'][name]:.4f}")
    console = Console()
    console.print(table)
    accuracy = summary["accuracy"]
    console.print(
        f"right: {accuracy['share']:.3f} ({accuracy['lower']:.3f}–{accuracy['upper']:.3f}); abstained: "
        f"{summary['abstained']:.3f}; draws per example: {summary['draws_mean']:,.0f}",
        highlight=False,
    )
