"""Checkpoints: one file, written whole or not at all, without pickle, with a checksum over every byte it holds.

A checkpoint is a safetensors file whose header carries a JSON record and the SHA-256 of record and tensors.
"""

__all__ = ["Checkpoint", "load_tensors", "save_tensors", "tensors_digest"]

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from securesgd.errors import DamagedFileError


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
    write_durably(path, content)


def load_tensors(path: Path) -> Checkpoint:
    """Return a checkpoint after checking its checksum. Raises: DamagedFileError; the file is left untouched."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"{path} is not a whole safetensors file ({error}); it was left untouched") from None
    record = metadata.get("record", "")
    if metadata.get("sha256") != tensors_digest(tensors, record):
        raise DamagedFileError(f"{path} does not match its own checksum; it was left untouched")
    return Checkpoint(tensors, json.loads(record))


def write_durably(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file atomically and sync it and its folder, so that it survives a power cut once this returns."""
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def tensors_digest(tensors: dict[str, Tensor], record: str = "") -> str:
    """Return a digest of named tensors and a record."""
    digest = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
