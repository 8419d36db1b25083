"""The certificates of a run's test examples, kept in its folder as they come.

`certificates.csv` has a row per norm and example, `certificates.json` an entry per norm that says what was asked, with
which weights and data, and what is guaranteed. Each row carries a digest of what it was made by; rows of another digest
than their record's are what an interrupted replacement left, and do not count. What is read is not believed: Δ is
proven again from its proof, and radii are computed again. An example's certificate does not depend on the others, so a
certification that was interrupted, or asked for more examples later, goes on where it was; and votes do not depend on
the norm, so another norm by the same settings needs no draws at all.
"""

__all__ = ["CERTIFICATES", "RECORD", "SENSITIVITIES", "certify_run"]

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from securesgd.certificates.certify import CertifyProgress, certify
from securesgd.certificates.record import (
    ALL_RULES,
    SEEDED,
    Certificates,
    CertifySettings,
    published_whitened_sensitivity,
)
from securesgd.certificates.summary import certified_summary, guarantee_in_words, record_digest, require_true_radii
from securesgd.certificates.votes import stream_of
from securesgd.certificates.weights import fingerprint, known_sensitivity
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import locked_folder
from securesgd.runtime.storage import file_digest, read_json, write_json
from securesgd.runtime.tables import read_rows, write_rows
from securesgd.theory import NORMS, Sensitivity
from securesgd.theory.certificates import radii_by_rule

CERTIFICATES, RECORD, SENSITIVITIES = "certificates.csv", "certificates.json", "sensitivity.json"
WEIGHTS = "model.safetensors"
_FIRST_PART, _LARGEST_PART, _SECONDS = 32, 512, 20  # examples between two writes, and how far apart those should be
_WHOLE = ("index", "label", "prediction", "abstained", "draws")
_NUMBERS = (*_WHOLE, "p_lower", "q_upper", "rounding")

Row = dict[str, Any]


def certify_run(
    folder: Path,
    model: NoisyNetwork,
    inputs: Tensor,
    targets: Tensor,
    norms: Sequence[str],
    settings: CertifySettings,
    *,
    examples: int | None = None,
    again: bool = False,
    on_progress: Callable[[float, int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Certify the first `examples` of a run's test set that have no certificate yet; return the record of each norm.

    Guarantee: that of `certify`; all norms share the votes, so one failure probability covers an example's radii in all
    of them. Whatever is on disk at any moment is true: the rows that carry the digest of their record. Under
    torch.distributed all processes take part and the first one writes.
    Raises: InvalidInputError if the folder has certificates by other settings, DamagedFileError if they are about other
    weights or data, state more than they prove, or the files are broken. `again` replaces them; nothing is overwritten
    otherwise.
    """
    if settings.seed is None:
        raise InvalidInputError(
            "seed is None; valid: a whole number, so that the certificates of a run can be repeated"
        )
    if settings.adaptive and len(norms) > 1:
        raise InvalidInputError("a radius or tolerance is in one norm; ask for one norm at a time")
    processes = Processes()
    with ExitStack() as stack:
        processes.on_first(lambda: stack.enter_context(locked_folder(folder)))
        asked = {norm: _asked(replace(settings, norm=norm), model, inputs, targets) for norm in norms}

        def begin() -> tuple[dict[str, Sensitivity], dict[str, Any], list[Row]]:
            records, rows = _kept(folder, asked, again)  # a refusal comes before the work
            bounds = {
                norm: known_sensitivity(model, norm, folder / SENSITIVITIES, again=again and norm in norms)
                for norm in {**asked, **records}
            }
            for norm, record in records.items():
                mine = [row for row in rows if row["norm"] == norm]
                _require_true(folder, mine, record, bounds[norm], model, inputs, targets)
            return bounds, records, rows

        bounds, records, rows = processes.on_first(begin)
        rows += _from_other_norms(rows, records, asked, bounds, model)
        wanted = np.arange(len(inputs) if examples is None else examples)
        todo = _todo(wanted, rows, norms)
        done, size = 0, _FIRST_PART * processes.count

        def save() -> dict[str, dict[str, Any]]:
            rows.sort(key=lambda row: (row["norm"], row["index"]))
            write_rows(folder / CERTIFICATES, rows)
            records.update({norm: _record(asked[norm], bounds[norm], model, rows) for norm in norms})
            for record in records.values():  # all are about these weights: others were refused, or replaced
                record["model_file"] = file_digest(folder / WEIGHTS)
            write_json(folder / RECORD, records)  # if this never happens, rows of another digest do not count
            return {norm: records[norm] for norm in norms}

        while done < len(todo):
            part, started = todo[done : done + size], time.perf_counter()

            def progress(report: CertifyProgress, before: int = done, count: int = len(part)) -> None:
                if on_progress is not None:
                    on_progress(before + count * report.examples / max(1, report.of), len(todo))

            first = replace(settings, norm=norms[0])
            found = certify(
                model, inputs[part], first, indices=part, on_progress=progress, sensitivity=bounds[norms[0]]
            )  # fmt: skip
            for norm in norms:
                there = {row["index"] for row in rows if row["norm"] == norm}
                shown = found if norm == norms[0] else found.in_norm(norm, model, bounds[norm])
                made = _rows(shown, targets, record_digest(asked[norm]))
                rows += [row for row in made if row["index"] not in there]
            processes.on_first(save)
            done += len(part)
            # Whatever this clock says: all processes go by the first one's.
            seconds = processes.on_first(lambda started=started: time.perf_counter() - started)  # type: ignore[misc]
            size = int(np.clip(_SECONDS * len(part) / seconds, size, _LARGEST_PART * processes.count))
        return processes.on_first(save)


def _asked(settings: CertifySettings, model: NoisyNetwork, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return what a record must agree with for its rows to be the same as those that would be made now."""
    data = hashlib.sha256()
    for tensor in (inputs, targets):
        data.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        data.update(tensor.contiguous().numpy().data)
    return {"weights": fingerprint(model), "data": data.hexdigest(), "settings": settings.json()}


def _kept(folder: Path, asked: dict[str, Any], again: bool) -> tuple[dict[str, Any], list[Row]]:
    """Return the records and rows in the folder that stay. Raises if some would not, unless `again`."""
    records, rows = _read(folder, again)
    new = next(iter(asked.values()))
    for norm, record in list(records.items()):
        other = [name for name in ("weights", "data") if record[name] != new[name]]
        if other and not again:
            raise DamagedFileError(
                f"{folder / CERTIFICATES} is about other {other[0]} than the run's: one of them was replaced; "
                "--again makes new certificates"
            )
        if norm in asked and record["settings"] != asked[norm]["settings"] and not again:
            raise InvalidInputError(
                f"{folder / CERTIFICATES} has {norm} certificates by other settings ({_change(record, asked[norm])}); "
                "use the same, or --again to replace them"
            )
        if other or (again and norm in asked):
            del records[norm]
    digests = {norm: record_digest(record) for norm, record in records.items()}
    return records, [row for row in rows if digests.get(row["norm"]) == row["record"]]


def _require_true(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any],
    bound: Sensitivity,
    model: NoisyNetwork,
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Pass if a record and its rows state nothing but what Δ, the model and the rows' own bounds give.

    Raises: DamagedFileError if not.
    """
    published = published_whitened_sensitivity(model, bound)
    for words, stated, true in (
        ("Δ", record["sensitivity"]["upper"], bound.upper),
        ("the published Δ", record["published_sensitivity"], published),
    ):
        if not math.isclose(stated, true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / RECORD} states {words} in {bound.norm} as {stated:g}, but it is {true:g}: the file was "
                "changed; --again makes new certificates"
            )
    indices = [row["index"] for row in rows]
    if len(set(indices)) < len(rows) or not all(0 <= index < len(inputs) for index in indices):
        raise DamagedFileError(
            f"{folder / CERTIFICATES} has {bound.norm} rows of examples that are not there, or twice"
        )
    rounding: Any = model.rounding(inputs[indices]) if rows else ()
    for row, true in zip(rows, rounding, strict=True):
        if row["label"] != int(targets[row["index"]]) or not math.isclose(row["rounding"], true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / CERTIFICATES}, example {row['index']} in {bound.norm}: label or rounding are not the "
                "example's; the row was changed"
            )
    require_true_radii(rows, record, str(folder / CERTIFICATES))


def _todo(wanted: NDArray[np.int64], rows: list[Row], norms: Sequence[str]) -> NDArray[np.int64]:
    """Return the examples without a row in some norm, those that share noise side by side."""
    there = [{row["index"] for row in rows if row["norm"] == norm} for norm in norms]
    todo = np.array([i for i in wanted if not all(i in indices for indices in there)], dtype=np.int64)
    return todo[np.lexsort((todo, stream_of(todo)))]


def _from_other_norms(
    rows: list[Row],
    records: dict[str, Any],
    asked: dict[str, Any],
    bounds: dict[str, Sensitivity],
    model: NoisyNetwork,
) -> list[Row]:
    """Return rows in norms that have none yet, from the votes of a norm that was certified by the same settings."""
    made: list[Row] = []
    for norm in (norm for norm in asked if norm not in records):
        same = asked[norm]["settings"] | {"norm": None}
        source = next((n for n, r in records.items() if r["settings"] | {"norm": None} == same), None)
        if source is None or same["radius"] is not None or same["tolerance"] is not None:
            continue
        old = [row for row in rows if row["norm"] == source]
        p, q, rounding = (np.array([row[name] for row in old]) for name in ("p_lower", "q_upper", "rounding"))
        published = published_whitened_sensitivity(model, bounds[norm])
        found = radii_by_rule(p, q, bounds[norm].upper, published, rounding)
        made += [
            {**row, "norm": norm, "record": record_digest(asked[norm])}
            | {f"radius_{rule}": float(found[rule][i]) for rule in ALL_RULES}
            for i, row in enumerate(old)
        ]
    return made


def _record(asked: dict[str, Any], bound: Sensitivity, model: NoisyNetwork, rows: list[Row]) -> dict[str, Any]:
    mine = [row for row in rows if row["norm"] == bound.norm]
    proof = {"upper": bound.upper, "lower": bound.lower, "method": bound.method}
    summary = certified_summary(mine)
    words = guarantee_in_words(asked["settings"], proof, summary)
    return {
        **asked,
        "noise": SEEDED,
        "input_path": model.input_path,
        "sensitivity": proof,
        "published_sensitivity": published_whitened_sensitivity(model, bound),
        "examples": len(mine),
        "summary": summary,
        "guarantee": words,
    }


def _rows(found: Certificates, targets: Tensor, digest: str) -> list[Row]:
    labels = targets.numpy()
    return [
        {
            "norm": found.settings.norm,
            "record": digest,
            "index": int(index),
            "label": int(labels[index]),
            "prediction": int(found.prediction[i]),
            "abstained": int(found.abstained[i]),
            "answer": str(found.answer[i]),
            "draws": int(found.draws[i]),
            "p_lower": float(found.p_lower[i]),
            "q_upper": float(found.q_upper[i]),
            "rounding": float(found.rounding[i]),
            **{f"radius_{rule}": float(found.radius[rule][i]) for rule in ALL_RULES},
        }
        for i, index in enumerate(found.index)
    ]


def _read(folder: Path, again: bool) -> tuple[dict[str, Any], list[Row]]:
    """Return what is there: records by norm, and rows."""
    table, record = folder / CERTIFICATES, folder / RECORD
    if not record.exists() and (again or not table.exists()):
        return {}, []
    if not record.exists():
        raise DamagedFileError(
            f"{record} is missing, so nobody knows how {table.name} was made; move that away, or --again replaces it"
        )
    try:
        records = read_json(record)
        numbers = (*_WHOLE, "p_lower", "q_upper", *(f"radius_{rule}" for rule in ALL_RULES))
        rows = [row | {name: int(row[name]) for name in _WHOLE} for row in read_rows(table, numbers=numbers)]
        for entry in records.values():
            entry["weights"], entry["data"], entry["settings"]["norm"], entry["published_sensitivity"]
            float(entry["sensitivity"]["upper"])
        needed = {*_NUMBERS, "record", "answer", *(f"radius_{rule}" for rule in ALL_RULES)}
        if any(not needed <= set(row) for row in rows[:1]):
            raise ValueError("columns are missing")
        for row in rows:
            [float(row[name]) for name in needed - {"record", "answer"}]
        if len({(row["norm"], row["index"], row["record"]) for row in rows}) < len(rows):
            raise ValueError("a row occurs twice")
        if not {row["norm"] for row in rows} <= set(NORMS):
            raise ValueError(f"a row is of another norm than {', '.join(NORMS)}")
        return records, rows
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{table} or {record.name} is damaged ({error}); move both away") from None


def _change(there: dict[str, Any], asked: dict[str, Any]) -> str:
    """Return what differs, as it is in the folder."""
    changed = [name for name, value in asked["settings"].items() if there["settings"].get(name) != value]
    return ", ".join(f"{name} {there['settings'].get(name)}" for name in changed)
