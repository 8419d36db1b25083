"""A table of any size as arrays in a folder: encoded some rows at a time, divided and shuffled as in memory."""

__all__ = ["read_table_on_disk", "stream_table"]

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.array_folder import ARRAY_NAMES, ArrayReading, read_array_folder
from securesgd.data.arrays import BY_SHARE, SourceData, fixed_order, split_apart
from securesgd.data.columns import refuse_cells
from securesgd.data.schema import EncodedRows, Schema
from securesgd.data.settings import TABLE_SETTINGS, DataSettings
from securesgd.data.shuffled_rows import ShuffledRows
from securesgd.data.table import find_schema, table_notes
from securesgd.data.table_files import TableCells, count_rows, read_blocks
from securesgd.errors import InvalidInputError, printable


def read_table_on_disk(
    path: Path, settings: DataSettings, preprocessing: Mapping[str, Any] | None, seed: int
) -> SourceData:
    """Return what `read_table` does, training inputs on disk: encoded in a file that has no name any more.

    The file is written to $TMPDIR, or else beside the table, for its owner alone; it is gone when it is not used any
    more, however the process ends. (One that is killed while it writes leaves a folder `.NAME-…` with what it wrote.)
    Raises: as `read_table`; InvalidInputError if there is no room, or no leave, for the file.
    """
    place = Path(os.environ.get("TMPDIR") or path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=place, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            reading, notes = stream_table(path, folder, settings, seed, lambda done, total: None, preprocessing)
            reading.write(folder)
            try:
                source = read_array_folder(folder)
            except InvalidInputError as error:
                raise InvalidInputError(str(error).replace(name, str(path))) from None
    except OSError as error:
        raise InvalidInputError(
            f"{path} is encoded in a file on disk while it is used, which cannot be written to {place}: "
            f"{error.strerror}; set TMPDIR to a folder with room"
        ) from None
    return replace(source, split=source.split.replace(f"seed {seed}", "the run's seed"), notes=notes)


def stream_table(
    path: Path,
    folder: Path,
    settings: DataSettings,
    seed: int,
    show: Callable[[int, int], None],
    preprocessing: Mapping[str, Any] | None = None,
) -> tuple[ArrayReading, tuple[str, ...]]:
    """Write the rows of a table, as `read_table` returns them, to arrays in a folder; return their reading and notes.

    Guarantee: the arrays have the bits of those in memory. Held at a time are some rows, and a number or two for each.
    Raises: as `read_table`, with the cells that cannot be used in the first rows that have any.
    """
    settings.require_only(TABLE_SETTINGS, f"{path} is a table")
    places = [path] if settings.test is None else [path, Path(settings.test).expanduser()]
    schema = find_schema(path, settings, list(next(read_blocks(path, 1)).columns), preprocessing)
    counts = [count_rows(place) for place in places]
    is_test = np.arange(sum(counts)) >= counts[0]
    split, by_share = "training and test rows in a file each", settings.test is None
    if by_share:
        is_test = split_apart(counts[0], settings.test_share, seed)
        split = f"{BY_SHARE} {settings.test_share:g} of the rows set apart for testing with seed {seed}"
    writers = _writers(folder, is_test, len(schema.features))
    notes: list[str] = []
    done = 0
    for place in places:
        for encoded in _encoded_blocks(schema, place, notes):
            apart = is_test[done : done + len(encoded.inputs)]
            for inputs, targets, mine in zip(writers[::2], writers[1::2], (~apart, apart), strict=True):
                inputs.append(encoded.inputs[mine])
                if encoded.targets is not None:
                    targets.append(encoded.targets[mine])
            done += len(encoded.inputs)
            show(done, len(is_test))
    for writer in writers:
        writer.finish()
    preprocessing = {"kind": "table", "schema": schema.json()}
    reading = ArrayReading(classes=schema.classes, split=split, by_share=by_share, preprocessing=preprocessing)
    return reading, tuple(notes)


def _writers(folder: Path, is_test: NDArray[np.bool_], features: int) -> list[ShuffledRows]:
    """Return what writes the four arrays: training and test rows go to the places that `split_source` gives them."""
    writers = []
    for own, names in ((~is_test, ARRAY_NAMES[:2]), (is_test, ARRAY_NAMES[2:])):
        places = np.argsort(fixed_order(int(own.sum())))
        writers.append(ShuffledRows(folder / names[0], places, (features,), np.float32))
        writers.append(ShuffledRows(folder / names[1], places, (), np.int64))
    return writers


def _encoded_blocks(schema: Schema, path: Path, notes: list[str]) -> Iterator[EncodedRows]:
    """Yield the rows of a file, some at a time; at the end, add the notes about all of them."""
    done, clipped, form = 0, Counter[str](), ""
    columns: list[str] = []
    for cells in read_blocks(path):
        columns, form = list(cells.columns), cells.form
        try:
            schema.require_columns(columns)
            encoded = schema.encode_rows(cells.columns)
        except InvalidInputError as error:
            raise InvalidInputError(printable(f"{path}: {error}")) from None
        refuse_cells([replace(bad, rows=bad.rows + done) for bad in encoded.bad], f"{path}: ")
        done += cells.rows
        clipped.update(encoded.clipped)
        yield encoded
    about = TableCells(columns=dict.fromkeys(columns, ()), rows=done, form=form)
    total = EncodedRows(inputs=np.empty((0, 0), np.float32), targets=None, clipped=dict(clipped), bad=())
    notes += [f"{path}: {note}" for note in table_notes(schema, about, total)]
