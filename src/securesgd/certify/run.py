"""`securesgd certify`: certificates of a run's test examples, kept in its folder as they come.

`certificates.csv` has a row per norm and example, `certificates.json` an entry per norm that says what was asked, with
which weights, and what is guaranteed. An example's certificate does not depend on the others, so a certification that
was interrupted, or asked for more examples later, goes on where it was.
"""

__all__ = ["CERTIFICATES", "RECORD", "certify_run"]

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from securesgd.certify.certificates import ALL_RULES, Certificates
from securesgd.certify.certify import CertifyProgress, certify
from securesgd.certify.settings import CertifySettings
from securesgd.certify.weights import fingerprint, known_sensitivity
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.report.certified import certified_summary, guarantee_in_words
from securesgd.report.rows import read_rows, write_json, write_rows
from securesgd.theory import Sensitivity

CERTIFICATES, RECORD, SENSITIVITIES = "certificates.csv", "certificates.json", "sensitivity.json"
_PART = 256  # examples between two writes


def certify_run(
    folder: Path,
    model: NoisyNetwork,
    inputs: Tensor,
    targets: Tensor,
    norms: Sequence[str],
    settings: CertifySettings,
    *,
    again: bool = False,
    on_progress: Callable[[float, int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Certify examples 0, 1, … of a run's test set that have no certificate yet; return the record of each norm.

    All norms share the votes: one statement of failure probability covers an example's radii in all of them.
    Raises: InvalidInputError if the folder has certificates by other settings (unless `again`), DamagedFileError if
    they are about other weights or the files are broken. Nothing else is overwritten.
    """
    weights = fingerprint(model)
    known = {norm: known_sensitivity(model, norm, folder / SENSITIVITIES) for norm in norms}
    if settings.adaptive and len(norms) > 1:
        raise InvalidInputError("a radius or tolerance is in one norm; ask for one norm at a time")
    records, rows = _read(folder)
    asked = {norm: _asked(settings, norm, weights) for norm in norms}
    for norm in norms:
        if norm not in records:
            continue
        if records[norm]["weights"] != weights:
            raise DamagedFileError(f"{folder / CERTIFICATES} is about other weights than the model's; move it away")
        if records[norm]["settings"] != asked[norm]["settings"]:
            if not again:
                change = _change(records[norm], asked[norm])
                raise InvalidInputError(
                    f"{folder / CERTIFICATES} has {norm} certificates by other settings ({change}); use the same, or "
                    "--again to replace them"
                )
            rows = [row for row in rows if row["norm"] != norm]
            del records[norm]
    done = [{int(row["index"]) for row in rows if row["norm"] == norm} for norm in norms]
    todo = np.array([i for i in range(len(inputs)) if not all(i in there for there in done)], dtype=np.int64)
    for start in range(0, len(todo), _PART):
        part = todo[start : start + _PART]

        def progress(report: CertifyProgress, before: int = start) -> None:
            if on_progress is not None:
                on_progress(before + report.examples, len(todo))

        found = certify(
            model,
            inputs[part],
            _in(settings, norms[0]),
            indices=part,
            on_progress=progress,
            sensitivity=known[norms[0]],
        )
        for norm, there in zip(norms, done, strict=True):
            shown = found if norm == norms[0] else found.in_norm(norm, model, known[norm])
            rows += [row for row in _rows(shown, targets) if row["index"] not in there]
        rows.sort(key=lambda row: (row["norm"], int(row["index"])))
        write_rows(folder / CERTIFICATES, rows)
        records |= {norm: _record(asked[norm], known[norm], rows) for norm in norms}
        write_json(folder / RECORD, records)
    return {norm: records[norm] for norm in norms}


def _asked(settings: CertifySettings, norm: str, weights: str) -> dict[str, Any]:
    return {"weights": weights, "settings": json.loads(json.dumps(_in(settings, norm).json()))}


def _in(settings: CertifySettings, norm: str) -> CertifySettings:
    return CertifySettings(**{**settings.__dict__, "norm": norm})


def _record(asked: dict[str, Any], bound: Sensitivity, rows: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [row for row in rows if row["norm"] == bound.norm]
    proof = {"upper": bound.upper, "lower": bound.lower, "method": bound.method}
    summary = certified_summary(mine)
    words = guarantee_in_words(asked["settings"], proof, summary)
    return {**asked, "sensitivity": proof, "examples": len(mine), "summary": summary, "guarantee": words}


def _rows(found: Certificates, targets: Tensor) -> list[dict[str, Any]]:
    labels = targets.numpy()
    return [
        {
            "norm": found.settings.norm,
            "index": int(index),
            "label": int(labels[index]),
            "prediction": int(found.prediction[i]),
            "abstained": int(found.abstained[i]),
            "answer": str(found.answer[i]),
            "draws": int(found.draws[i]),
            "p_lower": float(found.p_lower[i]),
            "q_upper": float(found.q_upper[i]),
            **{f"radius_{rule}": float(found.radius[rule][i]) for rule in ALL_RULES},
        }
        for i, index in enumerate(found.index)
    ]


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what is there: records by norm, and rows."""
    rows, record = folder / CERTIFICATES, folder / RECORD
    if not rows.exists() and not record.exists():
        return {}, []
    try:
        records = json.loads(record.read_text(encoding="utf-8"))
        present = read_rows(rows)
        for entry in records.values():
            entry["weights"], entry["settings"]
        # A crash between the two files leaves rows without an entry: they are made again, with the same result.
        return records, [row for row in present if row["norm"] in records]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{record} or {rows.name} is damaged ({error}); move both away") from None


def _change(there: dict[str, Any], asked: dict[str, Any]) -> str:
    changed = [name for name, value in asked["settings"].items() if there["settings"].get(name) != value]
    return ", ".join(f"{name} {there['settings'].get(name)}" for name in changed)
