"""Rows on disk: the CSV and JSON files that code makes and figures are drawn from."""

__all__ = ["read_rows", "write_json", "write_rows"]

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all. A file there that has other columns is not ours: it stays untouched."""
    if not rows:
        raise InvalidInputError(f"no rows to write to {path}")
    columns = list(rows[0])
    if path.exists() and _header(path) != columns:
        raise DamagedFileError(f"{path} exists and is not a table of {', '.join(columns)}; move it away first")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def read_rows(path: Path, *, as_text: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, numbers as floats and empty cells as None; or every cell as its text."""
    if not path.is_file():
        raise DamagedFileError(f"{path} is missing")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or any(None in row or None in row.values() for row in rows):
        raise DamagedFileError(f"{path} is empty or cut short")
    if as_text:
        return rows
    return [{name: _parsed(cell) for name, cell in row.items()} for row in rows]


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write one JSON record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return next(csv.reader(file), [])


def _parsed(cell: str) -> Any:
    if cell == "":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
