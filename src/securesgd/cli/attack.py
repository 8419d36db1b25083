"""`securesgd attack`: attack a run and print what is left of its accuracy."""

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

from securesgd.attacks.settings import ATTACKS, PAPER_ATTACKS, AttackSettings, attack_grid
from securesgd.cli.app import Dataset, Device, Network, app, parse_numbers, print_balance
from securesgd.cli.progress import progress_bar

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import Evaluation


@app.command(epilog="Example: securesgd attack runs/a --attack all --norm linf --budget 0.05,0.1 --examples 500")
def attack(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    attack: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(ATTACKS)}, an import path like package.module:function, or several; all: "
            f"{', '.join(PAPER_ATTACKS)}."
        ),
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
    probes: Annotated[bool, typer.Option(help="Run sanity checks of each attack.")] = True,
    keep_images: Annotated[bool, typer.Option("--keep-images", help="Keep the attacked images.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure existing cells again and replace them.")] = False,
    network: Network = "",
    dataset: Dataset = "",
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Attack a model within a budget and measure what is left of its accuracy.

    Gradients are averaged over noise draws, and success is measured anew: own clipping, own votes, certificates at the
    clean and at the attacked image. Adds to attacks.csv (a row per image) and attacks.json of the run folder; what is
    there is kept, and a stopped command is resumed. Draws attacks.png. Under torchrun processes share the work:
    [dim]torchrun --nproc-per-node 4 -m securesgd attack runs/a[/]
    """
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.runtime.processes import process_group

    changes: dict[str, Any] = {
        "norm": norm,
        "eot": eot,
        "steps": steps,
        "restarts": restarts,
        "target": target,
        "seed": seed,
    }
    budgets = parse_numbers("budget", budget)
    attack_grid(attack, budgets, protocol=protocol, **changes)  # refuse before anything is loaded
    keep_memory()
    with process_group() as processes, _progress() as show:
        loaded = processes.together(
            lambda: load_run(run, network=network or None, dataset=dataset or None, device=device)
        )
        result = loaded.attack(
            attacks=attack, budget=budgets, protocol=protocol, examples=examples, draws=draws,
            certify_draws=certify_draws, again=again, keep_images=keep_images, sanity_checks=probes, on_progress=show,
            **changes,
        )  # fmt: skip
    if not processes.is_first:
        return
    class_names = loaded.record["class_names"]
    if as_json:
        print(json.dumps({"folder": str(run)} | result.json(class_names), indent=2))
    else:
        _print_result(run, result, class_names)
    if not result.holds:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[AttackSettings, float], None]]:
    """Yield a callback that keeps a progress bar on standard error, if that is a terminal."""
    with progress_bar("{task.description}", description="starting", total=1.0) as (progress, task):

        def show(attack: AttackSettings, share: float) -> None:
            words = escape(f"{attack.attack} {attack.norm} {attack.budget:g}")
            progress.update(task, completed=share, description=words)

        yield show


def _print_result(run: Path, result: "Evaluation", class_names: Sequence[str]) -> None:
    """Print a table of the cells, what its accuracies are worth, the warnings, and where rows and picture are."""
    cells = list(result.cells.values())
    table = Table(
        title=f"{cells[0]['summary']['examples']} test images, {cells[0]['attack']['norm']} budget, 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("attack", overflow="fold")
    for name in ("budget", "clean", "attacked", "certified\nclean", "certified\nattacked"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("flags", no_wrap=True)
    warned = {warning.attack for warning in result.warnings}
    for cell in cells:
        summary, settings = cell["summary"], cell["attack"]
        proven = summary.get("certified_accuracy", {}).get("tight", {})
        name = escape(settings["attack"]) + ("" if settings["protocol"] == "sound" else "\n[dim]published[/]")
        broken = "" if summary["sandwich"]["holds"] else "[red]not true[/]"
        table.add_row(
            name,
            f"{settings['budget']:g}",
            _share(summary["clean_accuracy"]),
            _share(summary["accuracy"]),
            _share(proven.get("clean")),
            _share(proven.get("attacked")),
            broken or ("[yellow]below[/]" if settings["attack"] in warned else "none"),
        )
    console = Console(highlight=False)
    console.print(table)
    for clean in dict.fromkeys(balance["clean"] for balance in result.balances.values()):
        print_balance(clean, class_names, "without attack, ")
    for name, cell in result.cells.items():
        recall = result.balances[name]["attacked"].recall_line(class_names)
        attacked = f"{cell['attack']['attack']} at {cell['attack']['budget']:g}, {recall}"
        console.print(attacked, markup=False, soft_wrap=True)
    for warning in result.warnings:
        console.print(f"[yellow]{escape(warning.attack)}: {escape(warning.name)}[/] – {escape(warning.words)}")
    for cell in cells:
        if not cell["summary"]["sandwich"]["holds"]:
            console.print(f"[red]{escape(cell['attack']['attack'])} at {cell['attack']['budget']:g}:[/] ", end="")
            console.print(escape(cell["summary"]["sandwich"]["in_words"]))
    existing = len(cells) - len(result.images)
    if existing:
        print(f"{existing} of {len(cells)} were measured before and kept; --again measures them anew")
    print(
        f"rows of every image are in {run / 'attacks.csv'}"
        + (f"; pictures in {result.picture}" if result.picture else "")
    )


def _share(value: dict[str, float] | None) -> str:
    return "–" if value is None else f"{value['share']:.3f}\n[dim]{value['lower']:.2f}–{value['upper']:.2f}[/]"
