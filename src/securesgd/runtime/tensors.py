"""Checkpoints: one file, written whole or not at all, without pickle, with a checksum over every byte it holds.

A checkpoint is a safetensors file whose header carries a JSON record and the SHA-256 of record and tensors.
"""

__all__ = ["Checkpoint", "load_tensors", "save_tensors", "tensors_digest"]

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import open_regular, parse_json, write_whole


@dataclass(frozen=True)
class Checkpoint:
    """Named tensors and a JSON record."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def save_tensors(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint, whole or not at all: after a crash the file is the old one or the new one.

    On disk when this returns (file and folder are synced).
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(checkpoint.tensors.items())}
    record = json.dumps(checkpoint.record, sort_keys=True)
    content = save(tensors, {"record": record, "sha256": tensors_digest(tensors, record)})
    write_whole(path, content)


def load_tensors(path: Path) -> Checkpoint:
    """Return a checkpoint after checking its checksum. Raises: DamagedFileError; the file is left untouched."""
    open_regular(path).close()  # safetensors would wait for a pipe
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"{path} is not a whole safetensors file ({error}); it was left untouched") from None
    record = metadata.get("record", "")
    if metadata.get("sha256") != tensors_digest(tensors, record):
        raise DamagedFileError(f"{path} does not match its own checksum; it was left untouched")
    try:
        content = parse_json(record)
    except ValueError as error:
        raise DamagedFileError(f"{path} has no valid record ({error}); it was left untouched") from None
    return Checkpoint(tensors, content)


def tensors_digest(tensors: dict[str, Tensor], record: str = "") -> str:
    """Return a digest of named tensors and a record."""
    digest = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
