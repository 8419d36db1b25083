"""Accuracy under attack on MNIST: DP-SGD against Secure-SGD with and without redistribution, certificates beside it.

The paper's four attacks, sound (gradients averaged over 20 noise draws) and as published (without noise), at four l_inf
budgets. All models are tanh-cnn with epsilon = 3; the noisy ones are those of `redistribution.py`: r learned from the
prior for secure-sgd, uniform r with analytic noise for secure-sgd-agm.
"""

__all__ = ["ATTACKS", "BUDGETS", "METHODS", "MINUTES", "cells", "draw", "measure"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.attacks.settings import PAPER_ATTACKS
from securesgd.reproduce import redistribution
from securesgd.reproduce.attack_plots import attacks_figure
from securesgd.reproduce.attacked import PROTOCOLS, attacked_rows
from securesgd.reproduce.gains import gain_table
from securesgd.runtime.tables import write_rows

if TYPE_CHECKING:
    from securesgd.run import TrainedRun

METHODS = ("dpsgd", "secure-sgd", "secure-sgd-agm")
ATTACKS = PAPER_ATTACKS
BUDGETS = (0.05, 0.1, 0.2, 0.3)
_WAYS = {"secure-sgd": "learned-from-prior", "secure-sgd-agm": "uniform"}
_DPSGD: dict[str, Any] = {
    "network": "tanh-cnn", "epsilon": 3.0, "batch_size": 1024, "steps": 703, "learning_rate": 1.0,
}  # fmt: skip
_PROFILES: dict[str, dict[str, Any]] = {
    "paper": {"seeds": (0,), "examples": 1000},
    "quick": {"seeds": (0,), "examples": 1000},
}
_VOTES, _EOT, _STEPS = 300, 20, 10
# Certificates are most of the cost. One standard deviation is worth 0.036 here, so 1,000 draws prove at most 0.089;
# what 10,000 prove at 0.1 is in `certified_table.py`.
_CERTIFY_DRAWS = 1000
MINUTES = {"quick": 30, "paper": 30}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the grid: method × seed, a model each, so that no two cells train in one folder."""
    size = _PROFILES[profile]
    return [
        {"method": method, "seed": seed, "examples": size["examples"]} for seed in size["seeds"] for method in METHODS
    ]


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Train one cell's model if need be, attack it, and return a row per protocol, attack and budget.

    What was measured stays in `work`, part by part: a stopped cell goes on where it was.
    """
    from securesgd.attacks.evaluate import EvaluationSettings
    from securesgd.attacks.settings import attack_settings

    asked = [
        attack_settings(name, budget, protocol=protocol, steps=_STEPS, eot=_EOT if protocol == "sound" else 0)
        for protocol in PROTOCOLS
        for name in ATTACKS
        for budget in BUDGETS
    ]
    settings = EvaluationSettings(draws=_VOTES, certify_draws=_CERTIFY_DRAWS)
    run = _trained(cell["method"], cell["seed"], work)
    return attacked_rows(cell, run, work / f"{cell['method']}-{cell['seed']}", asked, settings)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the figure, and write the gains of secure-sgd with their t-tests into `gains.csv` beside it."""
    attacks_figure(rows, path)
    gains = gain_table(rows, "secure-sgd") if len({row["method"] for row in rows}) > 1 else []
    if gains:
        write_rows(path.with_name("gains.csv"), gains)


def _trained(method: str, seed: int, work: Path) -> "TrainedRun":
    from securesgd.reproduce.trained import trained

    if method in _WAYS:
        return redistribution.trained_model(_WAYS[method], seed, work.parent / "redistribution")
    return trained("mnist", method, work / "models" / f"{method}-{seed}", _DPSGD, seed)
