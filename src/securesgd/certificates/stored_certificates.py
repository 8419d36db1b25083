"""The files of a run's certificates: what is read from them, and what they must agree with.

`certificates.csv` has a row per family, norm and example, `certificates.json` a record per norm of smoothing, and one
called `interval`, that states the settings, the weights and data they were made with, and what is guaranteed. Each row
carries a digest of its record; rows of another digest than their record's are what an interrupted replacement left, and
do not count. Cells of the other family are empty. What is read is not believed: see `stored_proofs`.
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
    "rows_of",
    "stated_intervals",
    "stated_result",
    "write_certificates",
]

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from securesgd.certificates.recheck import record_digest
from securesgd.certificates.record import NO_NOISE, SEEDED, Certificates, CertifySettings
from securesgd.certificates.rules import (
    FAMILIES,
    INTERVAL,
    INTERVAL_RULES,
    SMOOTHING,
    radius_rules,
    record_key,
    recorded_rules,
)
from securesgd.certificates.sensitivity import fingerprint, published_whitened_sensitivity
from securesgd.certificates.summary import certified_summary, guarantee_in_words, record_in_words
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.run_folder import CERTIFICATE_RECORD as RECORD
from securesgd.runtime.run_folder import CERTIFICATES, WEIGHTS
from securesgd.runtime.run_folder import SENSITIVITY as SENSITIVITIES
from securesgd.runtime.storage import file_digest, read_json, write_json
from securesgd.runtime.tables import read_rows, write_rows
from securesgd.theory import NORMS, Sensitivity
from securesgd.theory.certificates import BUILT_IN_RULES

_WHOLE = ("index", "label", "prediction", "abstained", "draws")
_COLUMNS = ("norm", "record", "answer", *_WHOLE, "p_lower", "q_upper", "rounding")
_BY_VOTES = ("p_lower", "q_upper", "rounding")

Row = dict[str, Any]


def new_record(settings: CertifySettings, model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
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


def stated_intervals(record: dict[str, Any], model: nn.Module, rows: list[Row]) -> dict[str, Any]:
    """Return a record of the interval family with what its rows prove."""
    summary = certified_summary(rows)
    stated = {
        **record,
        "noise": NO_NOISE,
        "without_noise": isinstance(model, NoisyNetwork),
        "examples": len(rows),
        "summary": summary,
        "rules": list(INTERVAL_RULES),
    }
    return stated | {"guarantee": record_in_words(stated, summary)}


def rows_of(rows: Iterable[Row], key: str) -> list[Row]:
    """Return the rows of one entry of certificates.json."""
    return [row for row in rows if record_key(row) == key]


def certificate_rows(certificates: Certificates, targets: Tensor, digest: str) -> list[Row]:
    """Return certificates as rows of certificates.csv."""
    labels, by_votes = targets.numpy(), certificates.family == SMOOTHING
    return [
        {
            "family": certificates.family,
            "norm": certificates.settings.row_norm,
            "record": digest,
            "index": int(index),
            "label": int(labels[index]),
            "prediction": int(certificates.prediction[i]),
            "abstained": int(certificates.abstained[i]),
            "answer": str(certificates.answer[i]),
            "draws": int(certificates.draws[i]),
            **{name: float(getattr(certificates, name)[i]) if by_votes else None for name in _BY_VOTES},
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
    table = folder / CERTIFICATES
    columns = list(read_rows(table, as_text=True)[0]) if rows else []
    return records, [row for row in rows if digests.get(record_key(row)) == row["record"]], columns


def record_rules(folder: Path, rules: Iterable[str]) -> None:
    """Name `rules` in the records of the folder, if there are any, before a row has radii by them.

    So there is no moment at which certificates.csv has radii that certificates.json does not record.
    """
    if not (folder / RECORD).exists():
        return
    records = read_json(folder / RECORD)
    by_votes = [record for key, record in records.items() if key != INTERVAL]
    if any(not set(rules) <= set(recorded_rules(record)) for record in by_votes):
        for record in by_votes:
            record["rules"] = list(dict.fromkeys([*recorded_rules(record), *rules]))
        write_json(folder / RECORD, records)


def write_certificates(folder: Path, rows: list[Row], records: dict[str, Any], columns: Sequence[str]) -> None:
    """Write the table, which may replace one with `columns`, then the records; all are about the folder's weights.

    If the records are never written, rows of another digest do not count.
    """
    rows.sort(key=lambda row: (FAMILIES.index(row["family"]), row["norm"], row["index"]))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [{name: "" if row.get(name) is None else row[name] for name in names} for row in rows]
    write_rows(folder / CERTIFICATES, table, replaces=columns)
    for record in records.values():  # others were refused, or replaced
        record["model_file"] = file_digest(folder / WEIGHTS)
    write_json(folder / RECORD, records)


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
        rows = [_parse_row(*row) for row in enumerate(read_rows(table, numbers=_WHOLE), start=1)]
        for key, entry in records.items():
            entry["weights"], entry["data"], entry["settings"]["norm"]
            if (entry["settings"].get("family") == INTERVAL) != (key == INTERVAL):
                raise ValueError(f"the record {key} is of another family")
            if key != INTERVAL:
                float(entry["sensitivity"]["upper"]), entry["published_sensitivity"]
            recorded_rules(entry)
        if len({(record_key(row), row["index"], row["record"]) for row in rows}) < len(rows):
            raise ValueError("a row occurs twice")
        return records, rows
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{table} or {record.name} is damaged ({error}); move both away") from None


def _parse_row(place: int, row: Row) -> Row:
    """Return a row of the table without the cells of the other family. Raises: ValueError if it is not one."""
    family = row.get("family", SMOOTHING)
    if family not in FAMILIES:
        raise ValueError(f"a row is of another family than {', '.join(FAMILIES)}")
    if not set(_COLUMNS) <= set(row):
        raise ValueError("columns are missing")
    if row["norm"] not in (NORMS if family == SMOOTHING else ("linf", "box")):
        raise ValueError(f"a row is of another norm than {', '.join(NORMS)}")
    own = {name: value for name, value in row.items() if value is not None or not name.startswith("radius_")}
    expected = [f"radius_{rule}" for rule in (BUILT_IN_RULES if family == SMOOTHING else INTERVAL_RULES)]
    finite = expected + (["p_lower", "q_upper"] if family == SMOOTHING else [])
    for name in finite:
        value = own.get(name)
        if not (isinstance(value, float) and math.isfinite(value)):
            shown = "" if value is None else str(value)[:40]
            raise ValueError(f"{CERTIFICATES}, row {place}: {name} is {shown!r}; valid: a finite number")
    if family == SMOOTHING:
        [float(row[name]) for name in ("rounding", *(f"radius_{rule}" for rule in radius_rules(own)))]
    answer = "" if row["answer"] is None else row["answer"]
    return {"family": family} | own | {name: int(row[name]) for name in _WHOLE} | {"answer": answer}


def _differing_settings(record: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the settings that differ, with the values of the stored record."""
    stored = record["settings"]
    return ", ".join(
        f"{name} {stored.get(name)}" for name, value in new["settings"].items() if stored.get(name) != value
    )
