"""The files of a run folder as a check reads them: each when it is first asked for, and none believed. No torch."""

__all__ = ["Evidence"]

from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors

from securesgd.check.outcome import NotCheckable
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.methods import Method, method
from securesgd.privacy import LedgerContents, RepeatAndSelect, SampledGaussianSteps, read_ledger
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import file_digest, open_regular, parse_json, read_bytes, read_json, read_toml
from securesgd.runtime.tables import read_rows
from securesgd.training.settings import TrainingSettings

_RESULTS = (names.CERTIFICATES, names.CERTIFICATE_RECORD, names.ATTACKS, names.ATTACK_RECORD)
"""What only a finished run can have."""


class Evidence:
    """A run folder. Properties raise DamagedFileError for a damaged file, NotCheckable for one that is not there.

    Raises: InvalidInputError if it is not a run folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InvalidInputError(f"{folder} is not a folder; give the folder of a run")
        self.folder = folder
        if not any(self.has(name) for name in (names.CONFIG, names.MODEL, names.LEDGER)):
            raise InvalidInputError(f"{folder} is not a run folder: it has no config.toml, model.json or ledger.jsonl")

    def has(self, name: str) -> bool:
        """Return whether there is something with this name in the folder."""
        return (self.folder / name).exists()

    def path(self, name: str) -> Path:
        """Return the path of a file. Raises: NotCheckable if it is not there."""
        if not self.has(name):
            raise NotCheckable(f"{name} is missing")
        return self.folder / name

    def path_claimed(self, name: str) -> Path:
        """Return the path of a file that a finished run has. Raises: DamagedFileError if it is not there."""
        if not self.has(name) and self.has(names.MODEL):
            raise DamagedFileError(f"{name} is missing, and nothing backs model.json without it")
        return self.path(name)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The tables of config.toml."""
        return read_toml(self.path_claimed(names.CONFIG))

    @cached_property
    def method(self) -> Method:
        """The method of config.toml."""
        return method(self.config["method"])

    @cached_property
    def training(self) -> TrainingSettings:
        """The training settings of config.toml, validated."""
        return TrainingSettings.from_dict(dict(self.config["training"]))

    @cached_property
    def model(self) -> dict[str, Any]:
        """The content of model.json."""
        if not self.has(names.MODEL):
            for name in _RESULTS:
                if self.has(name):
                    raise DamagedFileError(f"model.json is missing, and nothing backs {name} without it")
            raise NotCheckable("model.json is missing: training is not finished")
        return read_json(self.folder / names.MODEL)

    @cached_property
    def ledger(self) -> LedgerContents:
        """The ledger: its chain and its last epsilon are verified, and its statement is computed now."""
        return read_ledger(self.path_claimed(names.LEDGER))

    @property
    def steps(self) -> list[SampledGaussianSteps]:
        """The steps of DP-SGD in the ledger; of a search, those that one trial may have taken."""
        events = [record.event for record in self.ledger.records]
        inner = [part for event in events if isinstance(event, RepeatAndSelect) for part in event.trial]
        return [event for event in (*events, *inner) if isinstance(event, SampledGaussianSteps)]

    @property
    def searched(self) -> bool:
        """Whether the settings were found by a search that the ledger charges."""
        return any(isinstance(record.event, RepeatAndSelect) for record in self.ledger.records)

    @cached_property
    def weights_digest(self) -> str:
        """The SHA-256 of model.safetensors."""
        digest = file_digest(self.path_claimed(names.WEIGHTS))
        assert digest is not None
        return digest

    @cached_property
    def weights_record(self) -> dict[str, Any]:
        """What the file of the weights says about their training: steps, noise and last line of the ledger."""
        path = self.path_claimed(names.WEIGHTS)
        open_regular(path).close()  # the library would wait for a pipe
        with safetensors.safe_open(path, framework="np") as file:
            record = parse_json((file.metadata() or {})["record"])
        if not isinstance(record, dict):
            raise DamagedFileError(f"{names.WEIGHTS} has no record of its training")
        return record

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; the last is about the test set."""
        content = read_bytes(self.path(names.METRICS))
        try:
            lines = [parse_json(line) for line in content.splitlines()]
        except ValueError as error:
            raise DamagedFileError(f"{names.METRICS} is damaged: {error}") from None
        if not lines or not all(isinstance(line, dict) for line in lines) or not content.endswith(b"\n"):
            raise DamagedFileError(f"{names.METRICS} is empty, cut short, or not lines of JSON")
        return lines

    @cached_property
    def certificate_records(self) -> dict[str, Any]:
        """The records of certificates.json, by norm or `interval`."""
        return read_json(self._with(names.CERTIFICATE_RECORD, names.CERTIFICATES))

    @cached_property
    def certificate_rows(self) -> list[dict[str, Any]]:
        """The rows of certificates.csv, without the radii of the other family."""
        rows = read_rows(self._with(names.CERTIFICATES, names.CERTIFICATE_RECORD))
        return [{k: v for k, v in row.items() if v is not None or not k.startswith("radius_")} for row in rows]

    @cached_property
    def attack_record(self) -> dict[str, Any]:
        """The content of attacks.json."""
        return read_json(self._with(names.ATTACK_RECORD, names.ATTACKS))

    @cached_property
    def attack_rows(self) -> list[dict[str, Any]]:
        """The rows of attacks.csv, empty cells as empty text."""
        rows = read_rows(self._with(names.ATTACKS, names.ATTACK_RECORD))
        return [{name: "" if value is None else value for name, value in row.items()} for row in rows]

    def _with(self, name: str, other: str) -> Path:
        """Return the path of a file that goes with another one. Raises: DamagedFileError if only the other is there."""
        if not self.has(name) and self.has(other):
            raise DamagedFileError(f"{name} is missing, and nothing backs {other} without it")
        return self.path(name)
