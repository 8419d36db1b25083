"""The public facts about a table: bounds, categories and classes, and the features that they make of its rows.

A schema is written by a person, from what is known without the data: the smallest and the largest value of a private
column, or the list of the categories that occur in it, would be a release of their own.
"""

__all__ = ["EncodedRows", "Schema"]

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.columns import (
    BadCells,
    Cells,
    Column,
    category_codes,
    refuse_cells,
    scaled_numbers,
    validate_names,
)
from securesgd.data.problems import join_some
from securesgd.errors import InvalidInputError, nearest, printable
from securesgd.theory import NORMS
from securesgd.validate import validate_text

MAX_FEATURES = 100_000
_KEYS = ("target", "classes", "columns")
_NEEDED = "[columns.NAME] with minimum and maximum, or categories, or ignore = true"
_PUBLIC = "these are public facts for you to state: reading them off private data would be a release of its own"
_ROUNDING = Fraction(1, 2**23)


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedRows:
    """The rows of a table as features in [0, 1] and class numbers.

    targets  None if the column of the class was not there
    clipped  how many values of each numeric column were outside its bounds
    bad      cells that cannot be used; the features of their rows mean nothing
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | None
    clipped: dict[str, int]
    bad: tuple[BadCells, ...]


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table in the order of the features, the column of the class, and the classes in their order.

    Raises: InvalidInputError if names are not texts or occur twice, or there are no features or too many.
    """

    target: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        validate_text("target", self.target)
        object.__setattr__(self, "classes", validate_names("classes", self.classes))
        names = [column.name for column in self.columns]
        if self.target in names:
            raise InvalidInputError(f"{self.target!r} is the target; its values are in classes, not in [columns]")
        if len(set(names)) < len(names):
            raise InvalidInputError("a column is in the schema twice; valid: once")
        count = sum(len(column.features) for column in self.columns)
        if not 0 < count <= MAX_FEATURES:
            raise InvalidInputError(f"the schema has {count:,} features; valid: 1 to {MAX_FEATURES:,}")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features: the column, or column=category."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def used_columns(self) -> tuple[Column, ...]:
        """The columns that are not ignored."""
        return tuple(column for column in self.columns if column.features)

    def encode(self, columns: Mapping[str, Cells]) -> NDArray[np.float32]:
        """Return the features of all rows, in [0, 1]; the column of the class need not be there.

        A number becomes (x - minimum)/(maximum - minimum), computed in float64 and rounded to float32, after it was
        clipped to its bounds. A category becomes a 1 among zeros. Each row is encoded from itself alone.
        Raises: InvalidInputError if a cell is missing, not a number or none of the categories; all are counted.
        """
        encoded = self.encode_rows({name: cells for name, cells in columns.items() if name != self.target})
        refuse_cells(encoded.bad, "")
        return encoded.inputs

    def encode_rows(self, columns: Mapping[str, Cells]) -> EncodedRows:
        """Return features and classes, and which cells cannot be used.

        Raises: InvalidInputError if a column is missing or the columns differ in length.
        """
        self.require_columns(list(columns), need_target=False)
        lengths = {len(columns[column.name]) for column in self.used_columns}
        if len(lengths) > 1:
            raise InvalidInputError(f"the columns have {min(lengths)} to {max(lengths)} rows; valid: all as many")
        inputs = np.zeros((lengths.pop(), len(self.features)), np.float32)
        clipped: dict[str, int] = {}
        bad: list[BadCells | None] = []
        start = 0
        for column in self.used_columns:
            cells = columns[column.name]
            if column.numeric:
                inputs[:, start], clipped[column.name], wrong = scaled_numbers(column, cells)
            else:
                codes, wrong = category_codes(column.name, cells, column.categories)
                rows = np.flatnonzero(codes >= 0)
                inputs[rows, start + codes[rows]] = 1
            bad.append(wrong)
            start += len(column.features)
        targets = None
        if self.target in columns:
            targets, wrong = category_codes(self.target, columns[self.target], self.classes)
            bad.append(wrong)
        return EncodedRows(inputs=inputs, targets=targets, clipped=clipped, bad=tuple(b for b in bad if b is not None))

    def require_columns(self, header: Sequence[str], *, need_target: bool = True) -> None:
        """Raise InvalidInputError unless the columns of a table are those of the schema; ignored ones may be absent."""
        names = [column.name for column in self.used_columns] + [self.target] * need_target
        known = {column.name for column in self.columns} | {self.target}
        present = set(header)
        lacking = [name for name in names if name not in present]
        unknown = [name for name in header if name not in known]
        problems = [f"the table lacks the columns {join_some(lacking)}"] if lacking else []
        problems += [f"the schema lacks the columns {join_some(unknown)}"] if unknown else []
        if problems:
            raise InvalidInputError(printable("; ".join([*problems, "valid: the same columns in both"])))

    def column_radii(self, radius: float, norm: str) -> dict[str, float]:
        """Return how far each numeric column may be moved, in its own unit, within a radius proven for the features.

        Guarantee: if a value moves by at most its number, its feature moves by less than `radius`; 0 says that it may
        not move. So a proof for l_inf holds when all numeric columns move at once, and one for l2 or l1 when one of
        them moves alone. Categories stay. A value that leaves its bounds is clipped back, which moves its feature less.
        Reason: let t be the value as written, x its float64, M the larger bound in size. Within the bounds
        |x - t| <= ulp(M)/2, and clipping treats both alike since bounds are float64. From x, the difference to the
        minimum, the range and their quotient are each rounded once, relative 2^-53 (or exact, below the normal
        numbers), so the quotient, at most 1, is off by less than 2^-51; float32 adds at most 2^-25. For two values
        these are ulp(M)/range + 2^-24 + 2^-50 in all; ulp(M)/range + 2^-23 is subtracted. The arithmetic here is
        exact, and its result is rounded down.
        Raises: InvalidInputError if the radius is negative or NaN, or the norm unknown.
        """
        if norm not in NORMS:
            raise InvalidInputError(f"unknown norm {norm!r}: {nearest(str(norm), NORMS)}")
        if not radius >= 0:
            raise InvalidInputError(f"radius is {radius!r}; valid: a number >= 0")
        scaled = Fraction(min(float(radius), 1.0)) - _ROUNDING  # no feature can move by more than 1
        radii = {}
        for column in self.columns:
            if column.minimum is not None and column.maximum is not None:
                largest = max(abs(column.minimum), abs(column.maximum))
                width = Fraction(column.maximum) - Fraction(column.minimum)
                radii[column.name] = _float_below(scaled * width - Fraction(math.ulp(largest)))
        return radii

    def json(self) -> dict[str, Any]:
        """Return the schema as JSON that `from_json` reads back."""
        columns: list[dict[str, Any]] = []
        for column in self.columns:
            if column.numeric:
                columns.append({"name": column.name, "minimum": column.minimum, "maximum": column.maximum})
            elif column.categories:
                columns.append({"name": column.name, "categories": list(column.categories)})
            else:
                columns.append({"name": column.name, "ignore": True})
        return {"target": self.target, "classes": list(self.classes), "columns": columns}

    @staticmethod
    def from_json(record: Any) -> "Schema":
        """Return the schema that `json` wrote. Raises: InvalidInputError for anything else."""
        rows = record.get("columns") if isinstance(record, dict) else None
        if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows):
            raise InvalidInputError("the schema is damaged; needed: target, classes and a list of columns with names")
        tables = {row["name"]: {key: row[key] for key in row if key != "name"} for row in rows}
        if len(tables) < len(rows):
            raise InvalidInputError("the schema is damaged: a column is in it twice")
        return Schema.from_tables({**record, "columns": tables})

    @staticmethod
    def from_tables(
        content: Mapping[str, Any], *, target: str | None = None, header: Sequence[str] | None = None
    ) -> "Schema":
        """Return the schema in the content of a schema.toml; `header` has the columns of the table it is for.

        Raises: InvalidInputError with everything at once: columns that lack bounds or categories or are not valid,
        columns of only one of table and schema, missing classes.
        """
        unknown = [key for key in content if key not in _KEYS]
        if unknown:
            raise InvalidInputError(f"unknown key {unknown[0]!r}: {nearest(str(unknown[0]), _KEYS)}")
        stated = content.get("target", target)
        if stated is None:
            raise InvalidInputError('the column of the class is not known; write target = "NAME" or give --target NAME')
        name = validate_text("target", stated)
        if target is not None and name != target:
            raise InvalidInputError(f"target is {target!r}, in the schema {name!r}; valid: the same, or only one")
        tables = content.get("columns", {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise InvalidInputError(f"columns is no table of tables; needed: {_NEEDED}")
        columns, problems = [], []
        lacking = [key for key in header or () if key not in tables and key != name]
        for key, table in tables.items():
            try:
                column = Column.from_table(key, table)
            except InvalidInputError as error:
                problems.append(str(error))
                continue
            if column is None:
                lacking.append(key)
            else:
                columns.append(column)
        needed = [f"{_NEEDED} for {join_some(lacking)}"] if lacking else []
        needed += [] if "classes" in content else [f"classes = [...] for the values of {name}"]
        if needed:
            problems.append(f"needed: {', and '.join(needed)}; {_PUBLIC}")
        present = set(header or ())
        absent = [column.name for column in columns if column.features] + [name]
        absent = [] if header is None else [column for column in absent if column not in present]
        if absent:
            problems.append(f"the table lacks the columns {join_some(absent)}")
        if problems:
            raise InvalidInputError(printable(join_some(problems, "; ")))
        return Schema(target=name, classes=validate_names("classes", content["classes"]), columns=tuple(columns))


def _float_below(value: Fraction) -> float:
    """Return the largest float that is not above `value`, 0 if that is negative."""
    if value <= 0:
        return 0.0
    nearest_float = float(value)
    return nearest_float if Fraction(nearest_float) <= value else math.nextafter(nearest_float, 0.0)
