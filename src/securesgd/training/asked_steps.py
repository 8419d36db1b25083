"""What the steps of a loop of the user's own were asked, so that none is asked something else when it is run again."""

__all__ = ["AskedSteps", "asked_digest", "sums_digest"]

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from securesgd.clipping.losses import Loss
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.storage import read_json, write_whole
from securesgd.training.batch import Batch
from securesgd.training.code_fingerprint import describe_code


class AskedSteps:
    """What the steps of a loop of the user's own were asked, and the clipped sums they gave, as a chain of digests.

    Sample and noise of a step are functions of the run's key. With other sums under the same noise, the difference of
    two results would have no noise in it. So the noise of a step is bound to the chain (`randomness`), and a step that
    is run again after a crash must be asked the same and give the same sums, to the last bit: otherwise it would be a
    release that the ledger does not count. The sums count for what no look at the code of a loss can see: a table it
    reads, a teacher, an attribute of the model, the weights that a projection has left. What steps after the last
    checkpoint were asked is on disk before they are released. The digests are keyed with the secret of the run: they
    tell a reader nothing.
    """

    def __init__(self, path: Path, randomness: Randomness, step: int, chain: str) -> None:
        """Go on with `chain`, that of the checkpoint after `step` steps. `path` need not exist."""
        self._path, self._randomness, self.chain = path, randomness, chain
        self._digests: dict[str, str] = {}
        if path.exists():
            stored: Any = read_json(path)
            if not isinstance(stored, dict) or not all(number.isdecimal() for number in stored):
                raise DamagedFileError(f"{path} is damaged, so the run cannot be resumed; it was left untouched")
            self._digests = {number: digest for number, digest in stored.items() if int(number) >= step}

    def record(self, step: int, asked: str) -> None:
        """Write what step `step` is asked and gives. Raises: InvalidInputError if it was something else before."""
        chain = self._randomness.name(f"{self.chain} {asked}")
        before = self._digests.get(str(step))
        if before not in (None, chain):
            raise InvalidInputError(
                f"step {step + 1} was run before with other inputs, targets or another loss, or gave other sums, and "
                "is paid for once; valid: the same ones with the same code, or finish() without another step"
            )
        self.chain = chain
        if before is None:
            self._digests[str(step)] = chain
            write_whole(self._path, json.dumps(self._digests).encode(), mode=0o600)

    def forget(self) -> None:
        """Drop the steps so far, which a checkpoint has now: they are never run again."""
        self._digests.clear()


def asked_digest(batch: Batch, loss: Loss) -> str:
    """Return a digest of the numbers in the batch and of the code of the loss, as far as Python shows it."""
    digest = hashlib.sha256(repr(describe_code(loss)).encode())
    _add_tensors(digest, (batch.inputs, batch.targets))
    return digest.hexdigest()


def sums_digest(sums: Iterable[Tensor]) -> str:
    """Return a digest of the clipped sums of a step, before noise: **private**, so only for keyed digests."""
    digest = hashlib.sha256()
    _add_tensors(digest, sums)
    return digest.hexdigest()


def _add_tensors(digest: Any, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
