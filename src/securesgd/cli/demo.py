"""`securesgd demo`: the whole product on embedded data, in a minute or two."""

__all__ = ["demo"]

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import app, print_balance
from securesgd.cli.noise import DEFAULT_DELTA, print_noise_table
from securesgd.cli.progress import progress_bar
from securesgd.cli.train import training_progress
from securesgd.errors import InvalidInputError
from securesgd.runtime.run_folder import REPORT, RunFolder
from securesgd.runtime.storage import require_writable

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import Evaluation
    from securesgd.certificates.run_certificates import RunCertificates
    from securesgd.config import RunConfig
    from securesgd.run import Run

_ATTACKED = 60  # test digits, as many as can be attacked in half a minute
_BUDGET = 0.05


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/demo"),
) -> None:
    """The whole path on embedded data: Figure 1, private training with noise, certificates, attacks, a report."""
    from securesgd.config import run_config
    from securesgd.reproduce.reproduce import reproduce
    from securesgd.run_training import train_run
    from securesgd.theory.noise_table import noise_rows

    if RunFolder(out).occupied and not (out / "fig1").exists():
        raise InvalidInputError(f"{out} is not empty, and not of a demo; give another --out")
    require_writable(out / "fig1")
    print_noise_table(noise_rows(epsilon=[0.5, 1, 2, 4, 8], delta=[DEFAULT_DELTA]), answer="sigma")
    for path in reproduce("fig1", out / "fig1", out):
        print(path)
    config, folder = run_config("digits", "secure-sgd"), out / "digits"
    print(_training_line(config))
    with training_progress(config.training.epsilon, config.training.steps) as on_step:
        run = train_run(config, folder, resume=folder.exists(), on_step=on_step)
    print(run.privacy.in_words)
    print(f"accuracy {run.test_accuracy:.3f} on {run.test_images} test digits; the run is in {folder}")
    if run.test_balance is not None:
        print_balance(run.test_balance, run.record["class_names"])
    with progress_bar("certifying", total=1.0) as (progress, task):
        certificates = run.certify(
            draws=2_000, on_progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    print(certificates.records[config.robustness.norm]["guarantee"])
    with progress_bar("attacking", total=1.0) as (progress, task):
        evaluation = run.attack(
            budget=_BUDGET, eot=10, examples=_ATTACKED, draws=200, sanity_checks=False,
            on_progress=lambda _, share: progress.update(task, completed=share),
        )  # fmt: skip
    page = run.report(out / REPORT)
    Console(highlight=False).print(_result_table(run, certificates, evaluation))
    print(f"privacy of the training data: epsilon {run.privacy.epsilon:.3f} spent, delta {run.privacy.delta:g}")
    print(f"open {page}")


def _training_line(config: "RunConfig") -> str:
    """Return what is about to be trained, as the configuration has it."""
    place = config.robustness.place.replace("-", " ")
    return f"training on {config.dataset} with epsilon = {config.training.epsilon:g}, noise at the {place}"


def _result_table(run: "Run", certificates: "RunCertificates", evaluation: "Evaluation") -> Table:
    """Return the accuracies of the demo with their intervals: clean, under attack, and certified."""
    from securesgd.certificates.summary import certified_accuracy

    norm = run.config.robustness.norm
    rows = [row for row in certificates.rows if row["norm"] == norm]
    table = Table(title="the demo in numbers", title_justify="left", box=SIMPLE_HEAD)
    for name in ("accuracy", "share", "95 % interval", "test digits"):
        table.add_column(name, justify="left" if name == "accuracy" else "right", no_wrap=True)

    def add(words: str, share: dict[str, Any], count: int) -> None:
        table.add_row(words, f"{share['share']:.3f}", f"{share['lower']:.2f}–{share['upper']:.2f}", str(count))

    add("clean, of the smoothed classifier", certified_accuracy(rows, "tight", 0.0), len(rows))
    for cell in evaluation.cells.values():
        attack, summary = cell["attack"], cell["summary"]
        words = f"attacked by {attack['attack']}, {attack['norm']} {attack['budget']:g}"
        add(words, summary["accuracy"], summary["examples"])
    for radius in (_BUDGET, 2 * _BUDGET):
        add(f"certified at {norm} {radius:g}", certified_accuracy(rows, "tight", radius), len(rows))
    return table
