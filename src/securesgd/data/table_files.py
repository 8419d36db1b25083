"""The cells of a table, by column: a CSV file as text, a Parquet file as numbers and text."""

__all__ = ["TABLE_SUFFIXES", "TableCells", "count_rows", "memory_needed", "read_blocks", "read_cells"]

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from securesgd.data.arrays import require_memory
from securesgd.data.columns import Cells
from securesgd.data.problems import join_some
from securesgd.errors import InvalidInputError, printable
from securesgd.runtime.storage import open_regular

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_CSV_MEMORY = 12
"""Bytes of memory per byte of the file: a cell of five characters is a text of 54 bytes and its place in a list."""
_PARQUET_MEMORY = 64
"""Bytes of memory per cell."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableCells:
    """The columns of a table by name, in the order of the file; `form` says how the file was understood."""

    columns: Mapping[str, Cells]
    rows: int
    form: str


def read_cells(path: Path) -> TableCells:
    """Return the cells of a .csv, .tsv or .parquet file; the first line of text names the columns.

    Text is UTF-8, with or without a byte order mark. It is divided by what divides its first line into most columns:
    commas, semicolons, tabs or bars. Empty lines are left out, and blanks around names.
    Raises: InvalidInputError if the file cannot be read or is empty, rows differ in length, or columns have no name,
    the same name, or (Parquet) values that are no numbers, truth values or text. DamagedFileError if it is no file.
    """
    try:
        return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except InvalidInputError as error:
        raise InvalidInputError(printable(f"{path}: {error}")) from None


def read_blocks(path: Path, rows: int = 10_000) -> Iterator[TableCells]:
    """Yield the cells of a file of any size, some rows at a time; all blocks have the same columns.

    Raises: as `read_cells`, with the rows that are wrong in the first block that has any.
    """
    blocks = _parquet_blocks if path.suffix.lower() == ".parquet" else _csv_blocks
    try:
        yield from blocks(path, rows)
    except InvalidInputError as error:
        raise InvalidInputError(printable(f"{path}: {error}")) from None


def count_rows(path: Path) -> int:
    """Return the number of rows of a file of any size. Raises: as `read_blocks`."""
    if path.suffix.lower() != ".parquet":
        return sum(block.rows for block in read_blocks(path))
    try:
        with _open_parquet(path) as (_, content, _):
            return int(content.metadata.num_rows)
    except InvalidInputError as error:
        raise InvalidInputError(printable(f"{path}: {error}")) from None


def memory_needed(path: Path) -> int:
    """Return about how many bytes of memory the cells of a file take. Raises: as `read_blocks`."""
    if path.suffix.lower() != ".parquet":
        with open_regular(path) as file:
            return _CSV_MEMORY * file.seek(0, io.SEEK_END)
    try:
        with _open_parquet(path) as (_, content, _):
            return _parquet_memory(content.metadata)
    except InvalidInputError as error:
        raise InvalidInputError(printable(f"{path}: {error}")) from None


def _read_csv(path: Path) -> TableCells:
    require_memory(memory_needed(path), "the file", convertible=True)
    return next(_csv_blocks(path, None))


def _csv_blocks(path: Path, rows: int | None) -> Iterator[TableCells]:
    """Yield the rows of a file, all at once if `rows` is None."""
    with open_regular(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            delimiter = _delimiter(text)
            lines = (row for row in csv.reader(text, delimiter=delimiter, strict=True) if row)
            header = next(lines, None)
            if header is None:
                raise InvalidInputError("is empty; needed: a line with the names of the columns, then rows")
            names, before = _column_names(header), 0
            while (body := list(islice(lines, rows))) or not before:
                _require_width(body, len(header), before, delimiter)
                _require_rows(len(body))
                columns = dict(zip(names, zip(*body, strict=True), strict=True))
                yield TableCells(columns=columns, rows=len(body), form=f"divided by {_DELIMITERS[delimiter]}")
                before += len(body)
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"is no UTF-8 text ({error.reason}); save it as UTF-8") from None
        except csv.Error as error:
            raise InvalidInputError(f"cannot be read as CSV divided by {_DELIMITERS[delimiter]}: {error}") from None


def _require_width(body: Sequence[Sequence[str]], width: int, before: int, delimiter: str) -> None:
    """Raise InvalidInputError unless all rows, which follow `before` others, have this many cells."""
    ragged = [f"row {i} has {len(row)}" for i, row in enumerate(body, before + 1) if len(row) != width]
    if ragged:
        raise InvalidInputError(
            f"{len(ragged):,} rows do not have the {width} columns of the first line, divided by "
            f"{_DELIMITERS[delimiter]}: {join_some(ragged)}"
        )


def _delimiter(text: io.TextIOWrapper) -> str:
    """Return the character that divides the first line of the file into most columns; the file is rewound."""
    counts = {}
    for delimiter in _DELIMITERS:
        text.seek(0)
        try:
            counts[delimiter] = len(next(csv.reader(text, delimiter=delimiter, strict=True), []))
        except csv.Error:
            counts[delimiter] = 0
    text.seek(0)
    return max(counts, key=counts.__getitem__)


def _column_names(header: Sequence[str]) -> list[str]:
    """Return the names of the columns. Raises: InvalidInputError if one is missing, twice or no printable text."""
    names = [name.strip() for name in header]
    nameless = [str(i) for i, name in enumerate(names, 1) if not name]
    twice = [repr(name) for name, times in Counter(names).items() if times > 1 and name]
    odd = [repr(name) for name in names if not name.isprintable() or len(name) > 500]
    problems = [f"the columns {join_some(nameless)} have no name"] if nameless else []
    problems += [f"the columns {join_some(twice)} occur twice"] if twice else []
    problems += [f"the columns {join_some(odd)} are not printable or too long"] if odd else []
    if len(names) < 2:
        problems.append(f"there is one column, {names[0][:80]!r}; divided by {' or '.join(_DELIMITERS.values())}?")
    if problems:
        raise InvalidInputError("; ".join([*problems, "needed: at least two columns, each with a name of its own"]))
    return names


def _require_rows(rows: int) -> None:
    if not rows:
        raise InvalidInputError("has no rows; needed: at least one below the names of the columns")


def _read_parquet(path: Path) -> TableCells:
    with _open_parquet(path) as (arrow, content, names):
        require_memory(_parquet_memory(content.metadata), "the file", convertible=True)
        table = content.read()
        return _table_cells(arrow, table, names)


def _parquet_memory(metadata: Any) -> int:
    unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return int(max(_PARQUET_MEMORY * metadata.num_rows * metadata.num_columns, 2 * unpacked))


def _parquet_blocks(path: Path, rows: int) -> Iterator[TableCells]:
    """Yield the rows of a file; a row group at a time is unpacked."""
    with _open_parquet(path) as (arrow, content, names):
        _require_rows(content.metadata.num_rows)
        for batch in content.iter_batches(rows):
            yield _table_cells(arrow, arrow.Table.from_batches([batch]), names)


@contextmanager
def _open_parquet(path: Path) -> Iterator[tuple[Any, Any, list[str]]]:
    """Yield pyarrow, the open file and the names of its columns; what reading it raises is said in words."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidInputError('pyarrow is not installed; run pip install "securesgd[parquet]"') from None
    with open_regular(path) as file:
        try:
            content = parquet.ParquetFile(file)
            yield arrow, content, _column_names(content.schema_arrow.names)
        except (arrow.ArrowException, OSError, OverflowError) as error:
            raise InvalidInputError(f"cannot be read as Parquet: {str(error)[:200]}") from None


def _table_cells(arrow: Any, table: Any, names: Sequence[str]) -> TableCells:
    """Return the cells of an arrow table. Raises: InvalidInputError if it has no rows or odd columns."""
    _require_rows(table.num_rows)
    columns: dict[str, Cells] = {}
    odd = []
    for name, column in zip(names, table.columns, strict=True):
        values = _parquet_cells(arrow, column)
        if values is None:
            odd.append(f"{name} ({column.type})")
        else:
            columns[name] = values
    if odd:
        raise InvalidInputError(f"columns of a kind that is not read: {join_some(odd)}; valid: numbers, bool, text")
    return TableCells(columns=columns, rows=table.num_rows, form="Parquet")


def _parquet_cells(arrow: Any, column: Any) -> Cells | None:
    """Return the cells of a column, None if it holds another kind of values.

    Whole numbers, floats and truth values without gaps are an array; everything else is text, which is correctly
    rounded when it is read as a number.
    """
    types = arrow.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_dictionary(column.type):
        column = column.cast(kind)
    if types.is_floating(kind):
        return np.asarray(column.cast(arrow.float64()).fill_null(np.nan).to_numpy())
    if types.is_integer(kind) or types.is_boolean(kind):
        if not column.null_count:
            return np.asarray(column.to_numpy())
    elif not (types.is_string(kind) or types.is_large_string(kind) or types.is_decimal(kind)):
        return None
    cells: list[str | None] = column.cast(arrow.string()).to_pylist()
    return cells
