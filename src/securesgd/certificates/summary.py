"""What the certificates of a run say together: certified accuracy at radii, average certified radius, and in words."""

__all__ = [
    "DEFAULT_RADII",
    "certified_accuracy",
    "certified_summary",
    "guarantee_in_words",
    "is_right",
    "record_digest",
    "require_true_radii",
]

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.theory.certificates import ALL_RULES, radii_by_rule
from securesgd.theory.confidence import wilson_interval

DEFAULT_RADII = {
    "l1": (0.25, 0.5, 0.75, 1.0),
    "l2": (0.25, 0.5, 0.75, 1.0),
    "linf": (0.01, 0.02, 0.05, 0.1),
}
_TOLERANCE = 1e-9  # of what another version of a library may round differently
_NORMS = {"l1": "l1", "l2": "l2 (Euclidean)", "linf": "l_inf (every pixel by at most that much)"}


def certified_accuracy(rows: Sequence[dict[str, Any]], rule: str, radius: float) -> dict[str, float]:
    """Return the share of examples that are right *and* proven at `radius`, with its 95 % Wilson interval."""
    hits = sum(is_right(row) and row[f"radius_{rule}"] >= radius for row in rows)
    lower, upper = wilson_interval(hits, len(rows))
    return {"share": hits / len(rows), "lower": float(lower), "upper": float(upper)}


def certified_summary(rows: Sequence[dict[str, Any]], radii: Sequence[float] | None = None) -> dict[str, Any]:
    """Return, for the rows of one norm: accuracy of the smoothed classifier, certified accuracies, and ACR by rule.

    The average certified radius counts wrong and abstained examples as 0.
    """
    rules = [name.removeprefix("radius_") for name in rows[0] if name.startswith("radius_")]
    chosen = list(DEFAULT_RADII[rows[0]["norm"]] if radii is None else radii)
    right = [is_right(row) for row in rows]
    lower, upper = wilson_interval(sum(right), len(rows))
    return {
        "examples": len(rows),
        "accuracy": {"share": sum(right) / len(rows), "lower": float(lower), "upper": float(upper)},
        "abstained": sum(bool(row["abstained"]) for row in rows) / len(rows),
        "draws_mean": float(np.mean([row["draws"] for row in rows])),
        "average_certified_radius": {
            rule: float(np.mean([row[f"radius_{rule}"] * ok for row, ok in zip(rows, right, strict=True)]))
            for rule in rules
        },
        "certified_accuracy": {rule: {f"{r:g}": certified_accuracy(rows, rule, r) for r in chosen} for rule in rules},
    }


def guarantee_in_words(settings: dict[str, Any], sensitivity: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return one paragraph that says what is proven, about what, and how sure that is."""
    tight = summary["certified_accuracy"]["tight"]
    shown = ", ".join(f"{100 * found['share']:.1f} % at {radius}" for radius, found in tight.items())
    failure = settings["failure_prob"]
    return (
        f"For each of {summary['examples']} test examples, with probability at least {1 - failure:g} over the noise of "
        "its certification: if the classifier does not abstain, its prediction is that of the smoothed network, and no "
        "change of the input smaller than the example's radius, measured in "
        f"{_NORMS[settings['norm']]} in the units of the input, makes the smoothed network predict another class. This "
        "is about the weights of this run, with the noise they were trained with, and a first layer whose sensitivity "
        f"is proven to be at most {sensitivity['upper']:.6g} standard deviations per unit of input (and is at least "
        f"{sensitivity['lower']:.6g}). Right and proven (rule tight): {shown}. It says nothing about changes larger "
        "than the radius or about whether the prediction is right; among many examples, a share of at most "
        f"{failure:g} is expected to be wrong. {_noise_in_words(settings.get('seed'))}Radii by the rule as-published "
        "are the paper's printed formula and no guarantee."
    )


def _noise_in_words(seed: int | None) -> str:
    if seed is None:
        return ""
    return (
        f"The noise is that of seed {seed}: this holds for examples that were fixed beforehand, not for ones chosen by "
        "somebody who knows the seed. "
    )


def record_digest(record: dict[str, Any]) -> str:
    """Return what ties a row to its record: a digest of weights, data and settings, as the column `record` has it."""
    about = {name: record[name] for name in ("weights", "data", "settings")}
    return "r" + hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def require_true_radii(rows: Sequence[dict[str, Any]], record: dict[str, Any], table: str) -> None:
    """Pass if the rows of one norm say what their own p, q and rounding give with the record's Δ.

    Guarantee: no example is there twice, and no row has a radius, an abstention or a "yes" that its bounds do not
    prove. The bounds themselves are taken from the row: only new draws can contradict those.
    Raises: DamagedFileError naming the table, the row and what it should say.
    """
    if not rows:
        return
    unknown = {name for row in rows for name in row if name.startswith("radius_")} - {f"radius_{r}" for r in ALL_RULES}
    if unknown:
        raise DamagedFileError(f"{table} has radii by a rule that there is not ({min(unknown)}): it was changed")
    if len({row["index"] for row in rows}) < len(rows):
        raise DamagedFileError(f"{table} has an example twice in {rows[0]['norm']}: it was changed")
    where = [f"{table}, example {row['index']:.0f} in {row['norm']}" for row in rows]
    try:
        p, q, rounding = (np.array([float(row[name]) for row in rows]) for name in ("p_lower", "q_upper", "rounding"))
        upper, published = float(record["sensitivity"]["upper"]), float(record["published_sensitivity"])
        expected = radii_by_rule(p, q, upper, published, rounding)
    except (InvalidInputError, ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{table} has rows without meaning ({error})") from None
    for rule in ALL_RULES:
        stated = np.array([float(row[f"radius_{rule}"]) for row in rows])
        wrong = np.flatnonzero(~np.isclose(stated, expected[rule], rtol=_TOLERANCE, atol=0.0))
        if len(wrong):
            i = int(wrong[0])
            raise DamagedFileError(
                f"{where[i]}: radius_{rule} is {stated[i]:g}, but p_lower, q_upper and Δ give {expected[rule][i]:g}; "
                "the row was changed"
            )
    asked, most = record["settings"]["radius"], record["settings"]["draws"]
    for i, row in enumerate(rows):
        if bool(row["abstained"]) != (expected["tight"][i] == 0) or not 0 <= row["draws"] <= most:
            raise DamagedFileError(f"{where[i]}: abstained or draws do not agree with its bounds; the row was changed")
        if row["answer"] == "yes" and (asked is None or not expected["tight"][i] >= asked):
            raise DamagedFileError(
                f"{where[i]}: the answer is yes, but its bounds do not prove it; the row was changed"
            )


def is_right(row: dict[str, Any]) -> bool:
    """Return whether a certificate is of the true class; an abstention is not."""
    return not row["abstained"] and row["prediction"] == row["label"]
