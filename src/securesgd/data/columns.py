"""One column of a table: its public facts, and the features that its cells become."""

__all__ = ["BadCells", "Cells", "Column", "category_codes", "refuse_cells", "scaled_numbers", "validate_names"]

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.problems import MOST_SHOWN
from securesgd.errors import InvalidInputError, nearest, printable
from securesgd.validate import validate_text

Cells = Sequence[str | None] | NDArray[Any]
"""The cells of a column: texts, with None where there is none, or an array of numbers or truth values."""

MOST_NAMES = 10_000
"""Categories of a column, classes of a table."""
_FACTS = ("minimum", "maximum", "categories", "ignore")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: with bounds, with categories, or ignored if it has neither.

    Raises: InvalidInputError unless the bounds are finite with minimum < maximum, or there are at least two different
    categories, and not both.
    """

    name: str
    minimum: float | None = None
    maximum: float | None = None
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate_text("the name of a column", self.name)
        if self.categories:
            validate_names(f"categories of {self.name!r}", self.categories)
        if self.minimum is None and self.maximum is None:
            return
        low, high = _bound(self.minimum), _bound(self.maximum)
        if not low < high or not math.isfinite(high - low) or self.categories:
            raise InvalidInputError(
                f"column {self.name!r} has minimum {low:.17g}, maximum {high:.17g} and {len(self.categories)} "
                "categories; valid: finite numbers with minimum < maximum, or categories alone"
            )
        object.__setattr__(self, "minimum", low)
        object.__setattr__(self, "maximum", high)

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers between public bounds."""
        return self.minimum is not None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column becomes; none if it is ignored."""
        return (self.name,) if self.numeric else tuple(f"{self.name}={category}" for category in self.categories)

    @staticmethod
    def from_table(name: str, table: dict[str, Any]) -> "Column | None":
        """Return the column of a table [columns.NAME]; None if it lacks facts.

        Raises: InvalidInputError for an unknown key, or values that are not valid or exclude each other.
        """
        unknown = [key for key in table if key not in _FACTS]
        if unknown:
            raise InvalidInputError(f"column {name!r}: unknown key {unknown[0]!r}: {nearest(str(unknown[0]), _FACTS)}")
        ignore = table.get("ignore", False)
        if not isinstance(ignore, bool) or (ignore and len(table) > 1):
            raise InvalidInputError(
                f"column {name!r} has ignore and {len(table) - 1} others; valid: ignore = true alone"
            )
        if ignore:
            return Column(name=name)
        if "categories" in table:
            categories = validate_names(f"categories of {name!r}", table["categories"])
            return Column(name=name, minimum=table.get("minimum"), maximum=table.get("maximum"), categories=categories)
        if "minimum" not in table or "maximum" not in table:
            return None
        return Column(name=name, minimum=table["minimum"], maximum=table["maximum"])


def _bound(value: Any) -> float:
    """Return a bound as a float, NaN if it is no finite number."""
    try:
        return float(value) if isinstance(value, int | float) and value is not True and value is not False else math.nan
    except OverflowError:
        return math.nan


def validate_names(what: str, values: Any) -> tuple[str, ...]:
    """Return categories or classes as texts; whole numbers become text, too.

    Raises: InvalidInputError unless there are 2 to 10,000, all different, without blanks around them.
    """
    valid = f"valid: a list of 2 to {MOST_NAMES:,} different texts or whole numbers"
    if not isinstance(values, list | tuple):
        raise InvalidInputError(f"{what} is a {type(values).__name__}; {valid}")
    if not 2 <= len(values) <= MOST_NAMES:
        raise InvalidInputError(f"{what} has {len(values):,} values; {valid}")
    names = []
    for value in values:
        whole = type(value) is int and abs(value) < 2**63
        name = validate_text(what, str(value) if whole else value)
        if name != name.strip():
            raise InvalidInputError(f"{what} holds {name!r}; valid: without blanks around it, as cells are read")
        names.append(name)
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InvalidInputError(f"{what} holds {name!r} {times} times; {valid}")
    return tuple(names)


@dataclass(frozen=True, kw_only=True, eq=False)
class BadCells:
    """Cells of one column that cannot be used: their rows, counted from 0, what the first hold, and what is valid."""

    column: str
    rows: NDArray[np.int64]
    values: tuple[str, ...]
    valid: str

    def __str__(self) -> str:
        cells = [f"row {row + 1} {value}" for row, value in zip(self.rows.tolist(), self.values, strict=False)]
        more = f" and {len(self.rows) - len(cells):,} more" if len(self.rows) > len(cells) else ""
        return f"column {self.column!r}: {', '.join(cells)}{more}; valid: {self.valid}"


def refuse_cells(bad: Sequence[BadCells], place: str) -> None:
    """Raise InvalidInputError with the first ten bad cells and their number; return if there are none."""
    if not bad:
        return
    cells = sorted(
        (row, f"row {row + 1} {b.column} {value} (valid: {b.valid})")
        for b in bad
        for row, value in zip(b.rows.tolist(), b.values, strict=False)
    )
    count = sum(len(b.rows) for b in bad)
    more = f", and {count - MOST_SHOWN:,} more" if count > MOST_SHOWN else ""
    shown = ", ".join(text for _, text in cells[:MOST_SHOWN])
    raise InvalidInputError(
        printable(f"{place}{count:,} cells cannot be used (the row after the header is 1): {shown}{more}")
    )


def scaled_numbers(column: Column, cells: Cells) -> tuple[NDArray[np.float32], int, BadCells | None]:
    """Return the feature of a numeric column, how many values were clipped to the bounds, and the bad cells."""
    if column.minimum is None or column.maximum is None:
        raise InvalidInputError(f"column {column.name!r} has no bounds; needed: minimum and maximum")
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        numbers = cells.astype(np.float64)
    else:
        numbers = np.fromiter(map(_number, cells), np.float64, len(cells))
    usable = np.isfinite(numbers)
    inside = np.clip(np.where(usable, numbers, column.minimum), column.minimum, column.maximum)
    clipped = int(np.count_nonzero(usable & (inside != numbers)))
    scaled = ((inside - column.minimum) / (column.maximum - column.minimum)).astype(np.float32)
    return scaled, clipped, _bad_cells(column.name, cells, ~usable, "a finite number like 1.5")


def category_codes(name: str, cells: Cells, categories: Sequence[str]) -> tuple[NDArray[np.int64], BadCells | None]:
    """Return the place of each cell among the categories, -1 for the bad cells, which are returned, too."""
    places = {category: place for place, category in enumerate(categories)}
    texts: Sequence[str | None]
    if not isinstance(cells, np.ndarray):
        texts = cells
    elif cells.dtype.kind in "iu":
        texts = [str(value) for value in cells.tolist()]
    elif cells.dtype.kind == "b":
        texts = ["true" if value else "false" for value in cells.tolist()]
    else:  # 1.0 is not the text 1
        texts = [None] * len(cells)
    codes = np.fromiter((places.get(text.strip(), -1) if text else -1 for text in texts), np.int64, len(texts))
    valid = ", ".join(categories) if len(categories) <= MOST_SHOWN else f"one of {len(categories):,} names"
    return codes, _bad_cells(name, cells, codes < 0, valid)


def _number(cell: str | None) -> float:
    """Return the number in a cell, NaN if there is none; float() alone would also take 1_000 and other scripts."""
    if cell is None or "_" in cell or not cell.isascii():
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _bad_cells(name: str, cells: Cells, bad: NDArray[np.bool_], valid: str) -> BadCells | None:
    rows = np.flatnonzero(bad)
    if not rows.size:
        return None
    values = tuple(_quote(cells[row]) for row in rows[:MOST_SHOWN].tolist())
    return BadCells(column=name, rows=rows, values=values, valid=valid)


def _quote(cell: Any) -> str:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "is empty"
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:37] + "...")
