"""The grid of figures 2–5: models trained by several methods, attacked by the paper's attacks and certified beside it.

A line of a figure is the settings of a trained model; a cell is a line with its seed. A cell says everything: its
columns up to `seed` are settings of the training, the others of the measurement.
"""

__all__ = [
    "COLUMNS",
    "AttackGrid",
    "attack_rows",
    "grid_cells",
    "hgm_lines",
    "measure_cell",
    "paper_attack_settings",
    "pixeldp_lines",
    "secure_lines",
    "training_settings",
]

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.reproduce.grid import Cell, Row
from securesgd.reproduce.models import WAYS, cell_model
from securesgd.theory import noise_multiplier
from securesgd.theory.gaussian import Mechanism

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import EvaluationSettings
    from securesgd.attacks.settings import AttackSettings
    from securesgd.run import Run

Line = dict[str, Any]

COLUMNS = (
    "dataset", "network", "method", "way", "place", "robust_epsilon", "unit", "epsilon", "batch_size", "steps",
    "learning_rate", "copies", "seed", "shown", "examples", "votes", "eot", "attack_steps", "budgets", "certify_draws",
)  # fmt: skip
"""Of a cell. `shown` is the protocol a line is measured by, or both. None where a method has no such setting."""
_TRAINING = ("network", "epsilon", "batch_size", "steps", "learning_rate", "copies", "place", "unit")
_FOLDER_NAME = ("method", "way", "place", "network", "epsilon", "unit", "batch_size", "steps", "learning_rate", "seed")
_ROBUST_DELTA = 0.05  # the authors'


def _without_privacy() -> dict[str, dict[float | None, Line]]:
    return {"quick": {None: {}}, "standard": {None: {}}}


@dataclass(frozen=True, kw_only=True)
class AttackGrid:
    """The grid of a figure as data."""

    lines: Sequence[Line]
    common: dict[str, Any]
    """Columns that all cells share; those that differ by profile, in `profiles`, take precedence."""
    profiles: Mapping[str, dict[str, Any]]
    epsilons: Mapping[str, Mapping[float | None, Line]] = field(default_factory=_without_privacy)
    """Privacy budgets of the training data, by profile, with the training that suits each."""
    more_lines: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """Lines that only a profile has, or whose training differs by profile. One with an `epsilon` has that one only."""
    seeds: Mapping[str, Sequence[int]] = field(default_factory=lambda: {"quick": (0,), "standard": (0, 1, 2)})

    def cells(self, profile: str) -> list[Cell]:
        """Return the cells: line × privacy budget × seed, the first seed of all lines first."""
        lines = [*self.lines, *self.more_lines.get(profile, ())]
        with_epsilon = [
            {**training, **line, "epsilon": epsilon}
            for epsilon, training in self.epsilons[profile].items()
            for line in lines
            if line.get("epsilon", epsilon) == epsilon
        ]
        return grid_cells(self.common | self.profiles[profile], with_epsilon, self.seeds[profile])


def grid_cells(common: dict[str, Any], lines: Iterable[Line], seeds: Sequence[int]) -> list[Cell]:
    """Return the cells: each line over `common`, for each seed. Raises: KeyError for an unknown column."""
    cells = []
    for seed in seeds:
        for line in lines:
            values = {**common, **line, "seed": seed}
            if unknown := set(values) - set(COLUMNS):
                raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
            cells.append({name: values.get(name) for name in COLUMNS})
    return cells


def pixeldp_lines(attack_size: float, learned: str, learned_epsilon: float) -> list[Line]:
    """Return PixelDP, HGM_PixelDP at its robust_epsilon, and one more with r learned and noise at the input.

    `learned` says where learning starts: a prior that looks away from the border suits digits, not photographs.
    """
    hgm = hgm_lines(attack_size, (learned_epsilon,))
    ours = {"method": "hgm-pixeldp", "way": learned, **_noise("extended", learned_epsilon, attack_size)}
    published = [{"method": "pixeldp", "way": "uniform", **_noise("classic", 1.0, attack_size)}, *hgm]
    return [
        *({"place": "first-layer", "shown": "both", **line} for line in published),
        {"place": "input", "shown": "sound", **ours},
    ]


def hgm_lines(attack_size: float, robust_epsilons: Sequence[float]) -> list[Line]:
    """Return HGM_PixelDP as published, at each robust_epsilon."""
    as_published = {"method": "hgm-pixeldp", "way": "as-published", "place": "first-layer", "shown": "both"}
    return [as_published | _noise("extended", epsilon, attack_size) for epsilon in robust_epsilons]


def secure_lines(
    attack_size: float, robust_epsilon: float, learned: str, sound_network: str | None = None
) -> list[Line]:
    """Return DP-SGD, and Secure-SGD with and without redistribution: as the paper has them, and soundly.

    A `sound_network` has no first layer that could be noisy: only the sound lines have it, and DP-SGD a line of each.
    """
    published = {"place": "first-layer", "shown": "as-published", "copies": 1}
    sound: Line = {"place": "input", "shown": "sound", "copies": 1}
    if sound_network:
        sound["network"] = sound_network
    extended, analytic = (_noise(mechanism, robust_epsilon, attack_size) for mechanism in ("extended", "analytic"))
    without_noise: list[Line] = [{"method": "dpsgd", "shown": "both"}]
    if sound_network:
        without_noise = [
            {"method": "dpsgd", "shown": "as-published"},
            {"method": "dpsgd", "shown": "sound", "network": sound_network},
        ]
    return [
        *without_noise,
        {"method": "secure-sgd", "way": "as-published", **published, **extended},
        {"method": "secure-sgd-agm", "way": "uniform", **published, **analytic},
        {"method": "secure-sgd", "way": learned, **sound, **analytic},
        {"method": "secure-sgd-agm", "way": "uniform", **sound, **analytic},
    ]


def _noise(mechanism: Mechanism, robust_epsilon: float, attack_size: float) -> dict[str, float]:
    """Return the noise of the paper's construction: the input radius that one standard deviation of it is worth."""
    scale = float(noise_multiplier(robust_epsilon, _ROBUST_DELTA, mechanism))
    return {"robust_epsilon": robust_epsilon, "unit": round(scale * attack_size, 6)}


def measure_cell(cell: Cell, work: Path) -> list[Row]:
    """Train the model of a cell, attack it by the protocols it is shown in, and return a row per attack and budget."""
    from securesgd.attacks.evaluate import EvaluationSettings
    from securesgd.attacks.settings import PROTOCOLS

    name = "-".join(_folder_word(cell[column]) for column in _FOLDER_NAME if cell[column] is not None)
    folder = work.parent / "figures" / cell["dataset"] / name
    run = cell_model(cell["dataset"], cell["method"], folder, training_settings(cell), cell["seed"])
    attacks = paper_attack_settings(
        protocols=[protocol for protocol in PROTOCOLS if cell["shown"] in ("both", protocol)],
        budgets=[float(word) for word in cell["budgets"].split()],
        steps=cell["attack_steps"],
        eot=cell["eot"],
    )
    settings = EvaluationSettings(draws=cell["votes"], certify_draws=cell["certify_draws"])
    return attack_rows(cell, run, folder, attacks, settings)


def training_settings(cell: Cell) -> dict[str, Any]:
    """Return the settings that the model of a cell is trained with."""
    settings = {name: cell[name] for name in _TRAINING if cell[name] is not None}
    if cell["steps"] is None:  # the preset of the method
        return settings
    settings["ema_decay"] = 0.0
    return settings if cell["way"] is None else settings | WAYS[cell["way"]] | {"norm": "linf"}


def paper_attack_settings(
    *, protocols: Sequence[str], budgets: Sequence[float], steps: int, eot: int
) -> list["AttackSettings"]:
    """Return the paper's attacks at each budget by each protocol; as published, gradients have no noise to average."""
    from securesgd.attacks.settings import PAPER_ATTACKS, attack_settings

    return [
        attack_settings(attack, budget, protocol=protocol, steps=steps, eot=eot if protocol == "sound" else 0)
        for protocol in protocols
        for attack in PAPER_ATTACKS
        for budget in budgets
    ]


def attack_rows(
    cell: Cell,
    run: "Run",
    folder: Path,
    attacks: Sequence["AttackSettings"],
    settings: "EvaluationSettings",
) -> list[Row]:
    """Return a row per attack, in the order of `attacks`. Measurements are kept in `folder`, so a cell can be resumed.

    Attacks that `folder` has from earlier and that are not among `attacks` have no row.
    """
    from securesgd.attacks.evaluate import evaluate_run

    folder.mkdir(parents=True, exist_ok=True)
    data = run.data.test_inputs, run.data.test_targets
    evaluation = evaluate_run(folder, run.model, *data, attacks, settings, examples=cell["examples"])
    return [_attack_row(cell, run, entry) for entry in evaluation.cells.values()]


def _attack_row(cell: Cell, run: "Run", entry: dict[str, Any]) -> Row:
    summary, attack, measured = entry["summary"], entry["attack"], entry["measured"]
    proven = summary.get("certified_accuracy", {})
    return {
        **cell,
        "protocol": attack["protocol"],
        "attack": attack["attack"],
        "norm": attack["norm"],
        "budget": attack["budget"],
        **{name: attack[name] for name in ("steps", "eot", "restarts") if name not in cell},
        "guaranteed": int(run.privacy.guaranteed_but_for_seed),
        "test_accuracy": run.test_accuracy,
        **_share_columns("clean", summary["clean_accuracy"]),
        **_share_columns("attacked", summary["accuracy"]),
        **_share_columns("certified_clean", proven.get("tight", {}).get("clean")),
        **_share_columns("certified_attacked", proven.get("tight", {}).get("attacked")),
        **_share_columns("published_attacked", proven.get("as-published", {}).get("attacked")),
        "undecided": summary["undecided"],
        "sandwich_holds": int(summary["sandwich"]["holds"]),
        "flags": " ".join(sorted({probe["name"] for probe in entry.get("probes", [])})),
        "failure_prob": measured["failure_prob"],
        **{f"used_{name}": measured[name] for name in ("draws", "certify_draws")},
        "seconds": round(entry["seconds"], 2),
    }


def _share_columns(name: str, share: dict[str, float] | None) -> dict[str, Any]:
    """Return a share and its 95 % interval; a model without noise has nothing certified."""
    share = share or {"share": 0.0, "lower": 0.0, "upper": 0.0}
    return {name: share["share"], f"{name}_lower": share["lower"], f"{name}_upper": share["upper"]}


def _folder_word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
