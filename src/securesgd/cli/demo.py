"""`securesgd demo`: the product on embedded data."""

__all__ = ["demo"]

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from securesgd.cli.app import app
from securesgd.cli.attack import attack
from securesgd.cli.certify import certify
from securesgd.cli.noise import DEFAULT_DELTA, print_noise_table
from securesgd.cli.report import report
from securesgd.cli.train import training_progress

if TYPE_CHECKING:
    from securesgd.run import TrainedRun

_CERTIFIED, _ATTACKED = 297, 60  # test digits: all of them, and as many as can be attacked in half a minute
_BUDGET = 0.05


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/demo"),
) -> None:
    """The whole path on embedded data: Figure 1, private training with noise, certificates, attacks, a report."""
    from securesgd.config import run_config
    from securesgd.reproduce.reproduce import reproduce as make
    from securesgd.run import train_run
    from securesgd.theory.noise_table import noise_rows

    print_noise_table(noise_rows(epsilon=[0.5, 1, 2, 4, 8], delta=[DEFAULT_DELTA]), answer="sigma")
    for path in make("fig1", out / "fig1", out):
        print(path)
    config, folder = run_config("digits", "secure-sgd"), out / "digits"
    print(f"training on 1,500 digits with epsilon = {config.training.epsilon:g}, noise in the first layer")
    with training_progress(config.training.epsilon, config.training.steps) as on_step:
        run = train_run(config, folder, resume=folder.exists(), on_step=on_step)
    print(run.statement.in_words)
    print(f"accuracy {run.test_accuracy:.3f} on {len(run.data.test_targets)} test digits; the run is in {folder}")
    certify(folder, draws=2_000, examples=_CERTIFIED)
    attack(folder, budget=f"{_BUDGET:g}", eot=10, examples=_ATTACKED, draws=200, probes=False)
    report([folder], out / "report.html")
    _print_end(run, out / "report.html")


def _print_end(run: "TrainedRun", page: Path) -> None:
    """Print the table that says it all: accuracies from the records on disk, the budget spent, where the report is."""
    from securesgd.certificates.summary import certified_accuracy
    from securesgd.runtime.storage import read_json
    from securesgd.runtime.tables import read_rows

    rows = [row for row in read_rows(run.folder / "certificates.csv") if row["norm"] == "linf"]
    cells = read_json(run.folder / "attacks.json")["cells"].values()
    table = Table(title="the demo in numbers", title_justify="left", box=SIMPLE_HEAD)
    for name in ("accuracy", "share", "95 % interval", "test digits"):
        table.add_column(name, justify="left" if name == "accuracy" else "right", no_wrap=True)

    def line(words: str, found: dict[str, float], count: int) -> None:
        table.add_row(words, f"{found['share']:.3f}", f"{found['lower']:.2f}–{found['upper']:.2f}", str(count))

    line("clean, of the smoothed classifier", certified_accuracy(rows, "tight", 0.0), len(rows))
    for cell in cells:
        words = f"attacked by {cell['attack']['attack']}, l_inf {cell['attack']['budget']:g}"
        line(words, cell["summary"]["accuracy"], cell["summary"]["examples"])
    for radius in (_BUDGET, 2 * _BUDGET):
        line(f"certified at l_inf {radius:g}", certified_accuracy(rows, "tight", radius), len(rows))
    Console(highlight=False).print(table)
    spent = run.statement
    print(f"privacy of the training data: epsilon {spent.epsilon:.3f} spent, delta {spent.delta:g}")
    print(f"open {page}")
