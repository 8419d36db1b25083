"""The files of a training run, and the order in which they come and go.

    secret.json             key and digest of the data; readable by its owner only; gone when training ends
    checkpoint.safetensors  weights, optimizer and average at some step; gone when training ends
    ledger.jsonl            every release, paid before it is used
    model.safetensors       the trained weights, when training has ended

Order at the start: secret, ledger (header only), checkpoint of step 0; then steps are paid and run. So whenever a step
may have been released, there is a checkpoint at or before it and the secret to run it again identically; and a folder
with a checkpoint but no ledger has lost it. Order at the end: model, then secret and checkpoint go.
"""

__all__ = ["RunFolder", "locked_folder"]

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.storage import is_leftover, read_json, write_whole
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.secret = self.path / "secret.json"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.ledger = self.path / "ledger.jsonl"
        self.model = self.path / "model.safetensors"

    @property
    def finished(self) -> bool:
        """Whether training has ended and the model is there."""
        return self.model.exists()

    def claim(self, resume: bool) -> bool:
        """Return whether there is something to resume. Raises: InvalidInputError rather than touch another's files."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; give the path of a folder")
        occupied = self.path.exists() and not all(is_leftover(entry) for entry in self.path.iterdir())
        if occupied and not resume:
            raise InvalidInputError(f"{self.path} is not empty; resume it, or choose another folder")
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.checkpoint.exists() or self.finished) and not self.ledger.exists():
            raise DamagedFileError(f"{self.ledger} is missing: what {self.path} has released cannot be known")
        return self.checkpoint.exists() or self.finished

    def write_secret(self, randomness: Randomness, data_digest: str) -> None:
        """Keep the key until training ends, readable by its owner only."""
        content = json.dumps({"key": randomness.key.hex(), "data": data_digest})
        write_whole(self.secret, content.encode(), mode=0o600)

    def read_secret(self, data_digest: str) -> Randomness:
        """Return the key of the run. Raises: InvalidInputError if the data are not those it was started with."""
        try:
            content = read_json(self.secret)
            randomness, digest = Randomness(bytes.fromhex(content["key"])), content["data"]
        except (DamagedFileError, ValueError, KeyError, TypeError):
            raise DamagedFileError(f"{self.secret} cannot be read; the run cannot be resumed") from None
        if digest != data_digest:
            # The same noise on other data would cancel in the difference of the two results.
            raise InvalidInputError(f"the training data are not those {self.path} was started with; start a new run")
        return randomness

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        save_tensors(self.checkpoint, checkpoint)

    def load(self) -> Checkpoint:
        """Return the checkpoint, or of a finished run the model."""
        return load_tensors(self.model if self.finished else self.checkpoint)

    def finish(self, model: Checkpoint) -> None:
        """Write the model and remove what is no longer needed, the key first of all."""
        save_tensors(self.model, model)
        self.tidy()

    def tidy(self) -> None:
        """Remove the secret and the checkpoint of a finished run; harmless if done already."""
        self.secret.unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep others out within the context. Raises: InvalidInputError if another process certifies or attacks there."""
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
