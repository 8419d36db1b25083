"""`securesgd attack`: attacks on a run, measured without believing them."""

__all__ = ["attack"]

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from securesgd.cli.app import app, parse_numbers
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import Evaluation
    from securesgd.attacks.settings import AttackSettings
    from securesgd.data.load import LoadedData

PAPER = ("fgsm", "ifgsm", "mim", "madry")
"""What `all` stands for: the attacks of the paper."""


@app.command(epilog="Example: securesgd attack runs/a --attack all --norm linf --budget 0.05,0.1 --examples 500")
def attack(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    attack: Annotated[
        str, typer.Option(help="fgsm, ifgsm, mim, madry, all of these, apgd-ce, apgd-dlr, square or auto; or several.")
    ] = "all",
    norm: Annotated[str, typer.Option(help="Of the budget: linf or l2.")] = "linf",
    budget: Annotated[str, typer.Option(help="Largest change, in pixels of [0, 1]; several as 0.05,0.1.")] = "0.1",
    eot: Annotated[
        int | None, typer.Option(help="Noise draws per gradient; 0: the network without its noise. 20 if not given.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps, or queries of square.")] = None,
    restarts: Annotated[int | None, typer.Option(help="Tries, each from another random point.")] = None,
    target: Annotated[str | None, typer.Option(help="Aim at a class number, least-likely or runner-up.")] = None,
    examples: Annotated[int, typer.Option(help="Test examples, from the first; 0 for all.")] = 500,
    protocol: Annotated[
        str, typer.Option(help="sound, or as-published: noise-free gradients, own predictions as labels.")
    ] = "sound",
    draws: Annotated[int, typer.Option(help="Votes per image that decide what is right.")] = 1000,
    certify_draws: Annotated[int, typer.Option(help="Draws of the certificates beside them; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the attack and of the votes.")] = 0,
    probes: Annotated[bool, typer.Option(help="Look for signs that an attack is not to be believed.")] = True,
    keep_images: Annotated[bool, typer.Option("--keep-images", help="Keep the attacked images.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again what is there, and replace it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Attack a model within a budget and measure what is left of its accuracy.

    Gradients are averaged over noise draws, and success is measured anew: own clipping, own votes, certificates at the
    clean and at the attacked image. Adds to attacks.csv (a row per image) and attacks.json of the run folder; what is
    there is kept, and a stopped command goes on where it was. Draws attacks.png.
    """
    from securesgd.attacks.evaluate import EvaluationSettings, evaluate_run
    from securesgd.attacks.settings import attack_settings
    from securesgd.data.load import load
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory

    budgets = parse_numbers("budget", budget)
    if not budgets:
        raise InvalidInputError("--budget needs a number or numbers like 0.05,0.1")
    if examples < 0:
        raise InvalidInputError(f"examples is {examples}; valid: 1 or more, or 0 for all")
    measured = EvaluationSettings(draws=draws, certify_draws=certify_draws)
    changes = {"norm": norm, "eot": eot, "steps": steps, "restarts": restarts, "target": target, "seed": seed}
    for name in _names(attack):  # refuse before anything is loaded
        attack_settings(name, budgets[0], protocol=protocol, **changes)
    keep_memory()
    loaded = load_run(run)
    config, model = loaded.config, loaded.model
    changes["dataset"] = config.dataset
    asked = [attack_settings(name, b, protocol=protocol, **changes) for name in _names(attack) for b in budgets]
    data = load(config.dataset, holdout=config.holdout, seed=config.seed)
    count = min(examples or len(data.test_targets), len(data.test_targets))
    with _progress(asked) as show:
        result = evaluate_run(
            run, model, data.test_inputs[:count], data.test_targets[:count], asked, measured,
            classes=data.classes, again=again, keep_images=keep_images, probes=probes, on_progress=show,
        )  # fmt: skip
    picture = _gallery(run, data, result)
    if as_json:
        record = {
            "folder": str(run),
            "cells": result.cells,
            "suspicions": [found.json() for found in result.suspicions],
            "sandwich_holds": result.holds,
        }
        print(json.dumps(record, indent=2))
    else:
        _print_result(result, norm, count)
        kept = [name for name in result.cells if name not in result.images]
        if kept:
            print(f"{len(kept)} of {len(result.cells)} were measured before and kept; --again measures them anew")
        print(f"rows of every image are in {run / 'attacks.csv'}" + (f"; pictures in {picture}" if picture else ""))
    if not result.holds:
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InvalidInputError("--attack needs a name, or `all`")
    spread = [name for part in names for name in (PAPER if part == "all" else (part,))]
    return list(dict.fromkeys(spread))


@contextmanager
def _progress(attacks: "Sequence[AttackSettings]") -> "Iterator[Callable[[AttackSettings, float], None]]":
    """Yield a callback that keeps a progress bar on standard error, if that is a terminal."""
    with progress_bar("{task.description}", description="starting", total=len(attacks)) as (progress, task):

        def show(attack: "AttackSettings", share: float) -> None:
            number = attacks.index(attack)
            words = f"{number + 1}/{len(attacks)} {attack.attack} {attack.norm} {attack.budget:g}"
            progress.update(task, completed=number + share, description=words)

        yield show


def _print_result(result: "Evaluation", norm: str, count: int) -> None:
    table = Table(
        title=f"{count} test images, {norm} budget, 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("attack", no_wrap=True)
    for name in ("budget", "clean", "attacked", "certified\nclean", "certified\nattacked"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("flags", no_wrap=True)
    doubted = {found.attack for found in result.suspicions}
    for cell in result.cells.values():
        summary, settings = cell["summary"], cell["attack"]
        proven = summary.get("certified_accuracy", {}).get("tight", {})
        name = settings["attack"] + ("" if settings["protocol"] == "sound" else "\n[dim]published[/]")
        broken = "" if summary["sandwich"]["holds"] else "[red]not true[/]"
        table.add_row(
            name,
            f"{settings['budget']:g}",
            _share(summary["clean_accuracy"]),
            _share(summary["accuracy"]),
            _share(proven.get("clean")),
            _share(proven.get("attacked")),
            broken or ("[yellow]below[/]" if settings["attack"] in doubted else "none"),
        )
    console = Console(highlight=False)
    console.print(table)
    for found in result.suspicions:
        console.print(f"[yellow]{escape(found.attack)}: {escape(found.name)}[/] – {escape(found.words)}")
    for cell in result.cells.values():
        if not cell["summary"]["sandwich"]["holds"]:
            console.print(f"[red]{cell['attack']['attack']} at {cell['attack']['budget']:g}:[/] ", end="")
            console.print(escape(cell["summary"]["sandwich"]["in_words"]))


def _share(value: dict[str, float] | None) -> str:
    return "–" if value is None else f"{value['share']:.3f}\n[dim]{value['lower']:.2f}–{value['upper']:.2f}[/]"


def _gallery(run: Path, data: "LoadedData", result: "Evaluation") -> Path | None:
    """Draw the strongest attack measured now; None if nothing new was measured or inputs are not images."""
    from securesgd.attacks.cells import ROWS
    from securesgd.report.gallery import chosen_rows, gallery_figure
    from securesgd.runtime.tables import read_rows

    fresh = [name for name in result.images if name in result.cells]
    if not fresh or len(data.input_shape) != 3:
        return None
    best = min(fresh, key=lambda name: result.cells[name]["summary"]["accuracy"]["share"])
    indices, images = result.images[best]
    at = {int(index): place for place, index in enumerate(indices)}
    rows = [row for row in read_rows(run / ROWS) if row["cell"] == best and int(row["index"]) in at]
    chosen = chosen_rows(rows)
    if not chosen:
        return None
    settings: dict[str, Any] = result.cells[best]["attack"]
    clean = data.test_inputs[[int(row["index"]) for row in chosen]].numpy()
    attacked = images[[at[int(row["index"])] for row in chosen]].numpy()
    title = (
        f"{data.name}: {settings['attack']} ({settings['protocol']}), {settings['norm']} budget {settings['budget']:g}"
    )
    gallery_figure(chosen, clean, attacked, run / "attacks.png", title=title, class_names=data.class_names)
    return run / "attacks.png"
