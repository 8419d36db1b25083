"""`securesgd` with figures 2–5 shrunk to digits models of a few steps: the same code from cells to figures.

Run as a program, it is the command line with those grids.
"""

import contextlib
import dataclasses
import sys
from unittest.mock import patch

from securesgd.presets import preset
from securesgd.reproduce import figures
from securesgd.reproduce.attack_grid import pixeldp_lines, secure_lines
from securesgd.reproduce.reproduce import EXPERIMENTS

COMMON = {
    "dataset": "digits", "network": "digits-cnn", "batch_size": 64, "steps": 4, "learning_rate": 0.5, "examples": 12,
    "votes": 20, "eot": 2, "attack_steps": 2, "certify_draws": 30,
}  # fmt: skip
ADLM = {"method": "adlm", "shown": "both", "batch_size": 500, "learning_rate": 3e-3}
INTERVAL = {"method": "dp-ibp", "shown": "both", "network": "interval-cnn"}


def small(grid, **changes):
    values = {"common": COMMON, "profiles": {"quick": {}}, "more_lines": {}, **changes}
    return dataclasses.replace(grid, **values)


def certified(grid, robust_epsilon):
    lines = pixeldp_lines(0.05, "learned", robust_epsilon)
    chosen = [line for line in lines if line["robust_epsilon"] in (1.0, robust_epsilon)]
    return small(grid, lines=chosen, common=COMMON | {"budgets": "0.02 0.1"})


def quickly_accounted(dataset, method, **fit):
    """The preset with the accountant that calibrates in milliseconds."""
    values = preset(dataset, method, **fit)
    values["training"]["accountant"] = "rdp"
    return values


@contextlib.contextmanager
def small_grids():
    """Put small grids in place of the real ones, for as long as it lasts."""
    lines = secure_lines(0.1, 4.0, "learned-from-prior")
    common = COMMON | {"budgets": "0.1", "certify_draws": 0}
    fig3 = certified(figures.FIG3_GRID, 4.0)
    grids = {
        "fig2": certified(figures.FIG2_GRID, 8.0),
        "fig3": dataclasses.replace(fig3, lines=fig3.lines[:1]),
        "fig4": small(
            figures.FIG4_GRID,
            common=common,
            epsilons={"quick": {8.0: {}}},
            lines=lines,
            more_lines={"quick": [ADLM, INTERVAL]},
        ),
        "fig5": small(
            figures.FIG5_GRID, common=common, epsilons={"quick": {2.0: {}, 8.0: {}}}, lines=lines[3:4], more_lines={}
        ),
    }
    small_experiments = {name: dataclasses.replace(EXPERIMENTS[name], cells=grid.cells) for name, grid in grids.items()}
    no_picture = patch("securesgd.run_job.redistribution_figure")
    with no_picture, patch("securesgd.config.preset", quickly_accounted), patch.dict(EXPERIMENTS, small_experiments):
        yield


if __name__ == "__mp_main__":  # a worker of the program below
    patch("securesgd.config.preset", quickly_accounted).start()
if __name__ == "__main__":
    from securesgd.cli import main

    with small_grids():
        sys.exit(main())
