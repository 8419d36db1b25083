"""Train the model of a cell, attack it, certify beside it: what the rows of the attack table and of figures 2–5 hold.

A cell of a figure says everything: its columns up to `seed` are settings of the training, the rest of the measurement.
"""

__all__ = ["PROTOCOLS", "attacked_rows", "measure", "settings_of"]

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesgd.attacks.settings import PAPER_ATTACKS as _PAPER_ATTACKS

if TYPE_CHECKING:
    from securesgd.attacks.evaluate import EvaluationSettings
    from securesgd.attacks.settings import AttackSettings
    from securesgd.run import TrainedRun

PROTOCOLS = ("sound", "as-published")
# How r of a cell is obtained, as settings of a run; None for a method without noise.
_WAYS: dict[str | None, dict[str, Any]] = {
    None: {},
    "uniform": {"redistribution": "uniform"},
    "as-published": {"redistribution": "as-published"},
    "learned": {"redistribution": "learned", "start": "uniform"},
    "learned-from-prior": {"redistribution": "learned", "start": "prior"},
}
_TRAINING = ("network", "epsilon", "batch_size", "steps", "learning_rate", "copies", "place", "unit")

_NAMED = ("method", "way", "place", "network", "epsilon", "unit", "steps", "seed")


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Train the model of a figure's cell, attack it by both protocols, and return a row per attack and budget."""
    from securesgd.attacks.evaluate import EvaluationSettings
    from securesgd.attacks.settings import attack_settings
    from securesgd.reproduce.trained import trained

    name = "-".join(_word(cell[k]) for k in _NAMED if cell[k] is not None)
    folder = work.parent / "figures" / cell["dataset"] / name
    run = trained(cell["dataset"], cell["method"], folder, settings_of(cell), cell["seed"])
    asked = [
        attack_settings(attack, budget, protocol=protocol, steps=cell["attack_steps"],
                        eot=cell["eot"] if protocol == "sound" else 0)
        for protocol in PROTOCOLS
        if cell["shown"] in ("both", protocol)
        for attack in _PAPER_ATTACKS
        for budget in (float(word) for word in cell["budgets"].split())
    ]  # fmt: skip
    settings = EvaluationSettings(draws=cell["votes"], certify_draws=cell["certify_draws"])
    return attacked_rows(cell, run, folder, asked, settings)


def settings_of(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the model of a figure's cell is trained with."""
    given = {name: cell[name] for name in _TRAINING if cell[name] is not None}
    return given | _WAYS[cell["way"]] | ({"norm": "linf"} if cell["way"] else {})


def attacked_rows(
    cell: dict[str, Any],
    run: "TrainedRun",
    folder: Path,
    attacks: Sequence["AttackSettings"],
    settings: "EvaluationSettings",
) -> list[dict[str, Any]]:
    """Return a row per attack. What was measured stays in `folder`: a stopped cell goes on where it was."""
    from securesgd.attacks.evaluate import evaluate_run

    folder.mkdir(parents=True, exist_ok=True)
    inputs, targets = (values[: cell["examples"]] for values in (run.data.test_inputs, run.data.test_targets))
    found = evaluate_run(folder, run.model, inputs, targets, attacks, settings).cells
    return [_row(cell, run, entry) for entry in sorted(found.values(), key=_place)]


def _place(entry: dict[str, Any]) -> tuple[int, int, float]:
    """Return where an entry stands in the table."""
    settings = entry["attack"]
    return PROTOCOLS.index(settings["protocol"]), _PAPER_ATTACKS.index(settings["attack"]), settings["budget"]


def _row(cell: dict[str, Any], run: "TrainedRun", entry: dict[str, Any]) -> dict[str, Any]:
    summary, settings, measured = entry["summary"], entry["attack"], entry["measured"]
    proven = summary.get("certified_accuracy", {})
    return {
        **cell,
        "protocol": settings["protocol"],
        "attack": settings["attack"],
        "norm": settings["norm"],
        "budget": settings["budget"],
        **{name: settings[name] for name in ("steps", "eot", "restarts") if name not in cell},
        "guaranteed": int(run.statement.guaranteed_but_for_seed),
        "test_accuracy": run.test_accuracy,
        **_columns("clean", summary["clean_accuracy"]),
        **_columns("attacked", summary["accuracy"]),
        **_columns("certified_clean", proven.get("tight", {}).get("clean")),
        **_columns("certified_attacked", proven.get("tight", {}).get("attacked")),
        **_columns("published_attacked", proven.get("as-published", {}).get("attacked")),
        "undecided": summary["undecided"],
        "sandwich_holds": int(summary["sandwich"]["holds"]),
        "flags": " ".join(sorted({probe["name"] for probe in entry.get("probes", [])})),
        "failure_prob": measured["failure_prob"],
        **{f"used_{name}": measured[name] for name in ("draws", "certify_draws")},
        "seconds": round(entry["seconds"], 2),
    }


def _columns(name: str, share: dict[str, float] | None) -> dict[str, Any]:
    """Return share and 95 % interval; a model without noise has nothing certified."""
    share = share or {"share": 0.0, "lower": 0.0, "upper": 0.0}
    return {name: share["share"], f"{name}_lower": share["lower"], f"{name}_upper": share["upper"]}


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
