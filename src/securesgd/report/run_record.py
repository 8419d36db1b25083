"""A run folder as a report reads it: whatever is there, and what is missing or broken said in words. No torch."""

__all__ = ["RunRecord", "read_run"]

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.privacy import replayed_statement
from securesgd.privacy.statement import PrivacyStatement
from securesgd.report.rows import read_rows


@dataclass(kw_only=True)
class RunRecord:
    """What a run folder holds. Parts that are not there are None or empty, and named in `missing`."""

    folder: Path
    name: str
    """How the run is called in the report."""
    config: dict[str, Any] | None = None
    config_text: str = ""
    model: dict[str, Any] | None = None
    ledger: list[dict[str, Any]] = field(default_factory=list)
    replayed: PrivacyStatement | None = None
    """The statement as the ledger gives it now, recomputed."""
    metrics: dict[str, Any] | None = None
    certificates: list[dict[str, Any]] = field(default_factory=list)
    certificate_records: dict[str, Any] = field(default_factory=dict)
    attacks: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def statement(self) -> dict[str, Any] | None:
        """The statement the run itself wrote when it ended."""
        return None if self.model is None else self.model.get("statement")

    @property
    def agrees(self) -> bool | None:
        """Whether replaying the ledger gives the epsilon the run states; None if one of them is not there."""
        if self.statement is None or self.replayed is None:
            return None
        stated = float(self.statement["epsilon"])
        return bool(self.replayed.epsilon <= stated * (1 + 1e-9))


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
    noisy = (folder / "redistribution.json").exists()
    if noisy or (folder / "certificates.csv").exists():
        _part(record, "certificates.csv", _certificates, f"no prediction is certified: securesgd certify {folder}")
    _part(record, "attacks.json", _attacks, f"it was never attacked: securesgd attack {folder} --attack all")
    if record.config is None and record.model is None and not record.ledger:
        raise InvalidInputError(f"{folder} is not a run folder: it has no config.toml, model.json or ledger.jsonl")
    return record


def _part(record: RunRecord, name: str, read: Callable[[RunRecord, Path], None], without: str) -> None:
    path = record.folder / name
    if not path.exists():
        record.missing.append(f"{name} is missing: {without}")
        return
    try:
        read(record, path)
    except (SecureSGDError, OSError, ValueError, KeyError, TypeError) as error:
        record.missing.append(f"{name} cannot be read: {error}")


def _config(record: RunRecord, path: Path) -> None:
    record.config_text = path.read_text(encoding="utf-8")
    record.config = tomllib.loads(record.config_text)


def _model(record: RunRecord, path: Path) -> None:
    record.model = json.loads(path.read_text(encoding="utf-8"))
    if not (record.folder / "model.safetensors").exists():
        record.missing.append("model.safetensors is missing: the weights are elsewhere")


def _ledger(record: RunRecord, path: Path) -> None:
    record.replayed = replayed_statement(path)  # checks the chain of digests too
    record.ledger = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _metrics(record: RunRecord, path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise DamagedFileError("it is empty")
    record.metrics = json.loads(lines[-1])


def _environment(record: RunRecord, path: Path) -> None:
    record.environment = json.loads(path.read_text(encoding="utf-8"))


def _certificates(record: RunRecord, path: Path) -> None:
    record.certificates = read_rows(path)
    record.certificate_records = json.loads((record.folder / "certificates.json").read_text(encoding="utf-8"))


def _attacks(record: RunRecord, path: Path) -> None:
    record.attacks = json.loads(path.read_text(encoding="utf-8"))
