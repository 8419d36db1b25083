"""Our tables besides redistribution: accuracy under a privacy budget, accuracy under attack, and AdLM as published.

**paper-network** — test accuracy on MNIST of the paper's network: DP-SGD, and Secure-SGD with and without
redistribution, with the paper's robust_epsilon = 4 and construction attack size 0.1 under l_inf. Settings were found on
5,000 training images held out (one seed), which no privacy budget covers; rows are on the test set, trained on all
60,000.

**attacks** — accuracy under attack on MNIST of DP-SGD, and of Secure-SGD with and without redistribution, with
certificates beside it. The paper's attacks, sound (gradients averaged over 20 noise draws) and as published (without
noise). All models are tanh-cnn with epsilon = 3; the noisy ones are those of the experiment `redistribution`.

**adlm** — AdLM as published, reduced to minutes: test accuracy at its authors' budget and a larger one. The page
docs/reference/adlm.md says what is reduced. epsilon is what the method claims; no privacy is guaranteed.
"""

__all__ = ["ADLM", "ATTACKS", "NETWORK_TRAINING", "PAPER_NETWORK", "AttackTable"]

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.reproduce.attack_grid import attack_rows, paper_attack_settings
from securesgd.reproduce.attack_plots import attacks_figure
from securesgd.reproduce.gains import attack_gains, seed_summary, write_gains
from securesgd.reproduce.grid import Cell, Experiment, Row
from securesgd.reproduce.models import accuracy_row, cell_model
from securesgd.reproduce.plots import accuracy_figure
from securesgd.reproduce.redistribution import SETTINGS, redistribution_model
from securesgd.runtime.tables import write_rows

if TYPE_CHECKING:
    from securesgd.run import Run

_ROBUST: dict[str, Any] = {"norm": "linf", "robust_epsilon": 4.0, "attack_size": 0.1, "copies": 1}
_NETWORK_METHODS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "secure-sgd": _ROBUST | {"place": "input", "redistribution": "learned", "start": "prior"},
    "secure-sgd-agm": _ROBUST | {"place": "input"},
}
NETWORK_TRAINING: dict[float | None, dict[str, Any]] = {
    0.2: {"batch_size": 1024, "steps": 90, "learning_rate": 4.0},
    0.5: {"batch_size": 1024, "steps": 120, "learning_rate": 4.0},
    1.0: {"batch_size": 1024, "steps": 150, "learning_rate": 4.0},
    2.0: {"batch_size": 512, "steps": 350, "learning_rate": 2.0},
}
"""Of the paper's MNIST network, by privacy budget."""
_SEEDS: dict[str, tuple[int, ...]] = {"quick": (0,), "standard": (0, 1, 2)}


def _network_cells(profile: str) -> list[Cell]:
    """Return the grid: method × epsilon × seed."""
    return [
        {"dataset": "mnist", "network": "mnist-cnn", "method": method, "epsilon": epsilon, "seed": seed}
        for seed in _SEEDS[profile]
        for epsilon in NETWORK_TRAINING
        for method in _NETWORK_METHODS
    ]


def measure_network(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell and return its row."""
    method, epsilon, seed = cell["method"], cell["epsilon"], cell["seed"]
    settings = {"network": cell["network"], "epsilon": epsilon, "micro_batch": 256, "ema_decay": 0.0}
    settings |= NETWORK_TRAINING[epsilon] | _NETWORK_METHODS[method]
    return [accuracy_row(cell, work / f"{method}-{epsilon:g}-{seed}", settings)]


def _draw_network(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write the means over the seeds into `summary.csv` beside it."""
    accuracy_figure(rows, path)
    write_rows(path.with_name("summary.csv"), seed_summary(rows, ["method", "epsilon"], ["test_accuracy"]))


PAPER_NETWORK = Experiment(
    cells=_network_cells, measure=measure_network, draw=_draw_network, minutes={"quick": 3, "standard": 3}
)

_ADLM_BUDGETS: dict[str, dict[str, tuple[float, ...]]] = {
    "quick": {"mnist": (0.3,), "cifar10": (2.5,)},
    "standard": {"mnist": (0.3, 2.0), "cifar10": (2.5, 10.0)},
}


def _adlm_cells(profile: str) -> list[Cell]:
    """Return the grid: data set × claimed epsilon × seed."""
    return [
        {"dataset": dataset, "method": "adlm", "epsilon": epsilon, "seed": seed}
        for seed in _SEEDS[profile]
        for dataset, budgets in _ADLM_BUDGETS[profile].items()
        for epsilon in budgets
    ]


def measure_adlm(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell by its preset and return its row."""
    folder = work / f"{cell['dataset']}-{cell['epsilon']:g}-{cell['seed']}"
    return [accuracy_row(cell, folder, {"epsilon": cell["epsilon"]})]


ADLM = Experiment(cells=_adlm_cells, measure=measure_adlm, draw=accuracy_figure, minutes={"quick": 6, "standard": 6})

_ATTACK_WAYS = {"secure-sgd": "learned-from-prior", "secure-sgd-agm": "uniform"}
_DPSGD_SETTINGS = {name: SETTINGS[name] for name in ("network", "epsilon", "batch_size", "steps", "learning_rate")}


@dataclass(frozen=True, kw_only=True)
class AttackTable:
    """The table of attacks as data: a model per method and seed, so that no two cells train in one folder.

    Certificates are most of the cost. One standard deviation is worth 0.036 here, so 1,000 draws prove at most 0.089;
    what 10,000 prove at 0.1 is in the experiment `certified`.
    """

    methods: tuple[str, ...] = ("dpsgd", "secure-sgd", "secure-sgd-agm")
    budgets: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    seeds: tuple[int, ...] = (0,)
    examples: int = 1000
    votes: int = 300
    eot: int = 20
    attack_steps: int = 10
    certify_draws: int = 1000

    def cells(self, profile: str) -> list[Cell]:
        """Return the grid: method × seed; both profiles are the same."""
        return [
            {"method": method, "seed": seed, "examples": self.examples}
            for seed in self.seeds
            for method in self.methods
        ]

    def measure(self, cell: Cell, work: Path) -> list[Row]:
        """Train the model of a cell, attack it, and return a row per protocol, attack and budget.

        Measurements are kept in `work`, part by part, so that a stopped cell can be resumed.
        """
        from securesgd.attacks.evaluate import EvaluationSettings
        from securesgd.attacks.settings import PROTOCOLS

        attacks = paper_attack_settings(
            protocols=PROTOCOLS, budgets=self.budgets, steps=self.attack_steps, eot=self.eot
        )
        settings = EvaluationSettings(draws=self.votes, certify_draws=self.certify_draws)
        run = attack_model(cell["method"], cell["seed"], work)
        return attack_rows(cell, run, work / f"{cell['method']}-{cell['seed']}", attacks, settings)


def attack_model(method: str, seed: int, work: Path) -> "Run":
    """Return the model of the table of attacks; the noisy ones are those of the experiment `redistribution`."""
    if method in _ATTACK_WAYS:
        return redistribution_model(_ATTACK_WAYS[method], seed, work.parent / "redistribution")
    return cell_model("mnist", method, work / "models" / f"{method}-{seed}", _DPSGD_SETTINGS, seed)


def _draw_attacks(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write the gains of secure-sgd with their t-tests into `gains.csv` beside it."""
    attacks_figure(rows, path)
    write_gains(attack_gains(rows, "secure-sgd") if len({row["method"] for row in rows}) > 1 else [], path)


_ATTACK_TABLE = AttackTable()
ATTACKS = Experiment(
    cells=_ATTACK_TABLE.cells, measure=_ATTACK_TABLE.measure, draw=_draw_attacks, minutes={"quick": 30, "standard": 30}
)
