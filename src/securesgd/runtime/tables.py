"""CSV tables on disk: the rows that certify, attack and reproduce write and that figures are drawn from."""

__all__ = ["read_rows", "write_rows"]

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular, read_bytes, write_whole

MAX_TABLE = 256 << 20
"""Bytes: a million rows of attacks.csv."""
_MAX_HEADER = 1 << 16


def write_rows(path: Path, rows: Sequence[dict[str, Any]], *, replaces: Sequence[str] = ()) -> None:
    """Write rows as CSV, whole or not at all.

    `replaces` are the columns of an earlier table of ours, which may be replaced although the new one has others.
    Raises: InvalidInputError if there are no rows; DamagedFileError if a file with other columns is in the way, which
    stays untouched.
    """
    if not rows:
        raise InvalidInputError(f"no rows to write to {path}")
    columns = list(rows[0])
    if path.exists() and _header(path) not in (columns, list(replaces)):
        raise DamagedFileError(f"{path} exists and is not a table of {', '.join(columns)}; move it away first")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode("utf-8"))


def read_rows(path: Path, *, as_text: bool = False, numbers: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, numbers as floats and empty cells as None; or every cell as its text.

    Raises: DamagedFileError, with the file's name, if it is not a table, or a cell of a column in `numbers` is not a
    finite number.
    """
    try:
        table = csv.DictReader(io.StringIO(read_bytes(path, MAX_TABLE).decode("utf-8"), newline=""))
        columns, rows = list(table.fieldnames or ()), list(table)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path} is not a CSV table ({error})") from None
    if not rows or any(None in row or None in row.values() for row in rows):
        raise DamagedFileError(f"{path} is empty or cut short")
    if len(set(columns)) < len(columns) or not set(numbers) <= set(columns):
        raise DamagedFileError(f"{path} has other columns than it should, or one of them twice")
    if as_text:
        return rows
    parsed = [{name: _parse_cell(cell) for name, cell in row.items()} for row in rows]
    for place, row in enumerate(parsed, start=1):
        for name in numbers:
            if not (isinstance(row[name], float) and math.isfinite(row[name])):
                cell = rows[place - 1][name][:40]
                raise DamagedFileError(f"{path}, row {place}: {name} is {cell!r}; valid: a finite number")
    return parsed


def _header(path: Path) -> list[str]:
    try:
        with open_regular(path) as file:
            line = file.readline(_MAX_HEADER)
        return next(csv.reader([line.decode("utf-8")]), [])
    except (csv.Error, UnicodeDecodeError, DamagedFileError):
        return []


def _parse_cell(cell: str) -> Any:
    if cell == "":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
