"""`securesgd audit`: train once more with canaries, and compare what they prove with the epsilon that is claimed."""

__all__ = ["audit"]

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import Device, Network, app, parse_settings
from securesgd.cli.progress import progress_bar
from securesgd.errors import InvalidInputError


@app.command(epilog="Examples:\n\nsecuresgd audit runs/a\n\nsecuresgd audit --config audit.toml --self-test")
def audit(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run; or give --config.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with a data set and a method, without a run.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="With --config: any setting, as key=value.", metavar="KEY=VALUE")
    ] = None,
    canaries: Annotated[int, typer.Option(help="Canaries of the white box; 1 in 20 more for biases.")] = 20_000,
    failure_prob: Annotated[float, typer.Option(help="Probability that a bound exceeds the true epsilon.")] = 0.05,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable; secret if not given.")] = None,
    own_data: Annotated[
        bool,
        typer.Option("--own-data", help="Train on the data themselves: audit.json is then private."),
    ] = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Audit training that is broken on purpose, too: each must be caught.")
    ] = False,
    sabotage: Annotated[str, typer.Option(help="Break the training in one place, by a name of --self-test.")] = "",
    null: Annotated[bool, typer.Option("--null", help="Toss the coins, but leave all canaries out.")] = False,
    network: Network = "",
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure a lower bound of epsilon, by canaries in one more training run of the same engine, sampling and noise.

    Each canary is in the data by a coin; whoever sees what is released guesses. So many right guesses prove an epsilon;
    above the claimed one, the claim is false, and the exit code is 1. Weights and ledger of the run are not touched;
    the result is kept in its audit.json. Data other than built-in public ones are not read: an audit of theirs would
    be one more release. Under torchrun the first process does all of it, and the others wait.
    """
    from securesgd.audit.canaries import CanaryCounts
    from securesgd.audit.measure import AuditSettings, audit_config
    from securesgd.audit.measure import self_test as run_self_test
    from securesgd.config import run_config
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.runtime.processes import process_group

    if (run is None) == (config is None):
        raise InvalidInputError("give the folder of a run, or --config FILE, and not both")
    if run is not None and changes:
        raise InvalidInputError("--set is for --config; a run is audited with its own settings")
    settings = AuditSettings(
        canaries=CanaryCounts(weights=canaries, biases=max(10, canaries // 20)),
        failure_prob=failure_prob, seed=seed, sabotage=sabotage or None, insert=not null,
    )  # fmt: skip
    keep_memory()
    chosen = None if config is None else run_config(file=config, **parse_settings(changes or []))
    with (
        process_group() as processes,
        progress_bar("{task.description}", description="auditing", total=1.0) as (progress, task),
    ):
        loaded = (
            None if run is None else processes.together(lambda: load_run(run, network=network or None, device=device))
        )

        def measure(settings: AuditSettings) -> dict[str, Any]:
            words = settings.sabotage or ("auditing" if settings.insert else "null")
            progress.update(task, completed=0.0, description=words)
            options: Any = {"own_data": own_data, "on_progress": lambda share: progress.update(task, completed=share)}
            if loaded is not None:
                return loaded.audit(settings, **options)
            assert chosen is not None
            return audit_config(chosen, settings, device=device, **options)

        records = run_self_test(measure, settings) if self_test else {"audit": measure(settings)}
    if not processes.is_first:
        return
    if as_json:
        print(json.dumps(records if self_test else records["audit"], indent=2))
    elif self_test:
        _print_self_test(records)
    else:
        _print_audit(records["audit"])
    if any(record["holds"] is not _expected(name) for name, record in records.items()):
        raise typer.Exit(1)


def _expected(name: str) -> bool:
    """Return whether the claim must hold in an audit of this name."""
    return name in ("audit", "as-shipped", "null")


def _print_audit(record: dict[str, Any]) -> None:
    """Print a line for each bound, and the verdict."""
    from securesgd.audit.record import audit_in_words, audit_summary

    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for name in ("attacker", "theorem", "canaries", "guesses", "right", "epsilon >="):
        table.add_column(name, justify="left" if name in ("attacker", "theorem") else "right")
    for row in audit_summary(record):
        counts = [f"{row[name]:,}" for name in ("canaries", "guesses", "right")]
        table.add_row(row["attacker"], row["theorem"], *counts, f"{row['epsilon_lower_bound']:.2f}")
    console = Console(highlight=False)
    console.print(table)
    style = None if record["holds"] else "bold red"
    console.print(audit_in_words(record), style=style, markup=False, soft_wrap=True)
    if record["private"]:
        print("The black box was trained on the data themselves: keep this result as private as they are.")


def _print_self_test(records: dict[str, dict[str, Any]]) -> None:
    """Print a line for each audit of a self-test, and whether it came out as it must."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for name in ("training", "right", "epsilon >=", "claimed", "verdict"):
        table.add_column(name, justify="left" if name in ("training", "verdict") else "right")
    for name, record in records.items():
        white, is_right = record["white_box"], record["holds"] is _expected(name)
        words = "claim holds" if record["holds"] else "claim is false"
        table.add_row(
            name,
            f"{white['right']:,} of {white['guesses']:,}",
            f"{record['epsilon_lower_bound']:.2f}",
            f"{record['claim']['epsilon']:.2f}",
            words if is_right else f"[red]{words}: wrong[/]",
        )
    Console(highlight=False).print(table)
