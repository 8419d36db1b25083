"""The part of a report about the privacy of the training data: statement, releases, what they mean. No torch."""

__all__ = ["NO_PRIVACY", "privacy_part"]

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from securesgd.audit.record import audit_in_words, audit_summary, read_audit
from securesgd.privacy import FullStatement, full_statement
from securesgd.privacy.events import (
    GaussianRelease,
    PrivacyEvent,
    RepeatAndSelect,
    SampledGaussianSteps,
    UnprotectedRelease,
)
from securesgd.privacy.ledger_record import Record
from securesgd.privacy.statement_rows import basis_rows, figure_rows
from securesgd.report.charts import budget_chart
from securesgd.report.run_record import RunRecord
from securesgd.theory.rounding import round_down, round_up

NO_PRIVACY: dict[str, Any] = {
    "statement": None, "doubts": [], "words": "", "epsilon": "–", "epsilon_shown": "unknown", "delta": "–",
    "releases": [], "spent": None, "replayed": None, "figures": [], "basis": [], "audit": None, "short": "",
    "cautions": [],
}  # fmt: skip
"""What the page shows if the files of this part cannot be used."""


def privacy_part(record: RunRecord) -> dict[str, Any]:
    """Return the privacy statement as the ledger gives it now, not as the run wrote it, and the releases behind it."""
    statement = None if record.statement is None or record.replayed is None else record.replayed
    header = None if record.ledger is None else record.ledger.header
    epsilon, delta = "–", "–" if header is None else str(header.delta)
    if statement is not None:
        epsilon = "∞" if math.isinf(statement.epsilon) else _epsilon_text(statement.epsilon)
        delta = f"{statement.delta:g}"
    full = None if record.ledger is None or statement is None else _full(record)
    return {
        "statement": None if statement is None else statement.json(),
        "doubts": record.doubts,
        "short": "" if statement is None else statement.in_short,
        "cautions": [] if statement is None else list(statement.cautions),
        "words": (record.statement or {}).get("in_words", ""),
        "replayed": record.replayed,
        "epsilon": epsilon,
        "epsilon_shown": {"∞": "not private", "–": "unknown"}.get(epsilon, epsilon),
        "delta": delta,
        "releases": [] if record.ledger is None else _releases(record.ledger.records),
        "adjacency": "unknown" if header is None else header.adjacency,
        "accountant": "UNKNOWN, " if header is None else f"{header.accountant.upper()}, {header.accountant_version}",
        "examples": "not public" if header is None or header.dataset_size is None else f"{header.dataset_size:,}",
        "spent": None if record.ledger is None else budget_chart(record.ledger),
        "audit": _audit(record),
        "figures": [] if full is None else figure_rows(full),
        "basis": [] if full is None else basis_rows(full),
    }


def _audit(record: RunRecord) -> dict[str, Any] | None:
    """Return what an audit measured, as a sentence and a row for each bound; None if there was none.

    The bars of the rows are shares of the claimed epsilon, or of a larger bound.
    """
    audit = read_audit(record.folder)
    if audit is None:
        return None
    bounds = audit_summary(audit)
    claim = float(audit["claim"]["epsilon"])
    longest = max(claim, *(row["epsilon_lower_bound"] for row in bounds)) or 1.0
    rows = [
        row
        | {name: f"{row[name]:,}" for name in ("canaries", "guesses", "right")}
        | {"bound": f"{round_down(row['epsilon_lower_bound'], digits=4):.4g}"}
        | {"length": row["epsilon_lower_bound"] / longest}
        for row in bounds
    ]
    words = {"words": audit_in_words(audit), "holds": audit["holds"] is True}
    return words | {"rows": rows, "claim": f"{claim:.4g}", "claim_length": claim / longest}


def _full(record: RunRecord) -> FullStatement:
    """Return the full statement of the run's ledger, with the versions that the run says it was made with."""
    assert record.ledger is not None
    versions = {"securesgd": record.ledger.header.securesgd_version}
    return full_statement(record.ledger, versions=versions, finished=True)


def _epsilon_text(epsilon: float) -> str:
    """Return epsilon to four decimals, never below it, without zeros at the end."""
    return f"{round_up(epsilon, decimals=4):.4f}".rstrip("0").rstrip(".")


def _releases(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return the ledger's events as rows, consecutive blocks of equal DP-SGD steps as one."""
    rows: list[dict[str, Any]] = []
    last: PrivacyEvent | None = None
    for record in records:
        event, spent = (
            record.event,
            "∞" if math.isinf(record.epsilon) else f"{round_up(record.epsilon, decimals=4):.4f}",
        )
        row: dict[str, Any] = {"noise": "none", "rate": "–", "times": 1, "epsilon": spent}
        match event:
            case SampledGaussianSteps():
                if isinstance(last, SampledGaussianSteps) and replace(last, steps=event.steps) == event:
                    rows[-1] |= {"times": rows[-1]["times"] + event.steps, "epsilon": spent}
                    continue
                row |= {"what": "steps of DP-SGD on Poisson samples", "noise": f"{event.noise_multiplier:.4f}"}
                row |= {"rate": f"{event.sampling_rate:.5f}", "times": event.steps}
            case GaussianRelease():
                row |= {"what": event.label, "noise": f"{event.noise_multiplier:.4f}"}
            case UnprotectedRelease():
                row |= {"what": f"{event.label}: {event.reason}"}
            case RepeatAndSelect():
                parts = (
                    f"{part.steps:,} steps of DP-SGD (sampling rate {part.sampling_rate:.5f})"
                    if isinstance(part, SampledGaussianSteps)
                    else part.label
                    for part in event.trial
                )
                row |= {"what": f"{event.label} ({event.mean:g} on average), each: {' and '.join(parts)}"}
                row |= {"noise": " and ".join(f"{part.noise_multiplier:.4f}" for part in event.trial)}
        rows.append(row)
        last = event
    return [row | {"times": f"{row['times']:,}"} for row in rows]
