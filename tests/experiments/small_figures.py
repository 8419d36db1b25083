"""`securesgd` with figures 2–5 shrunk to digits models of a few steps: the same code from cells to figures.

Run as a program, it is the command line with those grids.
"""

import sys

from securesgd.experiments import fig2, fig3, fig4, fig5
from securesgd.experiments.lines import cells_of, pixeldp_lines, secure_lines

COMMON = {
    "dataset": "digits", "network": "digits-cnn", "batch_size": 64, "steps": 8, "learning_rate": 0.5, "examples": 12,
    "votes": 20, "eot": 2, "attack_steps": 2, "certify_draws": 30,
}  # fmt: skip
ADLM = {"method": "adlm", "shown": "both", "batch_size": 500, "learning_rate": 3e-3}


def certified_cells(robust_epsilon):
    chosen = [line for line in pixeldp_lines(0.05, robust_epsilon) if line["robust_epsilon"] in (1.0, robust_epsilon)]
    return cells_of(COMMON | {"budgets": "0.02 0.1"}, chosen, (0,))


def budget_cells():
    lines = [{**line, "epsilon": 8.0} for line in [*secure_lines(0.1, robust_epsilon=4.0), ADLM]]
    tighter = [{**line, "epsilon": 2.0} for line in lines if line["method"] == "secure-sgd"]
    return cells_of(COMMON | {"budgets": "0.1", "certify_draws": 0}, [*lines, *tighter], (0,))


def shrink():
    """Put the small grids in place of the real ones."""
    fig2.cells = lambda _: certified_cells(8.0)
    fig4.cells = lambda _: budget_cells()
    fig3.cells = lambda _: certified_cells(4.0)[:1]
    fig5.cells = lambda _: budget_cells()[:1]


if __name__ == "__main__":
    shrink()
    from securesgd.cli import main

    sys.exit(main())
