"""Audits of our own training: what canaries prove about epsilon, claimed against measured.

DP-SGD on the digits at claimed epsilons of 1, 3 and 8: as it is shipped, broken on purpose in one place (each sabotage
of `audit.sabotage`), and with canaries that were never in the data, where an audit must prove nothing.
"""

__all__ = ["AUDIT", "audit_catches"]

import math
from pathlib import Path
from typing import Any

from securesgd.reproduce.audit_plots import audit_figure
from securesgd.reproduce.grid import Cell, Experiment, Row
from securesgd.runtime.tables import write_rows
from securesgd.theory.confidence import wilson_interval

CLAIMS = (3.0, 1.0, 8.0)
SETTINGS: dict[str, Any] = {"delta": 1e-5, "network": "mlp", "batch_size": 512, "steps": 20}
KINDS = ("no-clipping", "half-noise", "noise-reused", "noise-twice", "biases-unclipped", "mean-clipping")
_PROFILES: dict[str, dict[str, int]] = {"quick": {"runs": 2, "null": 5}, "standard": {"runs": 20, "null": 100}}


def _cells(profile: str) -> list[Cell]:
    """Return the grid, the most wanted cells first: as shipped, then sabotages and null audits at epsilon 3."""
    size = _PROFILES[profile]
    runs = range(size["runs"])

    def cell(epsilon: float, kind: str, seed: int) -> Cell:
        return {"dataset": "digits", "epsilon": epsilon, "kind": kind, "seed": seed}

    return [
        *(cell(3.0, kind, seed) for seed in runs for kind in ("as-shipped", *KINDS)),
        *(cell(epsilon, "as-shipped", seed) for seed in runs for epsilon in CLAIMS[1:]),
        *(cell(3.0, "null", seed) for seed in range(size["null"])),
        *(cell(epsilon, kind, seed) for seed in runs for epsilon in CLAIMS[1:] for kind in KINDS),
    ]


def measure_audit(cell: Cell, work: Path) -> list[Row]:
    """Audit once, and return the row."""
    from securesgd.audit.measure import AuditSettings, audit_config
    from securesgd.config import run_config

    kind = cell["kind"]
    config = run_config(cell["dataset"], "dpsgd", epsilon=cell["epsilon"], **SETTINGS)
    settings = AuditSettings(seed=cell["seed"], sabotage=kind if kind in KINDS else None, insert=kind != "null")
    record = audit_config(config, settings)
    row: Row = {**cell, "claimed": record["claim"]["epsilon"], "delta": record["claim"]["delta"]}
    row |= {"sampling_rate": record["claim"]["sampling_rate"], "noise_multiplier": record["claim"]["noise_multiplier"]}
    row |= {"batch_size": SETTINGS["batch_size"], "steps": SETTINGS["steps"], "network": SETTINGS["network"]}
    for box in ("white_box", "black_box"):
        row |= {f"{box}_{name}": value for name, value in record[box].items()}
    row |= {"epsilon_lower_bound": record["epsilon_lower_bound"], "holds": int(record["holds"])}
    how = {"as-shipped": "", "null": " --null"}.get(kind, f" --sabotage {kind}")
    command = (
        f"securesgd audit --config results/audit/config.toml --set epsilon={cell['epsilon']} --seed {cell['seed']}"
    )
    return [row | {"confidence": record["confidence"], "seconds": record["seconds"], "command": command + how}]


def audit_catches(rows: list[Row]) -> list[dict[str, Any]]:
    """Return for each claim and kind of run: how many there are, bounds, and the share that contradicts the claim."""
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((float(row["epsilon"]), row["kind"]), []).append(row)
    summary = []
    for (epsilon, kind), members in sorted(groups.items()):
        caught = sum(not float(row["holds"]) for row in members)
        lower, upper = wilson_interval(caught, len(members))
        bounds = sorted(float(row["white_box_tradeoff"]) for row in members)
        summary.append(
            {
                "epsilon": epsilon,
                "kind": kind,
                "runs": len(members),
                "above_claim": caught,
                "share_lower": float(lower),
                "share_upper": float(upper),
                "zero": sum(float(row["epsilon_lower_bound"]) == 0 for row in members),
                "lowest": bounds[0],
                "median": bounds[math.ceil(len(bounds) / 2) - 1],
                "highest": bounds[-1],
                "median_simple": sorted(float(row["white_box_simple"]) for row in members)[(len(members) - 1) // 2],
                "highest_black_box": max(float(row["black_box_tradeoff"]) for row in members),
            }
        )
    return summary


def _draw(rows: list[Row], path: Path) -> None:
    """Draw the figure, and write a line per claim and kind into `summary.csv` beside it."""
    audit_figure(rows, path)
    write_rows(path.with_name("summary.csv"), audit_catches(rows))


AUDIT = Experiment(cells=_cells, measure=measure_audit, draw=_draw, minutes={"quick": 0.1, "standard": 0.1})
