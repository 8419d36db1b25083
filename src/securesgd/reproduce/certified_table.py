"""Certified accuracy of one MNIST model by every rule, from the same votes, and an attack on the certificates.

The model is the one of `redistribution.py` with r learned from the prior: epsilon 3, noise at the input, seed 0.
"""

__all__ = ["MINUTES", "cells", "draw", "measure"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from securesgd.report.plots import summary_curves_figure
from securesgd.reproduce import redistribution

WAY, SEED = "learned-from-prior", 0
_PROFILES: dict[str, dict[str, int]] = {
    "paper": {"examples": 1_000, "draws": 10_000},
    "quick": {"examples": 200, "draws": 10_000},
}
MINUTES = {"quick": 8, "paper": 8}
"""Of one core for a cell."""


def cells(profile: str) -> list[dict[str, Any]]:
    """Return the norms; both are read off the same votes."""
    return [{"norm": norm, **_PROFILES[profile]} for norm in ("linf", "l2")]


def measure(cell: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Certify, check, and return a row per rule and radius."""
    from securesgd.attacks.falsify import check_run
    from securesgd.certificates.record import CertifySettings
    from securesgd.certificates.run_certificates import SENSITIVITIES, certify_run
    from securesgd.certificates.sensitivity import known_sensitivity
    from securesgd.certificates.summary import certified_summary
    from securesgd.runtime.tables import read_rows

    run = redistribution.trained_model(WAY, SEED, work.parent / "redistribution")
    norm, count = cell["norm"], cell["examples"]
    settings = CertifySettings(norm=norm, draws=cell["draws"], seed=0)
    folder = work / norm  # the votes of both norms are the same, made once for each: two processes may be at it
    folder.mkdir(parents=True, exist_ok=True)
    certify_run(folder, run.model, run.data.test_inputs, run.data.test_targets, [norm], settings, examples=count)
    rows = [row for row in read_rows(folder / "certificates.csv") if row["index"] < count]
    bound = known_sensitivity(run.model, norm, folder / SENSITIVITIES)  # type: ignore[arg-type]
    checked = check_run(
        folder, run.model, run.data.test_inputs, rows,  # type: ignore[arg-type]
        certificate_failure_prob=settings.failure_prob, direction=bound.direction, restarts=1, eot=20,
    )  # fmt: skip
    summary = certified_summary(rows)
    sound = checked["rules"]["tight"]
    return [
        {
            **cell,
            "rule": rule,
            "radius": float(radius),
            "certified_accuracy": share["share"],
            "lower": share["lower"],
            "upper": share["upper"],
            "average_certified_radius": summary["average_certified_radius"][rule],
            "smoothed_accuracy": summary["accuracy"]["share"],
            "failure_prob": settings.failure_prob,
            "seed": settings.seed,
            "sensitivity_upper": bound.upper,
            "balls_searched": checked["rules"].get(rule, sound)["searched"],
            "violations": checked["rules"].get(rule, sound)["violations"],
            "model": f"redistribution, way {WAY}, seed {SEED}",
        }
        for rule, at in summary["certified_accuracy"].items()
        for radius, share in at.items()
    ]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the table as lines."""
    summary_curves_figure(rows, path)
