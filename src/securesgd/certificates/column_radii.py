"""Certificates of a table in the units of its columns: how far each may move, and boxes given in those units.

A network that was trained on a table sees features in [0, 1], scaled by the public bounds of the schema, and radii are
proven for those. No torch.
"""

__all__ = [
    "column_radii",
    "column_radii_table",
    "middle_radii",
    "require_all_features",
    "scaled_box",
    "table_schema",
    "write_column_radii",
]

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from securesgd.certificates.rules import INTERVAL, record_key
from securesgd.certificates.summary import is_right
from securesgd.data.schema import Schema
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import write_whole

Row = dict[str, Any]
_SMALLEST_PERCENTAGE = 1
_SLACK, _SHARE_SLACK, _SMALLEST_SHARE = 2.0**-13, 2.0**-9, 1 / 128
"""By how much a scaled box is wider for what scaling rounds: absolute, relative; for shares of the box from here."""


def table_schema(record: dict[str, Any]) -> Schema | None:
    """Return the schema in the content of model.json; None if the run was not trained on a table.

    Raises: DamagedFileError if there is something else.
    """
    preprocessing = record.get("preprocessing")
    if not isinstance(preprocessing, dict) or preprocessing.get("kind") != "table":
        return None
    try:
        return Schema.from_json(preprocessing.get("schema"))
    except InvalidInputError as error:
        raise DamagedFileError(f"model.json is damaged: {error}") from None


def column_radii(row: Row, schema: Schema) -> dict[str, float]:
    """Return how far each numeric column of a certified example may move in its own unit; 0 where nothing is proven.

    Guarantee: `Schema.column_radii` of the example's radius by the rule `tight`: for l_inf and intervals all columns at
    once, for l2 and l1 one of them alone; categories stay.
    """
    return schema.column_radii(0.0 if row["abstained"] else float(row["radius_tight"]), row["norm"])


def middle_radii(rows: Sequence[Row], schema: Schema) -> dict[str, float]:
    """Return by column what half of the right predictions are proven for, at least: the lower median of their radii."""
    right = sorted(float(row["radius_tight"]) for row in rows if is_right(row))
    middle = right[(len(right) - 1) // 2] if right else 0.0
    return schema.column_radii(middle, rows[0]["norm"])


def write_column_radii(path: Path, rows: Sequence[Row], schema: Schema) -> None:
    """Write `column_radii_table` to a file."""
    write_whole(path, column_radii_table(rows, schema).encode())


def column_radii_table(rows: Sequence[Row], schema: Schema) -> str:
    """Return a table with a row for each certificate: its example, and how far each column may move.

    Certificates for a box of the user's own have radii that are shares of it, and are left out.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["family", "norm", "index", *schema.column_radii(0.0, "linf")])
    for row in rows:
        if row["norm"] != "box":
            family = INTERVAL if record_key(row) == INTERVAL else "smoothing"
            table.writerow([family, row["norm"], int(row["index"]), *map(repr, column_radii(row, schema).values())])
    return text.getvalue()


def require_all_features(input_range: tuple[float, float] | None) -> None:
    """Raise InvalidInputError unless every row of a table is inside a range of inputs.

    An interval proof speaks of changes inside the range. Columns may move by their radius from wherever they are, and
    their features are anywhere from 0 to 1.
    """
    if input_range is not None and not (input_range[0] <= 0 and input_range[1] >= 1):
        low, high = input_range
        raise InvalidInputError(f"input_range is {low:g},{high:g}; valid for a table, whose features are 0 to 1: 0,1")


def scaled_box(box: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Return a box for the features from one for the columns in their own units, wider by what scaling rounds.

    Guarantee: rows that differ by at most a share of `box`, a share from 0.01 on, have features that differ by at most
    that share of the result.
    `box` has a text for each used column: 5 for a change by 5; 10% for a tenth of the value, only if the minimum of the
    column is 0, and at least 1%; 0 for a column that stays, as categories must.
    Raises: InvalidInputError if it has not.
    """
    columns = schema.used_columns
    if len(box) != len(columns):
        names = ", ".join(column.name for column in columns[:5])
        raise InvalidInputError(f"box has {len(box)} numbers; valid: {len(columns)}, for the columns {names}, …")
    widths: list[str] = []
    for column, text in zip(columns, box, strict=True):
        if column.minimum is None or column.maximum is None:
            if text.strip() != "0":
                raise InvalidInputError(f"box has {text!r} for {column.name!r}, which is a category; valid: 0")
            widths += ["0"] * len(column.features)
            continue
        share = text.strip().endswith("%")
        if share and column.minimum != 0:
            raise InvalidInputError(
                f"box has {text!r} for {column.name!r}, whose minimum is {column.minimum:g}; valid: a number, as a "
                "share needs a minimum of 0"
            )
        width = _number(text.strip().removesuffix("%"), column.name)
        if share and 0 < width < _SMALLEST_PERCENTAGE:
            raise InvalidInputError(f"box has {text!r} for {column.name!r}; valid: 0, or a percentage from 1% on")
        if share:  # float32 rounds by 2^-24 of the value
            scaled = width * (1 + _SHARE_SLACK)
        else:  # two roundings of at most 1 to float32, and of the values as written to float64
            ulp = math.ulp(max(abs(column.minimum), abs(column.maximum)))
            range_ = column.maximum - column.minimum
            scaled = width / range_ + _SLACK + ulp / range_ / _SMALLEST_SHARE
        widths.append(f"{math.nextafter(scaled, math.inf)!r}{'%' * share}" if width else "0")
    return tuple(widths)


def _number(text: str, name: str) -> float:
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not (math.isfinite(width) and width >= 0):
        raise InvalidInputError(f"box has {text!r} for {name!r}; valid: a number >= 0 such as 5, or 10%")
    return width
