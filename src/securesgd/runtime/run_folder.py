"""The run folder: the names of its files, who may write to it, and the order in which training's files come and go.

    config.toml             everything asked for
    secret.json             key and digest of the data; readable by its owner only; gone when training ends
    asked.json              keyed digests of what steps were asked and gave since the checkpoint; gone then, too
    checkpoint.safetensors  weights, optimizer and average at some step; gone when training ends
    ledger.jsonl            every release, reserved before it is used
    model.safetensors       the trained weights, when training has ended
    redistribution.json     r as the trained network has it
    metrics.jsonl           accuracy on the held-out examples while the run trains, on the test set when it has ended
    environment.json        versions, machine and command
    local.json              where the user's own data are on this machine; no part of the claim
    model.json              network, data and privacy statement; written last, so that it says the run is finished
    MODEL_CARD.md           the others in words, for whoever uses the model; made after them, and again by `report`

Order at the start: ledger (header only; who creates it holds it, so that one process alone chooses the key), secret,
checkpoint of step 0; then steps are reserved and run. So whenever a step may have been released, there is a checkpoint
at or before it and the secret to run it again identically; and a folder with a checkpoint but no ledger has lost it.
Order at the end: weights, then secret and checkpoint go, then the records. `certify`, `attack` and `report` add their
files later.

A run may be ended at any checkpoint. Its state is a function of the releases of its first steps, all in the ledger, so
the weights of a run that is finished early are covered by the lines that are there. Nothing more is revealed if a copy
of the folder is finished and the original resumed: what both release is a function of the steps of the longer one,
whose ledger has the lines of the shorter. A crash between the weights and the removal of the key leaves a finished run,
which is never trained further; the next command removes the key.
"""

__all__ = ["RunFolder", "locked_folder"]

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import is_leftover, read_json, require_writable, write_whole

if TYPE_CHECKING:  # reading a folder needs no torch
    from securesgd.runtime.randomness import Randomness
    from securesgd.runtime.tensors import Checkpoint

CONFIG, LEDGER, WEIGHTS, MODEL = "config.toml", "ledger.jsonl", "model.safetensors", "model.json"
LOCAL = "local.json"
SECRET, CHECKPOINT, ASKED = "secret.json", "checkpoint.safetensors", "asked.json"
REDISTRIBUTION, REDISTRIBUTION_PICTURE = "redistribution.json", "redistribution.png"
METRICS, ENVIRONMENT, REPORT = "metrics.jsonl", "environment.json", "report.html"
MODEL_CARD = "MODEL_CARD.md"
CERTIFICATES, CERTIFICATE_RECORD, CERTIFICATE_PICTURE = "certificates.csv", "certificates.json", "certificates.png"
COLUMN_RADII = "column-radii.csv"
SENSITIVITY, FALSIFIED = "sensitivity.json", "falsified-{norm}.json"
ATTACKS, ATTACK_RECORD, ATTACK_PICTURE, ATTACK_IMAGES = "attacks.csv", "attacks.json", "attacks.png", "attacked-images"

IN_MEMORY, OWN_NETWORK = "in-memory", "own"
"""What config.toml has for data, and for a network, that only the caller has."""


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.secret, self.checkpoint = self.path / SECRET, self.path / CHECKPOINT
        self.ledger, self.model = self.path / LEDGER, self.path / WEIGHTS
        self.asked = self.path / ASKED

    @property
    def finished(self) -> bool:
        """Whether training has ended and the weights are there."""
        return self.model.exists()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from, or the weights of a finished training."""
        return self.checkpoint.exists() or self.finished

    @property
    def complete(self) -> bool:
        """Whether all records of training are written, too."""
        return self.finished and (self.path / MODEL).exists()

    @property
    def occupied(self) -> bool:
        """Whether something is there that is not an unfinished write of ours."""
        path = self.path
        return path.exists() and (not path.is_dir() or not all(is_leftover(entry) for entry in path.iterdir()))

    def claim(self, resume: bool, *, finish: bool = False) -> bool:
        """Return whether there is something to resume; with `finish` there must be.

        Raises: InvalidInputError rather than touch another's files.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; give the path of a folder")
        if finish and not self.started:
            raise InvalidInputError(f"{self.path} has no run to finish; valid: the folder of a run that was stopped")
        if self.occupied and not (resume or finish):
            raise InvalidInputError(f"{self.path} is not empty; resume it, or choose another folder")
        self.path.mkdir(parents=True, exist_ok=True)
        if self.started and not self.ledger.exists():
            raise DamagedFileError(f"{self.ledger} is missing: what {self.path} has released cannot be known")
        return self.started

    def write_secret(self, randomness: "Randomness", data_digest: str) -> None:
        """Keep the key until training ends, readable by its owner only."""
        content = json.dumps({"key": randomness.key.hex(), "data": data_digest})
        write_whole(self.secret, content.encode(), mode=0o600)

    def read_secret(self, data_digest: str) -> "Randomness":
        """Return the key of the run. Raises: InvalidInputError if the data are not those it was started with."""
        from securesgd.runtime.randomness import Randomness

        try:
            content = read_json(self.secret)
            randomness, digest = Randomness(bytes.fromhex(content["key"])), content["data"]
        except (DamagedFileError, ValueError, KeyError, TypeError):
            raise DamagedFileError(f"{self.secret} cannot be read; the run cannot be resumed") from None
        if digest != data_digest:
            # The same noise on other data would cancel in the difference of the two results.
            raise InvalidInputError(f"the training data are not those {self.path} was started with; start a new run")
        return randomness

    def save(self, checkpoint: "Checkpoint") -> None:
        """Replace the checkpoint."""
        from securesgd.runtime.tensors import save_tensors

        save_tensors(self.checkpoint, checkpoint)

    def load(self) -> "Checkpoint":
        """Return the checkpoint, or of a finished run the model."""
        from securesgd.runtime.tensors import load_tensors

        return load_tensors(self.model if self.finished else self.checkpoint)

    def finish(self, model: "Checkpoint") -> None:
        """Write the model and remove what is no longer needed, the key first of all."""
        from securesgd.runtime.tensors import save_tensors

        save_tensors(self.model, model)
        self.tidy()

    def tidy(self) -> None:
        """Remove secret, checkpoint and digests of a finished run; harmless if done already."""
        self.secret.unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        self.asked.unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep others out within the context.

    Raises: InvalidInputError if another process certifies or attacks there, or the folder cannot be written to.
    """
    require_writable(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"another process is certifying or attacking {folder}; wait for it to end"
            raise InvalidInputError(message) from None
        yield
    finally:
        os.close(descriptor)
