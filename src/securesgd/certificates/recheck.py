"""Stored certificates are not believed: what a row may state, given its own bounds and the record of its norm."""

__all__ = ["record_digest", "require_attainable_bounds", "require_true_intervals", "require_true_radii"]

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from securesgd.certificates.rules import INTERVAL_RULES, MAX_DRAWS, radius_rules, recorded_rules
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.theory import clopper_pearson_lower, clopper_pearson_upper
from securesgd.theory.certificates import BUILT_IN_RULES, CERTIFICATE_RULES, radii_by_rule
from securesgd.validate import Array, validate_count

_TOLERANCE = 1e-9  # of what another version of a library may round differently


def record_digest(record: dict[str, Any]) -> str:
    """Return what ties a row to its record: a digest of weights, data and settings, as the column `record` has it."""
    content = {name: record[name] for name in ("weights", "data", "settings")}
    return "r" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def require_true_radii(rows: Sequence[dict[str, Any]], record: dict[str, Any], table: str) -> None:
    """Pass if the rows of one norm state what their own p, q and rounding give with the record's Δ.

    Guarantee: no example occurs twice, no row has radii by a rule that the record does not name, and no row has a
    radius (by a rule of the table), an abstention or a "yes" that its bounds do not prove. The bounds themselves are
    taken from the row: only new draws can contradict those. Radii by recorded rules from outside are not rechecked.
    Raises: DamagedFileError naming the table, the row and what it should state.
    """
    if not rows:
        return
    recorded, stated_rules = recorded_rules(record), radius_rules(rows[0])
    unrecorded = {name for row in rows for name in radius_rules(row)} - set(recorded)
    if unrecorded:
        raise DamagedFileError(
            f"{table} has radii by a rule that certificates.json does not record (radius_{min(unrecorded)}): it was "
            "changed"
        )
    if not set(BUILT_IN_RULES) <= set(stated_rules):
        raise DamagedFileError(f"{table} has no radii by some of the rules {', '.join(BUILT_IN_RULES)}: it was changed")
    _require_each_once(rows, table, str(rows[0]["norm"]))
    known = {name: CERTIFICATE_RULES[name] for name in stated_rules if name in CERTIFICATE_RULES}
    try:
        p, q, rounding = (_column(rows, name) for name in ("p_lower", "q_upper", "rounding"))
        upper, published = float(record["sensitivity"]["upper"]), float(record["published_sensitivity"])
        expected = radii_by_rule(p, q, upper, published, rounding, known)
        stated = {name: _column(rows, f"radius_{name}") for name in stated_rules}
    except (InvalidInputError, ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{table} has rows without meaning ({error})") from None
    for name, radii in stated.items():
        wrong = _first(
            ~np.isclose(radii, expected[name], rtol=_TOLERANCE, atol=0.0) if name in known else ~(radii >= 0)
        )
        if wrong is not None:
            valid = f"p_lower, q_upper and Δ give {expected[name][wrong]:g}" if name in known else "a radius is >= 0"
            raise DamagedFileError(
                f"{_place(table, rows[wrong])}: radius_{name} is {radii[wrong]:g}, but {valid}; the row was changed"
            )
    target, most_draws = record["settings"]["radius"], record["settings"]["draws"]
    for row, radius in zip(rows, expected["tight"], strict=True):
        if bool(row["abstained"]) != (radius == 0) or not 0 <= row["draws"] <= most_draws:
            raise DamagedFileError(
                f"{_place(table, row)}: abstained or draws do not agree with its bounds; the row was changed"
            )
        if row["answer"] == "yes" and (target is None or not radius >= target):
            raise DamagedFileError(
                f"{_place(table, row)}: the answer is yes, but its bounds do not prove it; the row was changed"
            )


def require_attainable_bounds(rows: Sequence[dict[str, Any]], record: dict[str, Any], table: str, classes: int) -> None:
    """Pass if some votes give the bounds p and q of every row, by the draws and the failure probability of the record.

    Guarantee: with votes of a fixed number of draws, p and q are Clopper–Pearson bounds of two whole numbers of votes
    that add up to at most the draws. With soft scores, or drawing that may stop early, p is at most what unanimous
    votes of the row's draws prove. Whether these were the votes takes the network.
    Raises: DamagedFileError naming the row.
    """
    settings = record["settings"]
    failure_prob, most = float(settings["failure_prob"]), validate_count("draws", settings["draws"], 1, MAX_DRAWS)
    fixed = settings["scores"] == "votes" and settings["radius"] is None and settings["tolerance"] is None
    votes = np.arange(most + 1)
    together, alone = (
        np.asarray(clopper_pearson_lower(votes, most, alpha)) for alpha in (failure_prob, failure_prob / 2)
    )
    others = np.asarray(clopper_pearson_upper(votes, most, failure_prob / 2 / (classes - 1)))
    for row in rows:
        p, q, draws = float(row["p_lower"]), float(row["q_upper"]), float(row["draws"])
        if not (0 <= p <= 1 and 0 <= q <= 1 and p <= failure_prob ** (1 / max(1.0, draws)) * (1 + _TOLERANCE)):
            raise DamagedFileError(f"{_place(table, row)}: no {draws:g} draws give p_lower {p:g}; the row was changed")
        if not fixed:
            continue
        of_rest = draws == most and abs(q - (1 - p)) <= _TOLERANCE and _nearest_vote(together, p) is not None
        top, other = _nearest_vote(alone, p), _nearest_vote(others, q)
        of_each = draws == most and top is not None and other is not None and top + other <= most
        if not of_rest and not of_each:
            raise DamagedFileError(
                f"{_place(table, row)}: no votes of {most} draws give p_lower {p:g}, q_upper {q:g}; the row was changed"
            )


def _nearest_vote(bounds: Array, value: float) -> int | None:
    """Return the number of votes whose bound is `value`, up to rounding; None if there is none."""
    place = min(int(np.searchsorted(bounds, value * (1 - _TOLERANCE))), len(bounds) - 1)
    return place if abs(float(bounds[place]) - value) <= _TOLERANCE * max(value, 1e-9) else None


def require_true_intervals(rows: Sequence[dict[str, Any]], record: dict[str, Any], table: str) -> None:
    """Pass if the rows of the interval family agree with themselves and with their record.

    Guarantee: no example occurs twice, radii are by the rules of the family, `tight` is the larger of the two others,
    nothing abstains or has draws, and an answer is that of the radius. Whether a radius is proven takes the network:
    `certify` proves each of them anew before it adds rows.
    Raises: DamagedFileError naming the table, the row and what it should state.
    """
    recorded_rules(record)
    _require_each_once(rows, table, "the interval family")
    target, norm = record["settings"]["radius"], "linf" if record["settings"]["box"] is None else "box"
    for row in rows:
        place = f"{table}, example {row['index']:.0f} by intervals"
        if set(radius_rules(row)) != set(INTERVAL_RULES) or row["norm"] != norm:
            raise DamagedFileError(f"{place}: its norm or its rules are not those of its record; the row was changed")
        tight, by_boxes, by_lines = (row[f"radius_{rule}"] for rule in INTERVAL_RULES)
        if not all(isinstance(radius, float) and 0 <= radius < np.inf for radius in (tight, by_boxes, by_lines)):
            raise DamagedFileError(f"{place}: a radius is not a number >= 0; the row was changed")
        if target is not None and not {by_boxes, by_lines} <= {0.0, float(target)}:
            raise DamagedFileError(f"{place}: a radius is neither 0 nor {target:g}, which was asked; it was changed")
        larger = max(by_boxes, by_lines)
        if tight != larger:
            raise DamagedFileError(
                f"{place}: radius_tight is {tight:g}, but its bounds give {larger:g}; the row was changed"
            )
        if row["abstained"] or row["draws"] or (row["answer"] or "") not in _fitting_answers(target, tight):
            raise DamagedFileError(
                f"{place}: abstained, draws or answer do not agree with its radius; the row was changed"
            )


def _fitting_answers(target: float | None, tight: float) -> tuple[str, ...]:
    """Return what may be answered to "is a radius of at least `target` proven?" by a row with this radius."""
    if target is None:
        return ("",)
    if target == 0:  # a proof of the class alone is a yes that no radius shows
        return ("yes", "no")
    return ("yes",) if tight >= target else ("no",)


def _require_each_once(rows: Sequence[dict[str, Any]], table: str, where: str) -> None:
    if len({row["index"] for row in rows}) < len(rows):
        raise DamagedFileError(f"{table} has an example twice in {where}: it was changed")


def _column(rows: Sequence[dict[str, Any]], name: str) -> Array:
    return np.array([float(row[name]) for row in rows])


def _first(wrong: Iterable[bool]) -> int | None:
    """Return the place of the first True."""
    return next((place for place, is_wrong in enumerate(wrong) if is_wrong), None)


def _place(table: str, row: dict[str, Any]) -> str:
    return f"{table}, example {row['index']:.0f} in {row['norm']}"
