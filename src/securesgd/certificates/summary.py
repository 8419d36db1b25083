"""What the certificates of a run say together: certified accuracy at radii, average certified radius, and in words."""

__all__ = [
    "DEFAULT_RADII",
    "certificate_balance",
    "certified_accuracy",
    "certified_summary",
    "guarantee_in_words",
    "interval_guarantee_in_words",
    "is_right",
    "record_in_short",
    "record_in_words",
]

from collections.abc import Sequence
from typing import Any

import numpy as np

from securesgd.certificates.rules import INTERVAL, radius_rules
from securesgd.theory.certificates import rule_caveat
from securesgd.theory.class_balance import ClassBalance, class_balance
from securesgd.theory.confidence import wilson_interval
from securesgd.theory.rounding import probability_of_success

DEFAULT_RADII = {
    "box": (0.25, 0.5, 0.75, 1.0),
    "l1": (0.25, 0.5, 0.75, 1.0),
    "l2": (0.25, 0.5, 0.75, 1.0),
    "linf": (0.01, 0.02, 0.05, 0.1),
}
_NORMS = {"l1": "l1", "l2": "l2 (Euclidean)", "linf": "l_inf (every number by at most that much)"}


def certified_accuracy(rows: Sequence[dict[str, Any]], rule: str, radius: float) -> dict[str, float]:
    """Return the share of examples that are right *and* proven at `radius`, with its 95 % Wilson interval."""
    hits = sum(is_right(row) and row[f"radius_{rule}"] >= radius for row in rows)
    lower, upper = wilson_interval(hits, len(rows))
    return {"share": hits / len(rows), "lower": float(lower), "upper": float(upper)}


def certified_summary(rows: Sequence[dict[str, Any]], radii: Sequence[float] | None = None) -> dict[str, Any]:
    """Return, for the rows of one norm: accuracy of the smoothed classifier, certified accuracies, and ACR by rule.

    The average certified radius counts wrong and abstained examples as 0.
    """
    rules = radius_rules(rows[0])
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


def certificate_balance(rows: Sequence[dict[str, Any]], classes: int | None = None) -> ClassBalance:
    """Return what the accuracy of these certificates is worth, class by class; an abstention is no answer."""
    return class_balance(
        [row["label"] for row in rows], [None if row["abstained"] else row["prediction"] for row in rows], classes
    )


def record_in_words(record: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return what an entry of certificates.json guarantees, by its family. Raises: KeyError if it is not one."""
    settings = record["settings"]
    if settings.get("family") == INTERVAL:
        return interval_guarantee_in_words(settings, summary, without_noise=record["without_noise"] is True)
    return guarantee_in_words(settings, record["sensitivity"], summary)


def record_in_short(record: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return what an entry of certificates.json guarantees as one sentence, which `record_in_words` explains."""
    settings, by_radius = record["settings"], summary["certified_accuracy"]["tight"]
    radius = list(by_radius)[len(by_radius) // 2]
    share = f"{100 * by_radius[radius]['share']:.1f} % are right and proven at {radius}"
    if settings.get("family") != INTERVAL:
        sure = f"with probability at least {probability_of_success(settings['failure_prob'])} each"
        return (
            f"Each of {summary['examples']:,} test predictions, abstentions aside, stays the same under any change "
            f"below its own radius in {settings['norm']}, {sure}; {share}."
        )
    network = " of the network without its noise" if record["without_noise"] is True else ""
    inside = "up to its own radius in linf" if settings["box"] is None else "inside its own share of the box"
    return (
        f"Each of {summary['examples']:,} test predictions{network} stays the same under any change {inside}, for "
        f"certain; {share}."
    )


def guarantee_in_words(settings: dict[str, Any], sensitivity: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return one paragraph that says what is proven, about what, and how sure that is."""
    by_rule = summary["certified_accuracy"]
    shares = ", ".join(f"{100 * share['share']:.1f} % at {radius}" for radius, share in by_rule["tight"].items())
    failure = settings["failure_prob"]
    return (
        f"For each of {summary['examples']} test examples, with probability at least "
        f"{probability_of_success(failure)} over the noise of its certification: if the classifier does "
        "not abstain, its prediction is that of the smoothed network, and no change of the "
        "input smaller than the example's radius, measured in "
        f"{_NORMS[settings['norm']]} in the units of the input, makes the smoothed network predict another class. This "
        "is about the weights of this run, with the noise they were trained with, and a noisy layer whose sensitivity "
        f"is proven to be at most {sensitivity['upper']:.6g} standard deviations per unit of input (and is at least "
        f"{sensitivity['lower']:.6g}). Right and proven (rule tight): {shares}. It says nothing about changes larger "
        "than the radius or about whether the prediction is right; among many examples, a share of at most "
        f"{failure:g} is expected to be wrong. {_noise_in_words(settings.get('seed'))}{_caveats_in_words(by_rule)}"
    )


def interval_guarantee_in_words(settings: dict[str, Any], summary: dict[str, Any], *, without_noise: bool) -> str:
    """Return one paragraph that says what interval bounds prove, and about which network."""
    by_radius = summary["certified_accuracy"]["tight"]
    shares = ", ".join(f"{100 * share['share']:.1f} % at {radius}" for radius, share in by_radius.items())
    if settings["box"] is None:
        change = "no change of the input by at most the example's radius in l_inf (every number by at most that much)"
    else:
        change = (
            "no change of the input inside the example's share (its radius) of the box, which lets the columns be off "
            f"by {', '.join(settings.get('box_in_units') or settings['box'])},"
        )
    if settings["input_range"] is not None:
        low, high = settings["input_range"]
        change += f", with all numbers inside {low:g}..{high:g},"
    about = (
        "This is about the network of this run without its noise: it says nothing about the votes of the smoothed "
        "classifier, which are certified by smoothing. "
        if without_noise
        else ""
    )
    return (
        f"For each of {summary['examples']} test examples, for certain: {change} makes the network predict another "
        "class. The proof is by interval bounds: it is deterministic, draws no noise, has no failure probability, and "
        "holds for any input. It is about the network as it is deployed, in the precision of its weights, in whatever "
        f"order its sums are computed. {about}Right and proven (rule tight): {shares}. It says nothing about larger "
        "changes or about whether the prediction is right."
    )


def _noise_in_words(seed: int | None) -> str:
    if seed is None:
        return ""
    return (
        f"The noise is that of seed {seed}: this holds for examples that were fixed beforehand, not for ones chosen by "
        "somebody who knows the seed. "
    )


def _caveats_in_words(rules: Sequence[str]) -> str:
    return " ".join(f"Radii by the rule {rule} are {rule_caveat(rule)}." for rule in rules if rule_caveat(rule))


def is_right(row: dict[str, Any]) -> bool:
    """Return whether a certificate is of the true class; an abstention is not."""
    return not row["abstained"] and row["prediction"] == row["label"]
