"""What the counts of an audit prove: two attackers, two theorems, one probability to be wrong. No torch."""

__all__ = ["BOXES", "GUESSED", "box_bounds", "guesses_of", "largest_bound"]

from collections.abc import Mapping
from typing import Any

from securesgd.audit.claim import Claim, sampled_epsilon_bound
from securesgd.theory.audit import simple_epsilon_bound

BOXES = ("white_box", "black_box")
GUESSED = {"white_box": 0.05, "black_box": 0.2}
"""Shares of the canaries that are guessed, fixed here and for all runs; docs/how-to/audit.md says how."""
_FAILURE_SHARES = {
    ("white_box", "tradeoff"): 0.8, ("white_box", "simple"): 0.1,
    ("black_box", "tradeoff"): 0.05, ("black_box", "simple"): 0.05,
}  # fmt: skip
"""How the four bounds share the failure probability, so that all hold at once."""


def guesses_of(box: str, canaries: int) -> int:
    """Return how many of so many canaries an attacker guesses."""
    return max(1, round(GUESSED[box] * canaries))


def box_bounds(box: str, canaries: int, right: int, claim: Claim, failure_prob: float) -> dict[str, Any]:
    """Return the counts of one attacker and its two bounds; `failure_prob` is that of all four bounds together."""
    guesses = guesses_of(box, canaries)
    simple, tradeoff = (failure_prob * _FAILURE_SHARES[box, name] for name in ("simple", "tradeoff"))
    return {
        "canaries": canaries,
        "guesses": guesses,
        "right": right,
        "simple": simple_epsilon_bound(canaries, guesses, right, claim.delta, simple),
        "tradeoff": sampled_epsilon_bound(canaries, guesses, right, claim, tradeoff),
    }


def largest_bound(boxes: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the largest of the four bounds."""
    return max(float(boxes[box][name]) for box in BOXES for name in ("simple", "tradeoff"))
