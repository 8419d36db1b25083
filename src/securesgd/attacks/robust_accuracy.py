"""Robust accuracy from the rows of an attack: the paper's two accuracies with intervals, and the order they must have.

    certified accuracy  <=  accuracy under attack  <=  accuracy without attack

An accuracy is counted from votes, and votes are samples. An image is *settled* if its votes prove whether the label is
the most probable class; `undecided` is the share that are not, and the most by which an accuracy can be off.
"""

__all__ = ["COLUMNS", "PLACES", "Place", "attack_balance", "attack_summary", "settled_right", "settled_wrong"]

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securesgd.errors import InvalidInputError
from securesgd.theory.class_balance import ClassBalance, class_balance
from securesgd.theory.confidence import wilson_interval
from securesgd.theory.majority import allowed_failures, proven_ahead

COLUMNS = (
    "cell", "attack", "protocol", "norm", "budget", "index", "label", "target", "draws",
    "clean_prediction", "clean_label_votes", "clean_other_votes", "clean_radius", "clean_radius_published",
    "prediction", "label_votes", "other_votes", "radius", "radius_published", "size", "success", "broken_by",
)  # fmt: skip
"""Columns of attacks.csv. `other_votes`: of the best class besides the label; radii are empty without certificates."""
Place = Literal["clean", "attacked"]
PLACES: tuple[Place, ...] = ("clean", "attacked")
"""Where an accuracy is measured: at the image as it was, and as the attack left it."""


def attack_summary(
    rows: Sequence[Mapping[str, Any]],
    *,
    classes: int,
    failure_prob: float = 0.001,
    certificate_failure_prob: float = 0.001,
) -> dict[str, Any]:
    """Return accuracies with 95 % Wilson intervals, and whether the sandwich holds, for the rows of one attack.

    Guarantee: if no certified image is really wrong under the attack, `contradictions` names one with probability at
    most `failure_prob`, besides those whose certificate failed, of which chance explains `allowed`: none of interval
    certificates, whose failure probability is 0.
    """
    if not rows:
        raise InvalidInputError("there are no rows to summarise")
    budget, n = float(rows[0]["budget"]), len(rows)
    clean, attacked = (_right(rows, prefix) for prefix in ("clean_", ""))
    alpha = failure_prob / n / max(1, classes - 1)
    settled = settled_right(rows, "", alpha) | settled_wrong(rows, "", alpha)
    undecided = float(1 - settled.mean())
    summary: dict[str, Any] = {
        "examples": n,
        "budget": budget,
        "clean_accuracy": _share(clean),
        "accuracy": _share(attacked),
        "success": float(np.mean([bool(row["success"]) for row in rows])),
        "undecided": undecided,
    }
    contradictions: list[int] = []
    allowed = 0
    for rule, suffix in (("tight", ""), ("as-published", "_published")):
        for place, prefix, right in (("clean", "clean_", clean), ("attacked", "", attacked)):
            proven = _certified(rows, f"{prefix}radius{suffix}", right, budget)
            if proven is not None:
                summary.setdefault("certified_accuracy", {}).setdefault(rule, {})[place] = _share(proven)
    certified = _certified(rows, "clean_radius", clean, budget)
    if certified is not None:
        broken = certified & settled_wrong(rows, "", alpha)
        contradictions = [int(row["index"]) for row, bad in zip(rows, broken, strict=True) if bad]
        if certificate_failure_prob > 0:
            allowed = allowed_failures(int(certified.sum()), certificate_failure_prob)
    summary["sandwich"] = {
        "holds": len(contradictions) <= allowed and float(attacked.mean() - clean.mean()) <= undecided + 1e-12,
        "contradictions": contradictions,
        "allowed": allowed,
        "in_words": _in_words(summary, contradictions, allowed),
    }
    return summary


def attack_balance(rows: Sequence[Mapping[str, Any]], place: Place, classes: int | None = None) -> ClassBalance:
    """Return what the accuracy without or under attack is worth, class by class.

    An image whose label ties with another class is not right: it counts as an abstention if the label came first.
    """
    prefix = "clean_" if place == "clean" else ""
    right, predictions = _right(rows, prefix), [row[f"{prefix}prediction"] for row in rows]
    labels = [row["label"] for row in rows]
    answers = [
        label if ok else None if answer == label else answer
        for label, ok, answer in zip(labels, right, predictions, strict=True)
    ]
    return class_balance(labels, answers, classes)


def settled_right(rows: Sequence[Mapping[str, Any]], prefix: str, failure_prob: float) -> NDArray[np.bool_]:
    """Return where the votes prove that the label is the most probable class; `prefix` is "clean_" or ""."""
    label, other, exact = _votes(rows, prefix)
    return np.where(exact, label > other, proven_ahead(label, other, failure_prob))


def settled_wrong(rows: Sequence[Mapping[str, Any]], prefix: str, failure_prob: float) -> NDArray[np.bool_]:
    """Return where the votes prove that the label is not the most probable class."""
    label, other, exact = _votes(rows, prefix)
    return np.where(exact, other >= label, proven_ahead(other, label, failure_prob))


def _votes(
    rows: Sequence[Mapping[str, Any]], prefix: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return votes of the label, of the best other class, and where one vote is all there is: a model without noise."""
    label, other, draws = (
        np.array([float(row[name]) for row in rows])
        for name in (f"{prefix}label_votes", f"{prefix}other_votes", "draws")
    )
    return label, other, draws == 1


def _right(rows: Sequence[Mapping[str, Any]], prefix: str) -> NDArray[np.bool_]:
    label, other, _ = _votes(rows, prefix)
    return label > other


def _certified(
    rows: Sequence[Mapping[str, Any]], column: str, right: NDArray[np.bool_], budget: float
) -> NDArray[np.bool_] | None:
    """Return where the prediction is right and its radius reaches the budget, or None without certificates."""
    radii = [row[column] for row in rows]
    if any(radius is None or radius == "" for radius in radii):
        return None
    return right & (np.array([float(radius) for radius in radii]) >= budget)


def _share(hits: NDArray[np.bool_]) -> dict[str, float]:
    lower, upper = wilson_interval(int(hits.sum()), len(hits))
    return {"share": float(hits.mean()), "lower": float(lower), "upper": float(upper)}


def _in_words(summary: dict[str, Any], contradictions: list[int], allowed: int) -> str:
    attacked, clean = summary["accuracy"]["share"], summary["clean_accuracy"]["share"]
    certified = summary.get("certified_accuracy", {}).get("tight", {}).get("clean", {}).get("share")
    chain = f"{attacked:.3f} under attack <= {clean:.3f} clean"
    if certified is not None:
        chain = f"{certified:.3f} certified <= {chain}"
    error = f"; votes leave {summary['undecided']:.3f} undecided"
    if len(contradictions) > allowed:
        return (
            f"{len(contradictions)} certified images are provably wrong under an attack within their radius (chance "
            f"explains {allowed}): the certificates of this run are not true. {chain}{error}"
        )
    if attacked - clean > summary["undecided"] + 1e-12:
        return f"more images are right under attack than without: the measurement is wrong. {chain}{error}"
    return chain + error
