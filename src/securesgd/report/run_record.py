"""A run folder as a report reads it: what its files hold, and in words what is missing or damaged. No torch."""

__all__ = ["RunRecord", "class_names", "is_noisy", "read_run"]

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from safetensors import SafetensorError

from securesgd.certificates.recheck import record_digest, require_true_intervals, require_true_radii
from securesgd.certificates.rules import INTERVAL, record_key
from securesgd.certificates.summary import certified_summary
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.methods import METHODS
from securesgd.privacy import LedgerContents, PrivacyStatement, read_ledger
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import MAX_TOML, file_digest, open_regular, parse_json, read_bytes, read_json, read_toml
from securesgd.runtime.tables import read_rows


@dataclass(kw_only=True)
class RunRecord:
    """What a run folder holds. Parts that are missing or damaged are None or empty, and named in `missing`."""

    folder: Path
    name: str
    """What the run is called in the report."""
    shown: str
    """The folder as the report shows it."""
    called: str
    """The name of the folder in commands."""
    config: dict[str, Any] | None = None
    config_text: str = ""
    model: dict[str, Any] | None = None
    released: dict[str, Any] | None = None
    """What the file of the weights says about their training: the last line of its ledger."""
    ledger: LedgerContents | None = None
    way: str | None = None
    """How r was obtained."""
    metrics: dict[str, Any] | None = None
    certificates: list[dict[str, Any]] = field(default_factory=list)
    certificate_records: dict[str, Any] = field(default_factory=dict)
    attacks: dict[str, Any] = field(default_factory=dict)
    attacked: list[dict[str, Any]] = field(default_factory=list)
    """Rows of attacks.csv."""
    environment: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def replayed(self) -> PrivacyStatement | None:
        """The statement as the ledger gives it now, recomputed."""
        return None if self.ledger is None else self.ledger.statement

    @property
    def network(self) -> str | None:
        """The network by name or import path; `own` for a module that was given in memory, None if nothing says it."""
        stated = (self.config or {}).get("network") or (self.model or {}).get("network")
        return stated.get("name") if isinstance(stated, dict) else stated

    @property
    def structure_sha256(self) -> str | None:
        """The digest of the network's structure, if the run recorded it."""
        model = self.model or {}
        network = model.get("network")
        return model.get("structure_sha256") or (network.get("structure_sha256") if isinstance(network, dict) else None)

    @property
    def statement(self) -> dict[str, Any] | None:
        """The statement the run itself wrote when it ended."""
        return None if self.model is None else self.model.get("statement")

    @property
    def doubts(self) -> list[str]:
        """Why the statement that the run wrote is not backed by its ledger; empty if it is, or if there is none."""
        stated = self.statement
        if stated is None:
            return []
        if self.ledger is None:
            return ["The ledger is missing or cannot be read: nothing backs this figure."]
        doubts, true = [], self.ledger.statement.json()
        if self.ledger.statement.epsilon > float(stated["epsilon"]) * (1 + 1e-9) or stated["delta"] != true["delta"]:
            doubts.append(
                f"The ledger, replayed for this report, does not give this figure: the run states epsilon = "
                f"{stated['epsilon']} at delta = {stated['delta']}, the ledger {true['epsilon']} at {true['delta']}."
            )
        if stated["guaranteed"] != true["guaranteed"]:
            doubts.append("The run and its ledger disagree on whether there is a guarantee.")
        if stated["accountant_version"] == true["accountant_version"] and stated["in_words"] != true["in_words"]:
            doubts.append(f"The run states it in other words than its ledger: {stated['in_words']}")
        if self.released is None:
            doubts.append("The weights are missing or cannot be read: whether this is their ledger is not known.")
        elif not self.ledger.has_line(*self.released["ledger"]):
            doubts.append("The ledger is not the one these weights were trained with, or lines of it were cut off.")
        return doubts


def read_run(folder: Path) -> RunRecord:
    """Return what a run folder holds. Raises: InvalidInputError if it is not a run folder."""
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder; give the folder of a run")
    called = folder.resolve().name
    record = RunRecord(folder=folder, name=called, shown=str(folder), called=called)
    _read_part(record, names.CONFIG, _read_config, "the settings of the training are not known")
    _read_part(record, names.MODEL, _read_model, f"training is not finished: securesgd train --resume --out {folder}")
    _read_part(record, names.LEDGER, _read_ledger, "what training released, and its privacy, are not known")
    _read_part(record, names.METRICS, _read_metrics, "the accuracy on the test set is not known")
    _read_part(record, names.ENVIRONMENT, _read_environment, "versions and machine are not known")
    if is_noisy(record):
        _read_part(record, names.REDISTRIBUTION, _read_redistribution, "where the noise goes is not known")
    if is_noisy(record) or (folder / names.CERTIFICATES).exists():
        command = f"securesgd certify {folder}"
        _read_part(record, names.CERTIFICATES, _read_certificates, f"no prediction is certified: {command}")
    command = f"securesgd attack {folder} --attack all"
    _read_part(record, names.ATTACK_RECORD, _read_attacks, f"the run was not attacked: {command}")
    if record.config is None and record.model is None and record.ledger is None:
        raise InvalidInputError(f"{folder} is not a run folder: it has no config.toml, model.json or ledger.jsonl")
    return record


def _read_part(record: RunRecord, name: str, read: Callable[[RunRecord, Path], None], without: str) -> None:
    """Read one file into the record; a file that is missing (`without` says what that means) or damaged is named."""
    path = record.folder / name
    if not path.exists():
        record.missing.append(f"{name} is missing: {without}")
        return
    try:
        read(record, path)
    except (
        SecureSGDError,
        OSError,
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        SafetensorError,
    ) as error:
        record.missing.append(f"{name} cannot be read: {error}")


def _read_config(record: RunRecord, path: Path) -> None:
    record.config = read_toml(path)
    record.config_text = read_bytes(path, MAX_TOML).decode("utf-8")


def _read_model(record: RunRecord, path: Path) -> None:
    record.model = read_json(path)
    _read_part(record, names.WEIGHTS, _read_weights, "the run has no weights")


def _read_weights(record: RunRecord, path: Path) -> None:
    open_regular(path).close()  # the library would wait for a pipe
    with safetensors.safe_open(path, framework="np") as file:
        released = _object((file.metadata() or {})["record"])
    index, digest = released["ledger"]
    record.released = {"ledger": (int(index), str(digest))}


def _read_ledger(record: RunRecord, path: Path) -> None:
    record.ledger = read_ledger(path)
    if record.ledger.torn_end:
        record.missing.append("ledger.jsonl ends in the middle of a line: the run was interrupted there")


def _read_metrics(record: RunRecord, path: Path) -> None:
    lines = read_bytes(path).decode("utf-8").splitlines()
    if not lines:
        raise DamagedFileError("it is empty")
    record.metrics = _object(lines[-1])


def _read_environment(record: RunRecord, path: Path) -> None:
    record.environment = read_json(path)


def _read_certificates(record: RunRecord, path: Path) -> None:
    rows, record_path = read_rows(path), record.folder / names.CERTIFICATE_RECORD
    if not record_path.exists():
        raise DamagedFileError(f"{record_path.name}, which says how it was made, is missing")
    records, certificates = read_json(record_path), []
    for stated in records.values():
        _check_weights(record, stated, record_path.name, "certify")
        _check_test_set(record, stated, record_path.name)
    for norm, stated in records.items():
        digest = record_digest(stated)
        in_record = [row for row in rows if record_key(row) == norm]
        own_rows = [_without_empty_radii(row) for row in in_record if row["record"] == digest]
        if len(own_rows) < len(in_record):
            record.missing.append(
                f"certificates.csv has {norm} rows with other settings than certificates.json states, which are left "
                "out: certify --again was interrupted; run it again"
            )
        if norm == INTERVAL:
            require_true_intervals(own_rows, stated, path.name)
        else:
            int(stated["settings"]["seed"])  # a run's certificates can be repeated
            _require_one_sensitivity(record, norm, stated)
            require_true_radii(own_rows, stated, path.name)
        if not own_rows or certified_summary(own_rows) != stated["summary"]:
            record.missing.append(f"certificates.csv does not give the {norm} summary that certificates.json states")
        certificates += own_rows
    record.certificates, record.certificate_records = certificates, records


def _without_empty_radii(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of certificates.csv without the radii of the other family."""
    return {name: value for name, value in row.items() if value is not None or not name.startswith("radius_")}


def _check_weights(record: RunRecord, stated: dict[str, Any], name: str, verb: str) -> None:
    """Name results that were made with other weights than those in the folder, or do not say with which."""
    weights, made_with = file_digest(record.folder / names.WEIGHTS), stated.get("model_file")
    if weights is None or made_with == weights:
        return
    origin = "does not say with which weights it was made"
    if made_with is not None:
        origin = f"was made with other weights (sha256 {str(made_with)[:8]}…) than {names.WEIGHTS} ({weights[:8]}…)"
    line = f"{name} {origin}; re-run with: securesgd {verb} {record.folder} --again"
    if line not in record.missing:
        record.missing.append(line)


def _check_test_set(record: RunRecord, stated: dict[str, Any], name: str) -> None:
    """Name results about other examples than those that the test accuracy is about, if both are known."""
    own, given = (record.model or {}).get("test_sha256"), stated.get("data")
    line = f"{name} is about other examples than the run's test set"
    if None not in (own, given) and own != given and line not in record.missing:
        record.missing.append(line)


def _require_one_sensitivity(record: RunRecord, norm: str, stated: dict[str, Any]) -> None:
    """Raise DamagedFileError if the records of certificates and sensitivities state another Δ; name a missing proof."""
    path = record.folder / names.SENSITIVITY
    proof = read_json(path)["norms"].get(norm) if path.exists() else None
    if proof is None:
        record.missing.append(
            f"sensitivity.json has no proof of Δ in {norm}: nothing backs what certificates.json states; "
            f"securesgd certify {record.folder} proves it"
        )
    elif not math.isclose(proof["upper"], stated["sensitivity"]["upper"], rel_tol=1e-9):
        raise DamagedFileError(
            f"certificates.json states Δ = {stated['sensitivity']['upper']:g} in {norm}, {path.name} states "
            f"{proof['upper']:g}: one of them was changed"
        )


def _read_attacks(record: RunRecord, path: Path) -> None:
    attacks, table = read_json(path), record.folder / names.ATTACKS
    rows = read_rows(table) if table.exists() else []
    counts = Counter(row["cell"] for row in rows)
    for name, cell in attacks["cells"].items():
        if counts[name] < cell.get("summary", {}).get("examples", 0):
            record.missing.append(f"attacks.csv has fewer images than attacks.json counts ({name})")
        _check_test_set(record, cell, path.name)
    _check_weights(record, attacks, path.name, "attack")
    record.attacks, record.attacked = attacks, rows


def class_names(record: RunRecord) -> list[str] | None:
    """Return the names of the classes, if model.json has them."""
    stated = (record.model or {}).get("class_names")
    return [str(name) for name in stated] if isinstance(stated, list) else None


def _read_redistribution(record: RunRecord, path: Path) -> None:
    record.way = str(read_json(path)["way"])


def is_noisy(record: RunRecord) -> bool:
    """Return whether the method of the run puts noise into the network, so that predictions can be certified."""
    method = METHODS.get(str((record.config or {}).get("method")))
    return method is not None and method.noisy


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises: ValueError if it is anything else."""
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content
