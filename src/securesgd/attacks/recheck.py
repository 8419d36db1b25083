"""Stored attack rows are not believed: what a row may state, given the settings of its cell and its votes. No torch.

Votes under attack take the attacked images, which only `attack --keep-images` stores; everything else that a row says
about itself, and everything that a summary says about its rows, is counted again here.
"""

__all__ = ["cell_digest", "require_same_settings", "require_true_cell", "require_true_summary"]

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from securesgd.attacks.robust_accuracy import COLUMNS, attack_summary
from securesgd.errors import DamagedFileError
from securesgd.runtime.run_folder import ATTACK_RECORD, ATTACKS

_ROUNDING = 1e-5  # what single precision may add to the size of a change

_MEASURED = ("prediction", "label_votes", "other_votes", "radius", "radius_published")
"""Columns that are there twice: before the attack, as clean_…, and after it."""

Row = dict[str, Any]


def cell_digest(attack: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return the end of a cell's name: a digest of all that it is measured by."""
    text = json.dumps({"attack": attack, "measured": measured}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def require_same_settings(name: str, entry: dict[str, Any]) -> None:
    """Raise ValueError or KeyError unless an entry has the settings that its name was made of."""
    if not name.endswith(cell_digest(entry["attack"], entry["measured"])):
        raise ValueError(f"cell {name[:80]} has other settings than its name says")


def require_true_cell(name: str, rows: Sequence[Row], entry: dict[str, Any], *, noisy: bool, classes: int) -> None:
    """Pass if the rows of one cell state nothing that their settings and their own votes contradict.

    Guarantee: the rows are those of distinct examples 0, 1, …, with the settings of the entry; votes add up to at most
    the draws, and prediction, success and the count of attacked examples are what the votes say; no change is above the
    budget; in the sound protocol an example that was wrong before the attack is as it was.
    Raises: DamagedFileError naming the example.
    """
    attack, attacked = entry["attack"], 0
    draws = int(entry["measured"]["draws"]) if noisy else 1
    if sorted(row["index"] for row in rows) != list(range(len(rows))):
        raise DamagedFileError(f"{ATTACKS} has an example of {name} twice, or lacks one: it was changed")
    for row in rows:
        place = f"{ATTACKS}, example {row['index']:.0f} of {name}"
        if tuple(row) != COLUMNS:
            raise DamagedFileError(f"{ATTACKS} has other columns than it should")
        stated = {column: row[column] for column in ("attack", "protocol", "norm", "budget", "draws")}
        true = {column: attack[column] for column in ("attack", "protocol", "norm", "budget")} | {"draws": draws}
        if stated != true:
            wrong = next(column for column in true if stated[column] != true[column])
            raise DamagedFileError(f"{place}: {wrong} is {stated[wrong]}, but attacks.json states {true[wrong]}")
        for prefix in ("clean_", ""):
            _require_votes(place, prefix, row, draws, classes)
        if not 0 <= row["size"] <= attack["budget"] * (1 + _ROUNDING) + _ROUNDING:
            raise DamagedFileError(
                f"{place}: the change has size {row['size']:g}, above the budget {attack['budget']:g}"
            )
        if attack["target"] is None:
            success = row["other_votes"] >= row["label_votes"]
        else:
            success = row["target"] != "" and row["prediction"] == row["target"]
        if row["success"] != int(success):
            raise DamagedFileError(f"{place}: success is {row['success']:.0f}, but its votes say {int(success)}")
        is_target = attack["target"] is not None and str(attack["target"]) == f"{row['label']:.0f}"
        right = row["clean_label_votes"] > row["clean_other_votes"]
        is_attacked = attack["protocol"] == "as-published" or (right and not is_target)
        attacked += is_attacked
        same = all(row[column] == row[f"clean_{column}"] for column in _MEASURED)
        if not is_attacked and not (same and row["size"] == 0):
            raise DamagedFileError(f"{place}: it was wrong before the attack, so nothing may have changed, but it has")
    if entry["attacked"] != attacked:
        raise DamagedFileError(
            f"{ATTACK_RECORD} states {entry['attacked']} attacked examples of {name}, rows {attacked}"
        )


def _require_votes(place: str, prefix: str, row: Row, draws: int, classes: int) -> None:
    """Raise DamagedFileError unless votes are whole, within the draws, and give the prediction."""
    label, other, prediction = (row[f"{prefix}{name}"] for name in ("label_votes", "other_votes", "prediction"))
    whole = all(value == int(value) >= 0 for value in (label, other, prediction, row["label"], row["index"]))
    if not whole or label + other > draws or (label + other) + (classes - 2) * other < draws:
        raise DamagedFileError(f"{place}: {label:g} and {other:g} {prefix or 'attacked_'}votes of {draws} cannot be")
    if max(prediction, row["label"]) >= classes:
        raise DamagedFileError(f"{place}: it has a class that the model does not have")
    if (prediction == row["label"] and other > label) or (prediction != row["label"] and label > other):
        raise DamagedFileError(f"{place}: the {prefix}prediction is {prediction:.0f}, but its votes say otherwise")
    for radius in (row[f"{prefix}radius"], row[f"{prefix}radius_published"]):
        if radius != "" and not 0 <= radius < math.inf:
            raise DamagedFileError(f"{place}: a radius is {radius!s}; valid: a number >= 0")


def require_true_summary(
    name: str, rows: Sequence[Row], entry: dict[str, Any], *, noisy: bool, classes: int
) -> dict[str, Any]:
    """Return the summary of a cell, counted again. Raises: DamagedFileError if attacks.json states another."""
    summary, failure_prob = entry["summary"], float(entry["measured"]["failure_prob"])
    counted = [row for row in rows if row["index"] < summary["examples"]]
    if len(counted) != summary["examples"]:
        raise DamagedFileError(
            f"{ATTACK_RECORD} counts {summary['examples']} examples of {name}, {ATTACKS} has {len(counted)} of them"
        )
    true = attack_summary(
        sorted(counted, key=lambda row: float(row["index"])), classes=classes, failure_prob=failure_prob,
        certificate_failure_prob=failure_prob if noisy else 0.0,
    )  # fmt: skip
    if summary != true:
        wrong = next((part for part in true if summary.get(part) != true[part]), "more than its rows")
        raise DamagedFileError(
            f"{ATTACK_RECORD} states {wrong} of {name} as {str(summary.get(wrong))[:120]}, but its rows give "
            f"{str(true.get(wrong))[:120]}"
        )
    return true
