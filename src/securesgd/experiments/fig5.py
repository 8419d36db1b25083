"""Figure 5: accuracy under attack against the privacy budget on MNIST: Secure-SGD, its AGM form, DP-SGD and AdLM.

robust_epsilon = 4 and attacks of size 0.1, as in the paper, which has no AdLM here. The paper's protocol: noise in the
first hidden layer, r as published (which voids the privacy of the run), attacks on the network without its noise. The
sound one: noise at the input, r learned inside the budget, attacks that average over the noise. AdLM's privacy is what
it claims, not what it has.
"""

__all__ = ["MINUTES", "cells", "draw", "measure"]

from pathlib import Path
from typing import Any

from securesgd.experiments.attacked import measure
from securesgd.experiments.lines import cells_of, secure_lines
from securesgd.report.attack_panels import budget_panels

_SIZE = 0.1
_LINES = secure_lines(_SIZE, robust_epsilon=4.0)
_COMMON: dict[str, Any] = {
    "dataset": "mnist", "attack_steps": 10, "budgets": f"{_SIZE:g}", "certify_draws": 0,
}  # fmt: skip
_ADLM: dict[str, Any] = {
    "method": "adlm",
    "shown": "both",
    "network": "mnist-cnn",
    "batch_size": 1800,
    "learning_rate": 3e-4,
}
_PROFILES: dict[str, dict[str, Any]] = {
    # Reduced: the network, the training, the budgets (the paper has 0.2 to 2), images, one seed.
    "quick": {"network": "tanh-cnn", "batch_size": 1024, "steps": 200, "learning_rate": 2.0, "examples": 300,
              "votes": 300, "eot": 10},
    "paper": {"network": "mnist-cnn", "batch_size": 512, "steps": 350, "learning_rate": 2.0, "examples": 1000,
              "votes": 1000, "eot": 20},
}  # fmt: skip
_ADLM_STEPS = {"quick": 40, "paper": 1000}
_BUDGETS: dict[str, tuple[float, ...]] = {"quick": (0.2, 1.0, 2.0), "paper": (0.2, 0.5, 1.0, 1.5, 2.0)}
_SEEDS = {"quick": (0,), "paper": (0, 1, 2)}
_PAPER = {"secure-sgd-agm": (0.029, 8.79e-7), "dpsgd": (0.1074, 8.54e-14)}
_PAPER_RISE = 0.2967
MINUTES = {"quick": 2.5, "paper": 15}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the grid: line × budget × seed."""
    adlm = _ADLM | {"steps": _ADLM_STEPS[profile]}
    lines = [{**line, "epsilon": epsilon} for epsilon in _BUDGETS[profile] for line in [*_LINES, adlm]]
    return cells_of(_COMMON | _PROFILES[profile], lines, _SEEDS[profile])


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the figure, and write the gains with their t-tests beside the paper's into `gains.csv`."""
    budget_panels(rows, path, stated=_PAPER, stated_rise=_PAPER_RISE)
