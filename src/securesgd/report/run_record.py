"""A run folder as a report reads it: whatever is there, and what is missing or broken said in words. No torch."""

__all__ = ["RunRecord", "is_noisy", "read_run"]

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from safetensors import SafetensorError

from securesgd.certificates.recheck import record_digest, require_true_radii
from securesgd.certificates.summary import certified_summary
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.methods import METHODS
from securesgd.privacy import LedgerContents, PrivacyStatement, read_ledger
from securesgd.runtime.storage import MAX_TOML, file_digest, open_regular, parse_json, read_bytes, read_json, read_toml
from securesgd.runtime.tables import read_rows


@dataclass(kw_only=True)
class RunRecord:
    """What a run folder holds. Parts that are not there are None or empty, and named in `missing`."""

    folder: Path
    name: str
    """How the run is called in the report."""
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
    environment: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def replayed(self) -> PrivacyStatement | None:
        """The statement as the ledger gives it now, recomputed."""
        return None if self.ledger is None else self.ledger.statement

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
        found, true = [], self.ledger.statement.json()
        if self.ledger.statement.epsilon > float(stated["epsilon"]) * (1 + 1e-9) or stated["delta"] != true["delta"]:
            found.append(
                f"The ledger, replayed for this report, does not give this figure: the run states epsilon = "
                f"{stated['epsilon']} at delta = {stated['delta']}, the ledger {true['epsilon']} at {true['delta']}."
            )
        if stated["guaranteed"] != true["guaranteed"]:
            found.append("The run and its ledger disagree on whether there is a guarantee.")
        if stated["accountant_version"] == true["accountant_version"] and stated["in_words"] != true["in_words"]:
            found.append(f"The run states it in other words than its ledger: {stated['in_words']}")
        if self.released is None:
            found.append("The weights are missing or cannot be read: whether this is their ledger is not known.")
        elif not self.ledger.has_line(*self.released["ledger"]):
            found.append("The ledger is not the one these weights were trained with, or lines of it were cut off.")
        return found


def read_run(folder: Path) -> RunRecord:
    """Return what is in a run folder. Raises: InvalidInputError if it is no run folder at all."""
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder; give the folder of a run")
    record = RunRecord(folder=folder, name=folder.resolve().name)
    _part(record, "config.toml", _config, f"not a run folder, or broken; train one: securesgd train --out {folder}")
    _part(record, "model.json", _model, f"training is not finished: securesgd train --resume --out {folder}")
    _part(record, "ledger.jsonl", _ledger, "nothing is known about what training cost")
    _part(record, "metrics.jsonl", _metrics, "the accuracy on the test set is not known")
    _part(record, "environment.json", _environment, "what it was made with is not known")
    if is_noisy(record):
        _part(record, "redistribution.json", _redistribution, "where the noise goes is not known")
    if is_noisy(record) or (folder / "certificates.csv").exists():
        _part(record, "certificates.csv", _certificates, f"no prediction is certified: securesgd certify {folder}")
    _part(record, "attacks.json", _attacks, f"it was never attacked: securesgd attack {folder} --attack all")
    if record.config is None and record.model is None and record.ledger is None:
        raise InvalidInputError(f"{folder} is not a run folder: it has no config.toml, model.json or ledger.jsonl")
    return record


def _part(record: RunRecord, name: str, read: Callable[[RunRecord, Path], None], without: str) -> None:
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


def _config(record: RunRecord, path: Path) -> None:
    record.config = read_toml(path)
    record.config_text = read_bytes(path, MAX_TOML).decode("utf-8")


def _model(record: RunRecord, path: Path) -> None:
    record.model = read_json(path)
    _part(record, "model.safetensors", _weights, "the weights are elsewhere")


def _weights(record: RunRecord, path: Path) -> None:
    open_regular(path).close()  # the library would wait for a pipe
    with safetensors.safe_open(path, framework="np") as file:
        released = _object((file.metadata() or {})["record"])
    index, digest = released["ledger"]
    record.released = {"ledger": (int(index), str(digest))}


def _ledger(record: RunRecord, path: Path) -> None:
    record.ledger = read_ledger(path)
    if record.ledger.torn_end:
        record.missing.append("ledger.jsonl ends in the middle of a line: the run was interrupted there")


def _metrics(record: RunRecord, path: Path) -> None:
    lines = read_bytes(path).decode("utf-8").splitlines()
    if not lines:
        raise DamagedFileError("it is empty")
    record.metrics = _object(lines[-1])


def _environment(record: RunRecord, path: Path) -> None:
    record.environment = read_json(path)


def _certificates(record: RunRecord, path: Path) -> None:
    rows, beside = read_rows(path), record.folder / "certificates.json"
    if not beside.exists():
        raise DamagedFileError(f"{beside.name} is missing, which says how it was made")
    records, kept = read_json(beside), []
    if any(not _is_about_weights(record, stated) for stated in records.values()):
        record.missing.append(
            "certificates.json is not about the weights in model.safetensors, or does not say which it is about: "
            f"securesgd certify {record.folder} tells"
        )
    for norm, stated in records.items():
        int(stated["settings"]["seed"])  # a run's certificates can be repeated
        digest = record_digest(stated)
        mine = [row for row in rows if row["norm"] == norm and row["record"] == digest]
        if len(mine) < sum(row["norm"] == norm for row in rows):
            record.missing.append(
                f"certificates.csv has {norm} rows by other settings than certificates.json states, which are left "
                "out: certify --again was interrupted; run it again"
            )
        _require_one_sensitivity(record, norm, stated)
        require_true_radii(mine, stated, path.name)
        if not mine or certified_summary(mine) != stated["summary"]:
            record.missing.append(f"certificates.csv is not the table that certificates.json is about ({norm})")
        kept += mine
    record.certificates, record.certificate_records = kept, records


def _is_about_weights(record: RunRecord, stated: dict[str, Any]) -> bool:
    """Return whether results were made with the file of weights that is there; without that file nobody can tell."""
    found = file_digest(record.folder / "model.safetensors")
    return found is None or stated.get("model_file") == found


def _require_one_sensitivity(record: RunRecord, norm: str, stated: dict[str, Any]) -> None:
    """Pass if the record of the certificates and that of the sensitivities state the same Δ; if one is gone, say so."""
    path = record.folder / "sensitivity.json"
    kept = read_json(path)["norms"].get(norm) if path.exists() else None
    if kept is None:
        record.missing.append(
            f"sensitivity.json has no proof of Δ in {norm}: nothing backs what certificates.json states; "
            f"securesgd certify {record.folder} proves it"
        )
    elif not math.isclose(kept["upper"], stated["sensitivity"]["upper"], rel_tol=1e-9):
        raise DamagedFileError(
            f"certificates.json has Δ {stated['sensitivity']['upper']:g} in {norm}, {path.name} {kept['upper']:g}: one "
            "of them was changed"
        )


def _attacks(record: RunRecord, path: Path) -> None:
    attacks, rows = read_json(path), record.folder / "attacks.csv"
    counts = Counter(row["cell"] for row in read_rows(rows)) if rows.exists() else Counter()
    for name, cell in attacks["cells"].items():
        if counts[name] < cell.get("summary", {}).get("examples", 0):
            record.missing.append(f"attacks.csv does not have the images that attacks.json counts ({name})")
    if not _is_about_weights(record, attacks):
        record.missing.append(
            "attacks.json is not about the weights in model.safetensors, or does not say which it is about: "
            f"securesgd attack {record.folder} tells"
        )
    record.attacks = attacks


def _redistribution(record: RunRecord, path: Path) -> None:
    record.way = str(read_json(path)["way"])


def is_noisy(record: RunRecord) -> bool:
    """Return whether the run is of a method that has noise in its first layer, so that it can be certified."""
    chosen = METHODS.get(str((record.config or {}).get("method")))
    return chosen is not None and chosen.noisy


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises: ValueError if it is anything else."""
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content
