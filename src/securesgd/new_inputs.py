"""Files of new inputs, read as the data of a run were: images, folders of them, .npz arrays, tables of rows.

What the run was trained on need not be there: model.json says how an input is read.
"""

__all__ = ["InputPlace", "NewInputs", "Refusal", "read_inputs"]

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.certificates.column_radii import table_schema
from securesgd.config import IN_MEMORY
from securesgd.data.arrays import channels_first, require_memory
from securesgd.data.image_files import read_header, read_pixels
from securesgd.data.image_reading import ImageReading
from securesgd.data.load import input_tensor
from securesgd.data.npz_file import read_npz_inputs
from securesgd.data.problems import join_some
from securesgd.data.schema import Schema
from securesgd.data.settings import format_size
from securesgd.data.table import is_table, table_notes
from securesgd.data.table_files import read_cells
from securesgd.errors import InvalidInputError, SecureSGDError, printable

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class InputPlace:
    """Where an input is: its file, and of a table or an array the row, counted from 1."""

    file: str
    row: int | None = None

    def __str__(self) -> str:
        return self.file if self.row is None else f"{self.file} row {self.row}"


@dataclass(frozen=True)
class Refusal:
    """A file or a row that cannot be used, and what would be valid."""

    place: InputPlace
    problem: str

    def __str__(self) -> str:
        return printable(f"{self.place} {self.problem}")

    def json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {"file": self.place.file, "row": self.place.row, "problem": printable(self.problem)}


@dataclass(frozen=True, kw_only=True, eq=False)
class NewInputs:
    """Inputs of a run as one batch, where each is, what was refused, and notes on how tables were read."""

    batch: Tensor
    places: tuple[InputPlace, ...]
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...]


def read_inputs(paths: Sequence[str | Path], record: dict[str, Any]) -> NewInputs:
    """Return the inputs in some files, preprocessed as those of the training; `record` is the content of model.json.

    A path is an image (PNG, JPEG), a folder of images with all below it in the order of their names (those that start
    with a dot are ignored), a .npz file with `x` or `x_test`, or for a run on a table a .csv, .tsv or .parquet file,
    with or without the column of the class.
    Guarantee: what an input becomes depends on the input and the record alone.
    Raises: InvalidInputError or DamagedFileError if the record is damaged. What cannot be used is in `refused`.
    """
    reader = _Reader(record)
    for path in paths:
        reader.read(Path(path))
    shape = tuple(int(size) for size in record["input_shape"])
    return NewInputs(
        batch=torch.cat(reader.parts) if reader.parts else torch.empty(0, *shape),
        places=tuple(reader.places),
        refused=tuple(reader.refused),
        notes=tuple(reader.notes),
    )


@dataclass
class _Reader:
    """Collects the inputs of one file after the other."""

    record: dict[str, Any]
    parts: list[Tensor] = field(default_factory=list)
    places: list[InputPlace] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = tuple(int(size) for size in self.record["input_shape"])
        self.schema = table_schema(self.record)
        self.preprocessing = self.record.get("preprocessing")
        in_memory = (self.record.get("data") or {}).get("name") == IN_MEMORY
        ends = self.record.get("input_range") if in_memory else (0.0, 1.0)
        self.input_range = None if ends is None else (float(ends[0]), float(ends[1]))
        """What inputs are within; None: any numbers. Whatever `load_data` reads is scaled to 0..1."""
        self.reading = None if self.schema is not None else self._image_reading()

    def read(self, path: Path) -> None:
        """Add the inputs of one path; what cannot be used is added to `refused`."""
        try:
            if not os.path.lexists(path):
                raise InvalidInputError("does not exist")
            if self.schema is not None:
                self._add_table(path, self.schema)
            elif path.is_dir():
                self._add_folder(path)
            elif path.suffix.lower() == ".npz":
                self._add_arrays(path)
            else:
                self._add_images([path], str(path))
        except (SecureSGDError, OSError, ValueError) as error:
            self._refuse(path, error)

    def _refuse(self, path: Path, error: Exception) -> None:
        text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        for start in (f"{path}: ", f"{path} ", f"{printable(str(path))}: "):
            text = text.removeprefix(start)
        self.refused.append(Refusal(InputPlace(str(path)), text))

    def _add(self, path: Path, inputs: NDArray[Any], rows: Sequence[int | None]) -> None:
        keep = inputs.dtype == np.float64  # a radius is about the number that was given, not one rounded to float32
        self.parts.append(torch.from_numpy(np.array(inputs)) if keep else input_tensor(inputs))
        self.places += [InputPlace(str(path), row) for row in rows]

    def _add_folder(self, folder: Path) -> None:
        files: list[Path] = []
        for place, folders, found in os.walk(folder, onerror=lambda error: self._refuse(Path(error.filename), error)):
            folders[:] = [name for name in folders if not name.startswith(".")]
            files += [Path(place, name) for name in found if not name.startswith(".")]
        if not files:
            raise InvalidInputError("is a folder without files; valid: PNG or JPEG images in it, or in folders below")
        self._add_images(sorted(files), str(folder))

    def _add_images(self, files: Sequence[Path], place: str) -> None:
        if self.reading is None:
            dotted = " × ".join(map(str, self.shape))
            raise InvalidInputError(
                "cannot be used: the run was not trained on images, or their scaling is not known; valid: a .npz file "
                f"with x of n × {dotted} numbers as in its training"
            )
        require_memory(6 * len(files) * math.prod(self.shape), place)
        for file in files:
            try:
                header = read_header(file)
                self.reading.require_fit(header)
                if not self.preprocessing and header.grey != (self.reading.mode == "L"):
                    raise InvalidInputError(
                        f"is grey; valid: images in colour of {format_size(self.reading.size)} pixels, as in training"
                    )
                pixels = read_pixels(file, self.reading.mode, self.reading.size)
            except (InvalidInputError, OSError) as error:
                self._refuse(file, error)
            else:
                self._add(file, pixels.transpose(2, 0, 1)[None], [None])

    def _image_reading(self) -> ImageReading | None:
        """Return how images are read; None if the run is not about images, or its inputs were scaled elsewhere."""
        if self.preprocessing:
            return ImageReading.from_json(self.preprocessing)
        if len(self.shape) != 3 or self.shape[0] not in _MODES or self.input_range != (0.0, 1.0):
            return None
        classes = tuple(str(name) for name in self.record["class_names"])
        mode, size = _MODES[self.shape[0]], (self.shape[2], self.shape[1])
        return ImageReading(classes=classes, mode=mode, size=size, resize=False, skip_bad=False)

    def _add_arrays(self, path: Path) -> None:
        array = read_npz_inputs(path)
        shape = list(array.shape)
        if tuple(array.shape) == self.shape:
            array = array[None]
        elif tuple(array.shape[1:]) != self.shape and array.ndim > 1:
            array = channels_first(array, "x")
        if tuple(array.shape[1:]) != self.shape or not len(array):
            raise InvalidInputError(
                f"has x of shape {shape}; valid: (n, {', '.join(map(str, self.shape))}), n at least 1"
            )
        whole = array.dtype == np.uint8 and self.input_range == (0.0, 1.0)
        if not whole and not np.issubdtype(array.dtype, np.floating):
            scaled = "uint8 in 0..255 or " if self.input_range == (0.0, 1.0) else ""
            raise InvalidInputError(f"holds {array.dtype}; valid: {scaled}floating numbers as in training")
        low, high = (-math.inf, math.inf) if whole or self.input_range is None else self.input_range
        flat = array.reshape(len(array), -1)
        usable = whole | (np.isfinite(flat) & (flat >= low) & (flat <= high)).all(1)
        for row in np.flatnonzero(~usable).tolist():
            wrong = flat[row][~(np.isfinite(flat[row]) & (flat[row] >= low) & (flat[row] <= high))][0]
            valid = "finite numbers" if self.input_range is None else f"{low:g} to {high:g}"
            self.refused.append(Refusal(InputPlace(str(path), row + 1), f"holds {wrong:g}; valid: {valid}"))
        rows = np.flatnonzero(usable)
        if len(rows):
            kept = array[rows] if whole or array.dtype == np.float64 else array[rows].astype(np.float32)
            self._add(path, kept, [row + 1 for row in rows.tolist()])

    def _add_table(self, path: Path, schema: Schema) -> None:
        if path.is_dir() or not is_table(path):
            names = join_some([column.name for column in schema.used_columns])
            raise InvalidInputError(
                f"is no table, which the run was trained on; valid: a .csv, .tsv or .parquet file of {names}"
            )
        cells = read_cells(path)
        require_memory(12 * cells.rows * len(schema.features), str(path))
        encoded = schema.encode_rows({name: c for name, c in cells.columns.items() if name != schema.target})
        wrong: dict[int, list[str]] = {}
        for bad in encoded.bad:
            for number, row in enumerate(bad.rows.tolist()):
                value = bad.values[number] if number < len(bad.values) else "cannot be used"
                wrong.setdefault(row, []).append(f"{bad.column} {value} (valid: {bad.valid})")
        for row in sorted(wrong):
            self.refused.append(Refusal(InputPlace(str(path), row + 1), f"has {', '.join(wrong[row])}"))
        rows = np.array([row for row in range(cells.rows) if row not in wrong], np.int64)
        if len(rows):
            self._add(path, encoded.inputs[rows], [row + 1 for row in rows.tolist()])
        self.notes += [f"{path}: {note}" for note in table_notes(schema, cells, encoded)]
