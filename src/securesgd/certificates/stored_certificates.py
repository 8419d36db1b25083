"""The files of a run's certificates: what is read from them, and what they must agree with.

`certificates.csv` has a row per norm and example, `certificates.json` a record per norm that states the settings, the
weights and data they were made with, and what is guaranteed. Each row carries a digest of its record; rows of another
digest than their record's are what an interrupted replacement left, and do not count. What is read is not believed: Δ
is proven again from its proof, and radii are computed again.
"""

__all__ = [
    "CERTIFICATES",
    "RECORD",
    "SENSITIVITIES",
    "Row",
    "certificate_rows",
    "examples_digest",
    "new_record",
    "read_certificates",
    "record_rules",
    "require_true_rows",
    "stated_result",
]

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from securesgd.certificates.recheck import record_digest, require_true_radii
from securesgd.certificates.record import SEEDED, Certificates, CertifySettings
from securesgd.certificates.rules import radius_rules, recorded_rules
from securesgd.certificates.sensitivity import fingerprint, published_whitened_sensitivity
from securesgd.certificates.summary import certified_summary, guarantee_in_words
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.run_folder import CERTIFICATE_RECORD as RECORD
from securesgd.runtime.run_folder import CERTIFICATES
from securesgd.runtime.run_folder import SENSITIVITY as SENSITIVITIES
from securesgd.runtime.storage import read_json, write_json
from securesgd.runtime.tables import read_rows
from securesgd.theory import NORMS, Sensitivity
from securesgd.theory.certificates import BUILT_IN_RULES

_WHOLE = ("index", "label", "prediction", "abstained", "draws")
_COLUMNS = ("norm", "record", "answer", *_WHOLE, "p_lower", "q_upper", "rounding")

Row = dict[str, Any]


def new_record(settings: CertifySettings, model: NoisyNetwork, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return what a stored record must agree with for its rows to be the same as those that would be made now."""
    return {"weights": fingerprint(model), "data": examples_digest(inputs, targets), "settings": settings.json()}


def examples_digest(inputs: Tensor, targets: Tensor) -> str:
    """Return a digest of a test set, by which results on one are not taken for results on another."""
    data = hashlib.sha256()
    for tensor in (inputs, targets):
        data.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        data.update(tensor.detach().cpu().contiguous().numpy().data)
    return data.hexdigest()


def stated_result(
    record: dict[str, Any], delta: Sensitivity, model: NoisyNetwork, rows: list[Row], rules: Sequence[str]
) -> dict[str, Any]:
    """Return a record with what its rows, all of one norm, prove."""
    proof = {"upper": delta.upper, "lower": delta.lower, "method": delta.method}
    summary = certified_summary(rows)
    return {
        **record,
        "noise": SEEDED,
        "input_path": model.input_path,
        "sensitivity": proof,
        "published_sensitivity": published_whitened_sensitivity(model, delta),
        "examples": len(rows),
        "summary": summary,
        "guarantee": guarantee_in_words(record["settings"], proof, summary),
        "rules": list(rules),
    }


def certificate_rows(certificates: Certificates, targets: Tensor, digest: str) -> list[Row]:
    """Return certificates as rows of certificates.csv."""
    labels = targets.numpy()
    return [
        {
            "norm": certificates.settings.norm,
            "record": digest,
            "index": int(index),
            "label": int(labels[index]),
            "prediction": int(certificates.prediction[i]),
            "abstained": int(certificates.abstained[i]),
            "answer": str(certificates.answer[i]),
            "draws": int(certificates.draws[i]),
            "p_lower": float(certificates.p_lower[i]),
            "q_upper": float(certificates.q_upper[i]),
            "rounding": float(certificates.rounding[i]),
            **{f"radius_{rule}": float(radii[i]) for rule, radii in certificates.radius.items()},
        }
        for i, index in enumerate(certificates.index)
    ]


def read_certificates(
    folder: Path, new_records: dict[str, dict[str, Any]], again: bool
) -> tuple[dict[str, Any], list[Row], list[str]]:
    """Return the records and rows in the folder that agree with the new records, and the columns of the table.

    Raises: DamagedFileError if the files are broken or were made with other weights or data, InvalidInputError if they
    were made with other settings. With `again` those are left out instead.
    """
    records, rows = _read_files(folder, again)
    new = next(iter(new_records.values()))
    for norm, record in list(records.items()):
        differing = [name for name in ("weights", "data") if record[name] != new[name]]
        if differing and not again:
            what = differing[0]
            raise DamagedFileError(
                f"{folder / CERTIFICATES} was made with other {what} (sha256 {str(record[what])[:8]}…) than the run's "
                f"({new[what][:8]}…): one of them was replaced; --again makes new certificates"
            )
        if norm in new_records and record["settings"] != new_records[norm]["settings"] and not again:
            raise InvalidInputError(
                f"{folder / CERTIFICATES} has {norm} certificates by other settings "
                f"({_differing_settings(record, new_records[norm])}); use the same, or --again to replace them"
            )
        if differing or (again and norm in new_records):
            del records[norm]
    digests = {norm: record_digest(record) for norm, record in records.items()}
    columns = list(rows[0]) if rows else []
    return records, [row for row in rows if digests.get(row["norm"]) == row["record"]], columns


def record_rules(folder: Path, rules: Iterable[str]) -> None:
    """Name `rules` in the records of the folder, if there are any, before a row has radii by them.

    So there is no moment at which certificates.csv has radii that certificates.json does not record.
    """
    if not (folder / RECORD).exists():
        return
    records = read_json(folder / RECORD)
    if any(not set(rules) <= set(recorded_rules(record)) for record in records.values()):
        for record in records.values():
            record["rules"] = list(dict.fromkeys([*recorded_rules(record), *rules]))
        write_json(folder / RECORD, records)


def require_true_rows(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any],
    delta: Sensitivity,
    model: NoisyNetwork,
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Pass if a record and its rows state nothing but what Δ, the model and the rows' own bounds give.

    Raises: DamagedFileError if not.
    """
    published = published_whitened_sensitivity(model, delta)
    for words, stated, true in (
        ("Δ", record["sensitivity"]["upper"], delta.upper),
        ("the published Δ", record["published_sensitivity"], published),
    ):
        if not math.isclose(stated, true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / RECORD} states {words} in {delta.norm} as {stated:g}, but it is {true:g}: the file was "
                "changed; --again makes new certificates"
            )
    indices = [row["index"] for row in rows]
    if len(set(indices)) < len(rows) or not all(0 <= index < len(inputs) for index in indices):
        raise DamagedFileError(
            f"{folder / CERTIFICATES} has {delta.norm} rows of examples that the data set does not have, or one twice"
        )
    rounding: Any = model.rounding(inputs[indices]) if rows else ()
    for row, true in zip(rows, rounding, strict=True):
        if row["label"] != int(targets[row["index"]]) or not math.isclose(row["rounding"], true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / CERTIFICATES}, example {row['index']} in {delta.norm}: label or rounding are not the "
                "example's; the row was changed"
            )
    require_true_radii(rows, record, str(folder / CERTIFICATES))


def _read_files(folder: Path, again: bool) -> tuple[dict[str, Any], list[Row]]:
    """Return the records by norm, and the rows, as the folder has them."""
    table, record = folder / CERTIFICATES, folder / RECORD
    if not record.exists() and (again or not table.exists()):
        return {}, []
    if not record.exists():
        raise DamagedFileError(
            f"{record} is missing, so it is not known how {table.name} was made; move that away, or --again replaces it"
        )
    try:
        records = read_json(record)
        numbers = (*_WHOLE, "p_lower", "q_upper", *(f"radius_{rule}" for rule in BUILT_IN_RULES))
        rows = [row | {name: int(row[name]) for name in _WHOLE} for row in read_rows(table, numbers=numbers)]
        for entry in records.values():
            entry["weights"], entry["data"], entry["settings"]["norm"], entry["published_sensitivity"]
            float(entry["sensitivity"]["upper"])
            recorded_rules(entry)
        if any(not set(_COLUMNS) <= set(row) for row in rows[:1]):
            raise ValueError("columns are missing")
        for row in rows:
            [float(row[name]) for name in ("rounding", *(f"radius_{rule}" for rule in radius_rules(row)))]
        if len({(row["norm"], row["index"], row["record"]) for row in rows}) < len(rows):
            raise ValueError("a row occurs twice")
        if not {row["norm"] for row in rows} <= set(NORMS):
            raise ValueError(f"a row is of another norm than {', '.join(NORMS)}")
        return records, rows
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{table} or {record.name} is damaged ({error}); move both away") from None


def _differing_settings(record: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the settings that differ, with the values of the stored record."""
    stored = record["settings"]
    return ", ".join(
        f"{name} {stored.get(name)}" for name, value in new["settings"].items() if stored.get(name) != value
    )
