"""The attacks of a run folder: `attacks.csv`, a row per cell and example, and `attacks.json`, an entry per cell.

A cell is one attack at one budget under one set of settings; its name ends with a digest of all of them, so two cells
can never be taken for each other. Rows are written part by part, whole or not at all.
"""

__all__ = ["Cells", "cell_name", "load_images"]

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.attacks.harness import AttackedExamples
from securesgd.attacks.recheck import cell_digest, require_same_settings
from securesgd.attacks.robust_accuracy import COLUMNS
from securesgd.attacks.sanity_checks import SanityWarning
from securesgd.attacks.settings import AttackSettings
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.run_folder import ATTACK_IMAGES, ATTACK_RECORD, ATTACKS, WEIGHTS, locked_folder
from securesgd.runtime.storage import file_digest, read_json, write_json
from securesgd.runtime.tables import read_rows, write_rows
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors

_COUNTS = ("outside", "flat", "attacked", "passes")
_NUMBERS = (
    "budget", "index", "label", "draws", "clean_prediction", "clean_label_votes", "clean_other_votes",
    "prediction", "label_votes", "other_votes", "size", "success",
)  # fmt: skip


def cell_name(attack: AttackSettings, measured: dict[str, Any]) -> str:
    """Return the name of a cell: readable, and different whenever a setting that matters is."""
    name = re.sub(r"[^\w.-]+", "-", attack.attack)  # that of an attack from outside may not be a file name
    kind = name if attack.protocol == "sound" else f"{name}-{attack.protocol}"
    return f"{kind}-{attack.norm}-{attack.budget:g}-{cell_digest(attack.identity, measured)}"


class Cells:
    """The cells of a run folder; `Cells.open` returns them and keeps other processes out."""

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights = folder, weights
        self.entries, self.rows, self.warnings = _read(folder, weights)

    @classmethod
    @contextmanager
    def open(cls, folder: Path, weights: str) -> Iterator["Cells"]:
        """Yield the folder's cells under a lock.

        Raises: InvalidInputError if another process has it; DamagedFileError if the files are damaged, or were made
        with other weights. They are left untouched.
        """
        with locked_folder(folder):
            yield cls(folder, weights)

    def begin(
        self, attack: AttackSettings, measured: dict[str, Any], data: str | None = None, *, again: bool = False
    ) -> str:
        """Return the name of a cell, added if it is new; `again` empties it first.

        Raises: InvalidInputError if its rows are of a test set with another digest than `data`.
        """
        name = cell_name(attack, measured)
        if again:
            self.entries.pop(name, None)
            self.rows = [row for row in self.rows if row["cell"] != name]
            _images_path(self.folder, name).unlink(missing_ok=True)
        new = {"attack": attack.identity, "measured": measured, "seconds": 0.0, **dict.fromkeys(_COUNTS, 0)}
        self.entries.setdefault(name, new if data is None else new | {"data": data})
        self.require_data(name, data)
        return name

    def require_data(self, name: str, data: str | None) -> None:
        """Raise InvalidInputError if a cell has rows of a test set with another digest than `data`."""
        there = self.entries.get(name, {}).get("data", data)  # entries of earlier versions do not say
        if data is not None and there != data:
            raise InvalidInputError(
                f"{self.folder / ATTACKS} has rows of {name} on other data (sha256 {str(there)[:8]}…) than the "
                f"given ({data[:8]}…); give the same, or --again to replace them"
            )

    def cell_rows(self, name: str, examples: int | None = None) -> list[dict[str, Any]]:
        """Return a cell's rows in the order of the examples, of the first `examples` if given."""
        rows = [row for row in self.rows if row["cell"] == name and (examples is None or row["index"] < examples)]
        return sorted(rows, key=lambda row: row["index"])

    def add(self, name: str, part: AttackedExamples, seconds: float, *, keep_images: bool = False) -> None:
        """Add a measured part and write everything."""
        self.rows += [{"cell": name, **row} for row in part.rows]
        entry = self.entries[name]
        entry["seconds"] = round(entry["seconds"] + seconds, 3)
        for count in _COUNTS:
            entry[count] += getattr(part, count)
        if keep_images:
            _append_images(self.folder, name, np.array([row["index"] for row in part.rows]), part.images)
        self.write()

    def write(self) -> None:
        """Write rows, then entries: after a crash between the two, rows without an entry are measured again."""
        write_rows(self.folder / ATTACKS, [{name: row[name] for name in COLUMNS} for row in self.rows])
        record = {
            "format": 1, "weights": self.weights, "model_file": file_digest(self.folder / WEIGHTS),
            "cells": self.entries, "suspicions": self.warnings,
        }  # fmt: skip
        write_json(self.folder / ATTACK_RECORD, record)


def load_images(folder: Path, name: str) -> tuple[NDArray[np.int64], Tensor]:
    """Return indices and images of a cell that was measured with `keep_images`.

    Raises: DamagedFileError if it was not.
    """
    tensors = load_tensors(_images_path(folder, name)).tensors
    return tensors["index"].numpy(), tensors["images"]


def _images_path(folder: Path, name: str) -> Path:
    return folder / ATTACK_IMAGES / f"{name}.safetensors"


def _append_images(folder: Path, name: str, indices: NDArray[np.int64], images: Tensor) -> None:
    path = _images_path(folder, name)
    path.parent.mkdir(exist_ok=True)
    index, images = torch.from_numpy(indices), images.cpu()
    if path.exists():
        existing_index, existing_images = load_images(folder, name)
        index = torch.cat([torch.from_numpy(existing_index), index])
        images = torch.cat([existing_images, images])
    save_tensors(path, Checkpoint({"index": index, "images": images}, {"cell": name}))


def _read(folder: Path, weights: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the entries, rows and sanity warnings of a folder."""
    rows_path, record_path = folder / ATTACKS, folder / ATTACK_RECORD
    if not rows_path.exists() and not record_path.exists():
        return {}, [], []
    try:
        record = read_json(record_path)
        entries = dict(record["cells"])
        for name, entry in entries.items():
            _require_consistent(name, entry)
        present = [_parse_row(row) for row in read_rows(rows_path, numbers=_NUMBERS)]
        if tuple(present[0]) != COLUMNS:
            raise ValueError(f"{ATTACKS} has other columns")
        if len({(row["cell"], row["index"]) for row in present}) < len(present):
            raise ValueError(f"{ATTACKS} has a row twice")
        made_with, warnings = record["weights"], [_parse_warning(entry) for entry in record["suspicions"]]
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{record_path} or {ATTACKS} is damaged ({error}); move both away") from None
    if made_with != weights:
        raise DamagedFileError(
            f"{rows_path} was made with other weights (sha256 {str(made_with)[:8]}…) than the model's "
            f"({weights[:8]}…); move it and {ATTACK_RECORD} away"
        )
    return entries, [row for row in present if row["cell"] in entries], warnings


def _require_consistent(name: str, entry: dict[str, Any]) -> None:
    """Raise ValueError or KeyError unless an entry has the settings that its name was made of, and counts."""
    require_same_settings(name, entry)
    for count in ("seconds", *_COUNTS):
        if isinstance(entry[count], bool) or not isinstance(entry[count], int | float) or entry[count] < 0:
            raise ValueError(f"cell {name[:80]}: {count} is {str(entry[count])[:40]}")
    for warning in entry.get("probes", ()):
        _parse_warning(warning)


def _parse_warning(record: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded sanity warning. Raises: TypeError if it is not one."""
    warning = SanityWarning(**record)
    if not all(isinstance(text, str) for text in (warning.name, warning.attack, warning.words)):
        raise TypeError("name, attack and words of a suspicion must be text")
    return warning.json()


def _parse_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it was before it was written: whole numbers as such, and empty text for an empty cell.

    Raises: ValueError if a number is not finite, or a radius is no number.
    """
    floats = ("budget", "size", "clean_radius", "clean_radius_published", "radius", "radius_published")
    for name, value in row.items():
        if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and name in floats):
            raise ValueError(f"{name} is {str(value)[:40]!r}; valid: a finite number")
    return {
        name: "" if value is None else int(value) if isinstance(value, float) and name not in floats else value
        for name, value in row.items()
    }
