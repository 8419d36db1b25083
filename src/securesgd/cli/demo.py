"""`securesgd demo`: the product on embedded data."""

__all__ = ["demo"]

from pathlib import Path
from typing import Annotated

import typer

from securesgd.cli.app import app
from securesgd.cli.attack import attack
from securesgd.cli.certify import certify
from securesgd.cli.noise import DEFAULT_DELTA, print_noise_table
from securesgd.cli.report import report
from securesgd.cli.train import training_progress

_CERTIFIED, _ATTACKED = 297, 60  # test digits: all of them, and as many as can be attacked in half a minute


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/demo"),
) -> None:
    """The whole path on embedded data: Figure 1, private training with noise, certificates, attacks, a report."""
    from securesgd.config import run_config
    from securesgd.experiments.reproduce import reproduce as make
    from securesgd.pipeline import train_run
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
    attack(folder, budget="0.05", eot=10, examples=_ATTACKED, draws=200, probes=False)
    report([folder], out / "report.html")
