"""The claims of certify and attack: rows, summaries and words, recounted from the files themselves. No torch."""

__all__ = ["RESULT_CLAIMS", "is_own_test_set"]

import math
from typing import Any

from securesgd.attacks.recheck import require_same_settings, require_true_cell, require_true_summary
from securesgd.certificates.column_radii import column_radii_table, table_schema
from securesgd.certificates.recheck import (
    record_digest,
    require_attainable_bounds,
    require_true_intervals,
    require_true_radii,
)
from securesgd.certificates.rules import INTERVAL, SMOOTHING, record_key
from securesgd.certificates.summary import certified_summary, record_in_words
from securesgd.check.evidence import Evidence
from securesgd.check.outcome import Claim, NotCheckable, require_equal
from securesgd.errors import DamagedFileError
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import read_bytes, read_json
from securesgd.theory.majority import allowed_failures

_RECORD_KEYS = {
    "weights", "data", "settings", "noise", "input_path", "sensitivity", "published_sensitivity", "examples", "summary",
    "guarantee", "rules", "without_noise", "model_file",
}  # fmt: skip
_CELL_KEYS = {"attack", "measured", "seconds", "outside", "flat", "attacked", "passes", "data", "summary", "probes"}
_WHOLE = ("index", "label", "prediction", "abstained", "draws")
_COLUMNS = ("family", "norm", "record", "answer", *_WHOLE, "p_lower", "q_upper", "rounding")


def is_own_test_set(evidence: Evidence, digest: Any) -> bool:
    """Return whether results with this digest of their examples are about the run's own test set."""
    return digest is not None and digest == evidence.model.get("test_sha256")


def _check_certificates(evidence: Evidence) -> str:
    """Return that every row of certificates.csv is what its bounds prove, and every record what its rows give."""
    rows, records, proven = evidence.certificate_rows, evidence.certificate_records, []
    if {record_key(row) for row in rows} != set(records):
        raise DamagedFileError(
            "certificates.csv has rows of norms that certificates.json does not record, or none of one"
        )
    for key, record in records.items():
        own = [row for row in rows if record_key(row) == key]
        _require_own_weights(evidence, names.CERTIFICATE_RECORD, record)
        _require_record(key, record, own)
        _require_rows(evidence, key, record, own)
        proven.append(f"{len(own)} rows in {key}")
    others = {record["data"] for record in records.values() if not is_own_test_set(evidence, record["data"])}
    about = f" (examples with sha256 {min(map(str, others))[:8]}…, not the run's own test set)" if others else ""
    return f"radii of {', '.join(proven)} are what their bounds and Δ give, and so are the summaries{about}"


def _require_record(key: str, record: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Raise DamagedFileError unless a record of certificates.json is what its rows give, in numbers and words."""
    unknown = set(record) - _RECORD_KEYS
    if unknown:
        raise DamagedFileError(f"certificates.json has the unknown key {min(unknown)!r}: it was changed")
    digest = record_digest(record)
    if any(row["record"] != digest for row in rows):
        raise DamagedFileError(
            f"certificates.csv has {key} rows that were made with other weights, data or settings than "
            "certificates.json states"
        )
    noise = "none; for any input" if key == INTERVAL else "seeded; for a test set fixed beforehand"
    summary = certified_summary(rows)
    require_equal(
        names.CERTIFICATE_RECORD,
        [
            ("the noise as", record["noise"], noise),
            (f"the number of {key} rows", record["examples"], len(rows)),
            (f"in its {key} summary", record["summary"], summary),
            ("the guarantee", record["guarantee"], record_in_words(record, summary)),
        ],
    )


def _require_rows(evidence: Evidence, key: str, record: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Raise DamagedFileError unless the rows of one record state what their own bounds prove."""
    classes, target = int(evidence.model["classes"]), record["settings"]["radius"]
    family, answers = INTERVAL if key == INTERVAL else SMOOTHING, (None,) if target is None else ("yes", "no", "open")
    for row in rows:
        unknown = {name for name in row if not name.startswith("radius_")} - set(_COLUMNS)
        if unknown or row.get("family", SMOOTHING) != family or row["answer"] not in answers:
            raise DamagedFileError(
                f"certificates.csv, example {row['index']}: its columns, family or answer were changed"
            )
        whole = all(row[name] == int(row[name]) >= 0 for name in _WHOLE)
        if not whole or max(row["label"], row["prediction"]) >= classes or row["abstained"] > 1:
            raise DamagedFileError(
                f"certificates.csv, example {row['index']}: it has a class or a number that cannot be"
            )
    if sorted(row["index"] for row in rows) != list(range(len(rows))):
        raise DamagedFileError(f"certificates.csv has an example in {key} twice, or lacks one: it was changed")
    if key == INTERVAL:
        require_true_intervals(rows, record, names.CERTIFICATES)
        require_equal(
            names.CERTIFICATE_RECORD,
            [("that the network has noise as", record["without_noise"], evidence.method.noisy)],
        )
        return
    require_true_radii(rows, record, names.CERTIFICATES)
    require_attainable_bounds(rows, record, names.CERTIFICATES, classes)


def _check_sensitivity(evidence: Evidence) -> str:
    """Return that Δ is the same in certificates.json and in the file of its proofs."""
    by_votes = {key: record for key, record in evidence.certificate_records.items() if key != INTERVAL}
    if not by_votes:
        raise NotCheckable("there are no certificates by smoothing")
    proofs = read_json(evidence.path(names.SENSITIVITY))["norms"]
    shown = []
    for norm, record in by_votes.items():
        if norm not in proofs:
            raise NotCheckable(f"sensitivity.json has no proof of Δ in {norm}")
        stated = {name: proofs[norm][name] for name in ("upper", "lower", "method")}
        require_equal(
            names.CERTIFICATE_RECORD, [(f"Δ in {norm} (against sensitivity.json)", record["sensitivity"], stated)]
        )
        if not 0 < stated["lower"] <= stated["upper"] < math.inf:
            raise DamagedFileError(f"sensitivity.json states Δ in {norm} from {stated['lower']} to {stated['upper']}")
        shown.append(f"{stated['upper']:.6g} in {norm}")
    return f"certificates.json and sensitivity.json agree on Δ: {', '.join(shown)}"


def _check_column_radii(evidence: Evidence) -> str:
    """Return that column-radii.csv is the rows of certificates.csv in the units of the table's columns."""
    path = evidence.path(names.COLUMN_RADII)
    schema = table_schema(evidence.model)
    if schema is None:
        raise DamagedFileError("column-radii.csv is there, but the run was not trained on a table")
    stated, true = read_bytes(path).decode(), column_radii_table(evidence.certificate_rows, schema)
    if sorted(stated.splitlines()) != sorted(true.splitlines()):
        raise DamagedFileError("column-radii.csv is not what certificates.csv and the bounds in model.json give")
    return "it is what certificates.csv and the public bounds of the columns give"


def _check_falsified(evidence: Evidence) -> str:
    """Return that the verdicts of `certify --falsify` are what their own counts say."""
    found = []
    for key in ("linf", "l2", "l1", INTERVAL):
        if not evidence.has(names.FALSIFIED.format(norm=key)):
            continue
        file, record = names.FALSIFIED.format(norm=key), evidence.certificate_records.get(key)
        result = read_json(evidence.folder / file)
        failure_prob = 0.0 if key == INTERVAL or record is None else float(record["settings"]["failure_prob"])
        tight = result["rules"].get("tight", {"searched": 0, "violations": 0})
        allowed = allowed_failures(tight["searched"], failure_prob) if failure_prob else 0
        pairs: list[tuple[str, Any, Any]] = [
            ("that the certificates are sound as", result["sound"], tight["violations"] <= allowed)
        ]
        pairs += [(f"violations of {rule}", x["violations"], len(x["broken"])) for rule, x in result["rules"].items()]
        require_equal(file, pairs)
        if result["sound"] is not True:
            raise DamagedFileError(f"{file} has counter-examples: the certificates in {key} are not true")
        found.append(key)
    if not found:
        raise NotCheckable("the certificates were not attacked: securesgd certify --falsify does it")
    return f"the search in {', '.join(found)} agrees with its own counts; securesgd certify --falsify searches again"


def _check_attacks(evidence: Evidence) -> str:
    """Return that every row of attacks.csv is possible, that rows agree with each other, and summaries with rows."""
    record, rows = evidence.attack_record, evidence.attack_rows
    if set(record) != {"format", "weights", "model_file", "cells", "suspicions"} or record["format"] != 1:
        raise DamagedFileError("attacks.json has other keys than it should, or another format")
    _require_own_weights(evidence, names.ATTACK_RECORD, record)
    noisy, classes, cells = evidence.method.noisy, int(evidence.model["classes"]), record["cells"]
    present = {row["cell"] for row in rows}
    if not {name for name, cell in cells.items() if "summary" in cell} <= present <= set(cells):
        raise DamagedFileError("attacks.csv has rows of attacks that attacks.json does not record, or none of one")
    for name, cell in cells.items():
        unknown = set(cell) - _CELL_KEYS
        if unknown:
            raise DamagedFileError(f"attacks.json has the unknown key {min(unknown)!r}: it was changed")
        require_same_settings(name, cell)
        own = [row for row in rows if row["cell"] == name]
        if own:
            require_true_cell(name, own, cell, noisy=noisy, classes=classes)
        if "summary" in cell:  # an attack that was interrupted has none
            require_true_summary(name, own, cell, noisy=noisy, classes=classes)
    _require_same_examples(evidence, cells, rows)
    return f"{len(rows)} rows of {len(cells)} attacks agree with their settings and each other, and summaries with rows"


def _require_same_examples(evidence: Evidence, cells: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Raise DamagedFileError if an example of one test set has two labels, or two results before the attack."""
    labels: dict[tuple[Any, float], float] = {}
    before: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    if evidence.has(names.CERTIFICATES):
        for row in evidence.certificate_rows:
            labels[evidence.certificate_records[record_key(row)]["data"], row["index"]] = row["label"]
    for row in rows:
        cell = cells[row["cell"]]
        data, seed = cell.get("data"), cell["attack"]["seed"]
        place = f"attacks.csv, example {row['index']:.0f} of {row['cell']}"
        if labels.setdefault((data, row["index"]), row["label"]) != row["label"]:
            raise DamagedFileError(f"{place}: the label is {row['label']:.0f}, elsewhere it is another")
        measured = tuple(sorted(cell["measured"].items()))
        votes = tuple(row[f"clean_{name}"] for name in ("prediction", "label_votes", "other_votes"))
        if before.setdefault((data, seed, measured, row["index"]), votes) != votes:
            raise DamagedFileError(f"{place}: its votes before the attack are not those of the other attacks")
        radii = (row["clean_radius"], row["clean_radius_published"])
        if before.setdefault((data, seed, measured, row["index"], row["norm"]), radii) != radii:
            raise DamagedFileError(f"{place}: its radius before the attack is not that of the other attacks")


def _require_own_weights(evidence: Evidence, file: str, record: dict[str, Any]) -> None:
    """Raise DamagedFileError if results were made with another file of weights than that of the folder."""
    made_with = record.get("model_file")
    if made_with is None:
        raise DamagedFileError(f"{file} does not say with which weights it was made")
    if made_with != evidence.weights_digest:
        raise DamagedFileError(
            f"{file} was made with other weights (sha256 {str(made_with)[:8]}…) than {names.WEIGHTS} "
            f"({evidence.weights_digest[:8]}…)"
        )


_BY_NORM = tuple(names.FALSIFIED.format(norm=norm) for norm in ("linf", "l2", "l1", INTERVAL))
RESULT_CLAIMS = (
    Claim(
        name="certificates",
        files=(names.CERTIFICATES, names.CERTIFICATE_RECORD),
        check=_check_certificates,
        tiles=("certified", "accuracy"),
    ),
    Claim(
        name="sensitivity",
        files=(names.SENSITIVITY, names.CERTIFICATE_RECORD),
        check=_check_sensitivity,
        tiles=("certified",),
    ),
    Claim(name="column radii", files=(names.COLUMN_RADII,), check=_check_column_radii, tiles=("certified",)),
    Claim(name="falsification", files=_BY_NORM, check=_check_falsified, tiles=("certified",)),
    Claim(
        name="attacks", files=(names.ATTACKS, names.ATTACK_RECORD), check=_check_attacks, tiles=("attacked", "accuracy")
    ),
)
