"""`securesgd certify`: a proven radius for every test example of a run."""

__all__ = ["certify"]

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import Dataset, Device, Network, app, parse_numbers, print_balance
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError, nearest, printable
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.run_folder import CERTIFICATES, COLUMN_RADII

if TYPE_CHECKING:
    from securesgd.run import Run


_EXAMPLES = """Examples:

securesgd certify runs/a --norm linf,l2 --draws 10000 --examples 500

securesgd certify runs/a --family interval --radius 0.1 --bounds best

securesgd certify runs/table --box "5,10%,0" --input-range none
"""


@app.command(epilog=_EXAMPLES)
def certify(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    family: Annotated[
        str,
        typer.Option(
            help="smoothing: by votes of a noisy network. interval: by bounds, for certain and without draws, in linf; "
            "of a noisy network, without its noise. By the model if not given."
        ),
    ] = "",
    norm: Annotated[
        str, typer.Option(help="linf, l2 or l1; several as linf,l2 share their draws. The run's own if not given.")
    ] = "",
    draws: Annotated[
        int, typer.Option(help="Noise draws per example; the most, with --radius or --tolerance.")
    ] = 10_000,
    failure_prob: Annotated[float, typer.Option(help="Of everything stated about one example.")] = 0.001,
    examples: Annotated[int, typer.Option(help="Test examples, from the first; 0 for all.")] = 500,
    rule: Annotated[
        str,
        typer.Option(
            help="Shown: tight, analytic, extended, classic, as-published or all; by intervals tight, interval or "
            "linear. A rule from outside, as "
            "package.module:function, is computed and stored too, without guarantee of this package."
        ),
    ] = "all",
    radius: Annotated[
        float | None, typer.Option(help="Only decide whether this radius is proven. Needs far fewer draws.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="Stop when the radius is known to within this.")] = None,
    bounds: Annotated[str, typer.Option(help="Of intervals: best, or interval, which is faster and weaker.")] = "best",
    box: Annotated[
        str,
        typer.Option(
            help="Of intervals, for tables: how far each column may be off, as 5,10%,0. Radii are shares of this box.",
            metavar="WIDTHS",
        ),
    ] = "",
    input_range: Annotated[
        str,
        typer.Option(
            help="What the inputs are within, as 0,1; none: any numbers. As in training if not given.",
            metavar="LOW,HIGH",
        ),
    ] = "",
    at_radii: Annotated[str, typer.Option(help="Radii of the table, as 0.01,0.05.", metavar="NUMBERS")] = "",
    selection_draws: Annotated[int, typer.Option(help="Draws that choose the class; they are not counted.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Replace certificates made with other settings.")] = False,
    falsify: Annotated[
        bool,
        typer.Option("--falsify", help="Then search certified balls for a counter-example; exit 1 if there is one."),
    ] = False,
    network: Network = "",
    dataset: Dataset = "",
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Certify predictions: the class, and a radius within which no change of the input can make it another one.

    A noisy network is certified by the votes of its draws, any other by interval bounds, which are certain.
    Writes certificates.csv (a row per example), certificates.json and certificates.png into the run folder. Stop
    whenever you like: the same command resumes where it stopped. Under torchrun all processes share the work:
    [dim]torchrun --nproc-per-node 4 -m securesgd certify runs/a[/]
    """
    from securesgd.certificates.record import CertifySettings
    from securesgd.certificates.rules import INTERVAL, INTERVAL_RULES
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.runtime.processes import process_group
    from securesgd.theory.certificates import CERTIFICATE_RULES

    keep_memory()
    with ExitStack() as stack:
        processes = stack.enter_context(process_group())
        loaded = processes.together(
            lambda: load_run(run, network=network or None, dataset=dataset or None, device=device)
        )
        by_intervals = CertifySettings(family=family or None).for_model(loaded.model).family == INTERVAL
        known = [*(INTERVAL_RULES if by_intervals else CERTIFICATE_RULES), "all"]
        if rule not in known and (by_intervals or not is_import_path(rule)):
            also = "" if by_intervals else ", or an import path like package.module:function"
            raise InvalidInputError(f"unknown rule {rule!r}: {nearest(rule, known)}{also}")
        show = stack.enter_context(_progress("bounding" if by_intervals else "proving the sensitivity"))
        result = loaded.certify(
            norms=_words(norm) or None, family=family or None, examples=examples,
            at_radii=parse_numbers("at-radii", at_radii), rules=[rule] if is_import_path(rule) else [], again=again,
            draws=draws, failure_prob=failure_prob, selection_draws=selection_draws, seed=seed, radius=radius,
            tolerance=tolerance, bounds=bounds, box=tuple(_words(box)) or None, on_progress=show,
            input_range=_parse_range(input_range) if input_range else loaded.input_range,
        )  # fmt: skip
    if not processes.is_first:
        return
    searches = {name: _falsify(loaded, name, result.examples, seed) for name in result.records} if falsify else {}
    class_names = loaded.record["class_names"]
    if as_json:
        records = result.json(class_names).items()
        print(json.dumps({name: x | ({"falsify": searches[name]} if falsify else {}) for name, x in records}, indent=2))
    else:
        for name, summary in result.summaries.items():
            _print_summary(name, summary, rule, without_noise=result.records[name].get("without_noise", False))
            print_balance(result.balance(name), class_names)
            print(result.records[name]["guarantee"])
            _print_columns(result.rows_in(name), loaded.record)
        for name, searched in searches.items():
            for which, search in searched["rules"].items():
                print(f"search of {name} balls, rule {which}: {search['in_words']}")
        print(f"certificates of {result.examples} examples are in {run / CERTIFICATES}")
    if not all(searched["sound"] for searched in searches.values()):
        raise typer.Exit(1)


def _falsify(run: "Run", norm: str, examples: int, seed: int) -> dict[str, Any]:
    """Return the result of attacking the certificates of one norm, or of the interval family, with progress."""
    from securesgd.certificates.rules import INTERVAL, SMOOTHING

    with progress_bar("{task.description}", description="searching certified balls", total=1.0) as (progress, task):

        def show(which: str, share: float) -> None:
            progress.update(task, completed=share, description=f"searching {which} balls")

        if norm == INTERVAL:
            return run.falsify(family=INTERVAL, examples=examples, seed=seed, on_progress=show)
        return run.falsify(norm=norm, family=SMOOTHING, examples=examples, seed=seed, on_progress=show)


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_range(text: str) -> tuple[float, float] | None:
    """Return the range of the inputs. Raises: InvalidInputError if it is not two numbers, the smaller first."""
    if text.strip().lower() == "none":
        return None
    ends = parse_numbers("input-range", text)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidInputError(f"--input-range is {text!r}; valid: two numbers like 0,1, the smaller first, or none")
    return ends[0], ends[1]


@contextmanager
def _progress(before: str) -> Iterator[Callable[[float, int], None]]:
    """Yield a callback that keeps a progress bar on standard error, if that is a terminal."""
    columns = ("example {task.completed:.0f}/{task.total}", "{task.description}")
    with progress_bar(*columns, description=before) as (progress, task):

        def show(done: float, of: int) -> None:
            progress.update(task, completed=done, total=of, description=_speed_text(progress.tasks[0].speed))

        yield show


def _speed_text(speed: float | None) -> str:
    """Return a speed in words; nothing while it is not known, as in a certification that is over at once."""
    return f"{speed:.1f} examples/s" if speed else ""


def _print_columns(rows: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Print, for a run on a table, what half of the right predictions are proven for in the units of the columns."""
    from securesgd.certificates.column_radii import middle_radii, table_schema
    from securesgd.theory.rounding import round_down

    schema = table_schema(record)
    if schema is None or rows[0]["norm"] == "box":
        return
    together = "all columns at once" if rows[0]["norm"] == "linf" else "one column alone"
    print(f"in the units of the columns, half of the right predictions are proven for ({together}; {COLUMN_RADII}):")
    for name, radius in middle_radii(rows, schema).items():
        print(f"  {printable(name)}: {round_down(radius):.4g}")


def _print_summary(key: str, summary: dict[str, Any], rule: str, *, without_noise: bool) -> None:
    from securesgd.certificates.rules import INTERVAL, caveat_in

    by_rule = summary["certified_accuracy"]
    how = f"in {key}"
    if key == INTERVAL:
        how = "by intervals" + (", of the network without its noise" if without_noise else "")
    title = f"certified accuracy {how}, {summary['examples']} examples, 95 % intervals"
    table = Table(title=title, title_justify="left")
    table.add_column("rule", no_wrap=True)
    for radius in by_rule["tight"]:
        table.add_column(f"at {radius}", justify="right")
    table.add_column("mean radius", justify="right")
    for name in by_rule if rule == "all" else [rule]:
        cells = [f"{x['share']:.3f}\n[dim]{x['lower']:.2f}–{x['upper']:.2f}[/]" for x in by_rule[name].values()]
        words = caveat_in(key, name)
        caveat = f"\n[yellow]{words.replace(', ', chr(10))}[/]" if words else ""
        table.add_row(name + caveat, *cells, f"{summary['average_certified_radius'][name]:.4f}")
    console = Console()
    console.print(table)
    if key != INTERVAL:
        drawn = f"abstained: {summary['abstained']:.3f}; draws per example: {summary['draws_mean']:,.0f}"
        console.print(drawn, highlight=False)
