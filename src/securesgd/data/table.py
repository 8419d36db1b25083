"""A table of rows: its schema found, its cells encoded, training and test rows divided."""

__all__ = ["find_schema", "is_table", "read_table", "schema_place", "schema_template", "table_notes"]

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from securesgd.data.arrays import BY_SHARE, SourceData, require_memory, split_apart, split_source
from securesgd.data.columns import Cells, Column, refuse_cells, scaled_numbers
from securesgd.data.schema import EncodedRows, Schema
from securesgd.data.settings import TABLE_SETTINGS, DataSettings
from securesgd.data.table_files import TABLE_SUFFIXES, TableCells, read_cells
from securesgd.errors import InvalidInputError, printable
from securesgd.runtime.storage import read_toml

MAX_SCHEMA = 4 << 20
"""Bytes of a schema.toml: ten thousand columns with some categories."""


def is_table(path: str | PathLike[str]) -> bool:
    """Return whether a path has the name of a table: .csv, .tsv or .parquet."""
    return Path(path).suffix.lower() in TABLE_SUFFIXES


def read_table(
    path: Path,
    settings: DataSettings | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> SourceData:
    """Return the rows of a table in a fixed shuffled order, features in [0, 1] as the schema says.

    Test rows are those of the file `settings.test`, or a random share set apart with `seed`. With `preprocessing` the
    schema is the one in it, and no file of a schema is read; if `settings` is None, too, all rows are test rows.
    Guarantee: what a row becomes depends on the row and the schema alone.
    Raises: InvalidInputError with all columns, or the first ten and the number of cells, that cannot be used.
    """
    test_only = bool(preprocessing) and settings is None
    settings = settings or DataSettings()
    settings.require_only(TABLE_SETTINGS, f"{path} is a table")
    cells = read_cells(path)
    schema = find_schema(path, settings, list(cells.columns), preprocessing)
    inputs, targets, notes = _encode(schema, path, cells)
    if settings.test is not None:
        other = Path(settings.test).expanduser()
        test_inputs, test_targets, more = _encode(schema, other, read_cells(other))
        is_test = np.arange(len(inputs) + len(test_inputs)) >= len(inputs)
        inputs, targets = np.concatenate([inputs, test_inputs]), np.concatenate([targets, test_targets])
        notes, split = notes + more, "training and test rows in a file each"
    elif test_only:
        is_test, split = np.ones(len(inputs), bool), "the table as test rows"
    else:
        is_test = split_apart(len(inputs), settings.test_share, seed)
        split = f"{BY_SHARE} {settings.test_share:g} of the rows set apart for testing with the run's seed"
    arrays = split_source(inputs, targets, is_test, schema.classes, str(path))
    return SourceData(
        arrays=arrays,
        split=split,
        by_share=split.startswith(BY_SHARE),
        preprocessing={"kind": "table", "schema": schema.json()},
        notes=tuple(notes),
    )


def _encode(schema: Schema, path: Path, cells: TableCells) -> tuple[Any, Any, list[str]]:
    """Return features, class numbers and notes of one file."""
    require_memory(12 * cells.rows * len(schema.features), str(path))  # float32, a copy, and the tensor
    try:
        schema.require_columns(list(cells.columns))
        encoded = schema.encode_rows(cells.columns)
    except InvalidInputError as error:
        raise InvalidInputError(printable(f"{path}: {error}")) from None
    refuse_cells(encoded.bad, f"{path}: ")
    return encoded.inputs, encoded.targets, [f"{path}: {note}" for note in table_notes(schema, cells, encoded)]


def table_notes(schema: Schema, cells: TableCells, encoded: EncodedRows) -> list[str]:
    """Return how a file was understood, and what was ignored and clipped."""
    notes = [f"{cells.rows:,} rows, {cells.form}"]
    ignored = [column.name for column in schema.columns if not column.features and column.name in cells.columns]
    if ignored:
        notes.append(f"ignored columns: {', '.join(ignored)}")
    bounds = {column.name: f"{column.minimum:g}..{column.maximum:g}" for column in schema.columns if column.numeric}
    notes += [
        f"{name}: {count:,} of {cells.rows:,} values were outside {bounds[name]} and clipped to it"
        for name, count in encoded.clipped.items()
        if count
    ]
    return notes


def schema_place(path: Path, settings: DataSettings) -> Path | None:
    """Return where the schema of a table is; None if none was named and there is none beside the table."""
    if settings.schema is not None:
        return Path(settings.schema).expanduser()
    beside = (path.with_name(f"{path.stem}.schema.toml"), path.with_name("schema.toml"))
    return next((place for place in beside if place.exists()), None)


def find_schema(
    path: Path, settings: DataSettings, header: Sequence[str], preprocessing: Mapping[str, Any] | None = None
) -> Schema:
    """Return the schema of a table, which has every column of its `header`; that of `preprocessing`, if it is given.

    Raises: InvalidInputError if there is none or it lacks facts, naming all columns; DamagedFileError if it is no TOML.
    """
    if preprocessing:
        schema = Schema.from_json(preprocessing.get("schema"))
        if settings.target not in (None, schema.target):
            raise InvalidInputError(f"target is {settings.target!r}, of the run {schema.target!r}; leave it out")
        return schema
    place = schema_place(path, settings)
    content = {} if place is None else read_toml(place, MAX_SCHEMA)
    try:
        return Schema.from_tables(content, target=settings.target, header=header)
    except InvalidInputError as error:
        where = place or f"there is no {path.stem}.schema.toml beside {path}"
        hint = "" if place else f"; `securesgd data check {path}` prints one to fill in"
        raise InvalidInputError(printable(f"{where}: {error}{hint}")) from None


def schema_template(cells: TableCells, target: str | None) -> str:
    """Return a schema.toml to be filled in: names and guessed kinds of the columns, and nothing of their values."""
    lines = [
        "# Public facts only: what is known without this data. Fill in, and remove the # before each line you need."
    ]
    lines.append("# target = " if target is None else tomli_w.dumps({"target": target}).rstrip())
    lines.append("# classes = [ ]")
    for name, column in cells.columns.items():
        if name == target:
            continue
        lines += ["", tomli_w.dumps({"columns": {name: {}}}).rstrip()]
        lines += ["# minimum = ", "# maximum = "] if _looks_numeric(column) else ["# categories = [ ]"]
        lines.append("# ignore = true")
    return "\n".join(lines) + "\n"


def _looks_numeric(cells: Cells) -> bool:
    """Return whether most cells of a column are numbers."""
    guess = Column(name="guess", minimum=0, maximum=1)
    bad = scaled_numbers(guess, cells)[2]
    return bad is None or 2 * len(bad.rows) < len(cells)
