"""The folder of a search of hyper-parameters, until it is the folder of the run that was chosen.

    ledger.jsonl   what the whole search costs, in one line that is written before the first trial starts
    tuning.json    the key that the number of trials, their settings and the noise of their scores come from; secret
    trials/0 …     a run each, with its score; secret, since epsilon covers the chosen one alone

Order at the start: ledger (who creates it holds it), tuning.json, the line of the ledger, trials. Order at the end: the
ledger with the same line anew, the files of the best trial beside it, its weights with the last line of *this* ledger
instead of their own, model.json last, which says that the run is complete; then the trials are removed, and tuning.json
after them. At every moment there is either all that is needed to go on to the same end, or the finished run.
"""

__all__ = ["TuningFolder"]

import json
import shutil
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.privacy import Ledger, RepeatAndSelect, event_from_json, event_json, read_ledger
from securesgd.privacy.ledger_record import Header
from securesgd.report.model_card import write_model_card
from securesgd.runtime import run_folder as names
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.storage import (
    file_digest,
    parse_json,
    read_bytes,
    read_json,
    sync_folder,
    write_json,
    write_whole,
)
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors

TUNING, TRIALS, SCORE = "tuning.json", "trials", "score.json"
_OF_A_TRIAL = (names.LEDGER, names.WEIGHTS, names.MODEL, names.METRICS, names.ENVIRONMENT, names.MODEL_CARD, SCORE,
               names.SECRET, names.CHECKPOINT)  # fmt: skip
"""Files of a trial that are not the run's as they are."""


def _header(header: Header) -> dict[str, Any]:
    """Return what a ledger is created with."""
    names_of_header = ("delta", "target_epsilon", "accountant", "dataset_size", "adjacency")
    return {name: getattr(header, name) for name in names_of_header}


class TuningFolder:
    """The folder of one search; `start` or `resume` opens its ledger, which keeps other processes out."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = RunFolder(self.path)
        self.secret, self.trials = self.path / TUNING, self.path / TRIALS
        self._new_folders = [place for place in (self.path, *self.path.parents) if not place.exists()]

    def require(self, resume: bool) -> None:
        """Return if a search can be started here, or resumed. Raises: InvalidInputError if not."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; give the path of a folder")
        if self.files.occupied and not resume:
            raise InvalidInputError(
                f"{self.path} is not empty; resume its search with --resume, or choose another folder"
            )
        if resume and not self.secret.exists() and not self.files.complete:
            raise InvalidInputError(f"{self.path} has no search to resume; valid: the folder of one that was stopped")

    def start(self, settings: dict[str, Any], digest: str, event: RepeatAndSelect, **header: Any) -> Ledger:
        """Return the new ledger with the cost of the search in it; `header` is as of `Ledger.create`."""
        self.path.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.create(self.files.ledger, accountant="rdp", **header)
        try:
            record = {"key": Randomness.secret().key.hex(), "data": digest, "settings": settings}
            content = json.dumps(record | {"event": event_json(event)}, indent=2)
            write_whole(self.secret, content.encode(), mode=0o600)
            ledger.record(event)
        except BaseException:
            ledger.close()
            self.withdraw()
            raise
        return ledger

    def resume(self, settings: dict[str, Any], digest: str) -> Ledger:
        """Return the ledger of a search that was stopped.

        Raises: InvalidInputError if settings or data are not those it was started with; DamagedFileError.
        """
        record = self._read()
        if record["settings"] != settings:
            changed = [name for name in settings if record["settings"].get(name) != settings[name]]
            raise InvalidInputError(
                f"{self.path} was started with other settings ({', '.join(changed)}); resume it by the same call"
            )
        if record["data"] != digest:
            raise InvalidInputError(f"the data are not those {self.path} was started with; start a new search")
        ledger = Ledger.open(self.files.ledger)
        try:
            if not ledger.events:
                ledger.record(self.event)
            if ledger.events != (self.event,):
                raise DamagedFileError(
                    f"{self.files.ledger} is not the ledger of {self.secret}; both were left untouched"
                )
        except BaseException:
            ledger.close()
            raise
        return ledger

    @property
    def event(self) -> RepeatAndSelect:
        """What the search releases. Raises: DamagedFileError."""
        try:
            event = event_from_json(self._read()["event"])
        except InvalidInputError as error:
            raise DamagedFileError(f"{self.secret} is damaged: {error}") from None
        if not isinstance(event, RepeatAndSelect):
            raise DamagedFileError(f"{self.secret} is damaged: its event is no repeat-and-select")
        return event

    @property
    def stream(self) -> KeyStream:
        """The secret that all choices of the search are drawn from, by `child`. Raises: DamagedFileError."""
        try:
            return KeyStream(bytes.fromhex(self._read()["key"]))
        except (ValueError, TypeError):
            raise DamagedFileError(f"{self.secret} is damaged: it has no key") from None

    def _read(self) -> dict[str, Any]:
        record = read_json(self.secret)
        if record.keys() != {"key", "data", "settings", "event"} or not isinstance(record["settings"], dict):
            raise DamagedFileError(f"{self.secret} is damaged: it is not the file of a search")
        return record

    def trial(self, number: int) -> Path:
        """Return the folder of a trial; the folder around it is for its owner only."""
        if not self.trials.exists():
            self.trials.mkdir(mode=0o700)
        return self.trials / str(number)

    def score(self, number: int) -> float | None:
        """Return the score of a trial that has ended: −inf if its weights were not finite. None if it has not ended."""
        path = self.trial(number) / SCORE
        if not path.exists():
            return None
        score = read_json(path).get("score")
        if score is not None and not isinstance(score, float):
            raise DamagedFileError(f"{path} is damaged: its score is {score!r}")
        return float("-inf") if score is None else score

    def write_score(self, number: int, score: float | None) -> None:
        """Keep the score of a trial that has ended; None if its weights were not finite."""
        write_whole(self.trial(number) / SCORE, json.dumps({"score": score}).encode(), mode=0o600)

    def keep(self, number: int, about: dict[str, Any]) -> None:
        """Make the folder that of the run of a trial, at the cost of the whole search; `about` goes into model.json.

        The ledger is made anew with the same event and, in its header, how the noise of this trial was made, which was
        not known at the start. So no file tells when the search began, and from that how many trials there were.
        """
        trial, draft = self.trial(number), self.trials / names.LEDGER
        former, own = read_ledger(self.files.ledger), read_ledger(trial / names.LEDGER)
        draft.unlink(missing_ok=True)
        with Ledger.create(
            draft, **_header(former.header), noise=own.header.noise
        ) as ledger:  # as locked as the former
            for record in former.records:
                ledger.record(record.event)
            draft.replace(self.files.ledger)
            sync_folder(self.path)
            self._copy(trial, ledger, about)

    def _copy(self, trial: Path, ledger: Ledger, about: dict[str, Any]) -> None:
        """Copy the files of a trial, with the ledger and the epsilon of the search in them instead of its own."""
        for path in sorted(trial.iterdir()):
            if path.is_file() and path.name not in _OF_A_TRIAL:
                write_whole(self.path / path.name, path.read_bytes())
        lines = [parse_json(line) for line in read_bytes(trial / names.METRICS).splitlines()]
        lines = [line | {"epsilon": ledger.epsilon if ledger.epsilon < float("inf") else "inf"} for line in lines]
        write_whole(self.path / names.METRICS, "".join(json.dumps(line) + "\n" for line in lines).encode())
        write_json(
            self.path / names.ENVIRONMENT, read_json(trial / names.ENVIRONMENT) | {"made": ledger.header.created}
        )
        weights = load_tensors(trial / names.WEIGHTS)
        save_tensors(self.files.model, Checkpoint(weights.tensors, weights.record | {"ledger": list(ledger.head)}))
        record = read_json(trial / names.MODEL) | {"statement": ledger.statement().json(), "tuning": about}
        write_json(self.path / names.MODEL, record | {"weights_sha256": file_digest(self.files.model)})

    def tidy(self) -> None:
        """Remove the trials and the secret of a search whose run is complete; harmless if done already."""
        write_model_card(self.path)
        self.remove_secrets()

    def remove_secrets(self) -> None:
        """Remove the trials, then the key."""
        if self.trials.exists():
            shutil.rmtree(self.trials)
        self.secret.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Remove a search that was started here and in which no trial has released anything; leave any other."""
        if self.trials.exists() and any(self.trials.iterdir()):
            return
        self.remove_secrets()
        self.files.ledger.unlink(missing_ok=True)
        for folder in self._new_folders:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
