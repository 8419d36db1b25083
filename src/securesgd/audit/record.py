"""What an audit found: the content of audit.json, its verdict in words, and its rows for a report. No torch."""

__all__ = ["AUDIT", "audit_in_words", "audit_summary", "read_audit"]

from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError
from securesgd.runtime.storage import read_json
from securesgd.theory.rounding import round_down

AUDIT = "audit.json"
FORMAT = 1
_BOXES = {"white_box": "white box: every released gradient", "black_box": "black box: the trained model"}
_THEOREMS = {"tradeoff": "trade-off curve (f-DP)", "simple": "(epsilon, delta) alone"}


def audit_in_words(record: dict[str, Any]) -> str:
    """Return the verdict of an audit as a sentence."""
    claim, bound = record["claim"], record["epsilon_lower_bound"]
    words = f"claimed epsilon {claim['epsilon']:.4g} at delta {claim['delta']:g}"
    if record["holds"]:
        return f"The audit proves epsilon >= {round_down(bound, digits=3):g} and does not contradict the {words}."
    return f"The audit contradicts the {words}: it proves epsilon >= {round_down(bound, digits=3):g}."


def audit_summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each bound: attacker, theorem, counts, lower bound, claim, and whether the claim holds."""
    claim = record["claim"]["epsilon"]
    return [
        {
            "attacker": words,
            "theorem": theorem,
            "canaries": record[box]["canaries"],
            "guesses": record[box]["guesses"],
            "right": record[box]["right"],
            "epsilon_lower_bound": record[box][name],
            "claimed_epsilon": claim,
            "holds": record[box][name] <= claim,
        }
        for box, words in _BOXES.items()
        for name, theorem in _THEOREMS.items()
    ]


def read_audit(folder: Path) -> dict[str, Any] | None:
    """Return the audit of a run folder, or None if there is none. Raises: DamagedFileError if it is not one."""
    path = folder / AUDIT
    if not path.exists():
        return None
    record = read_json(path)
    try:
        known = record["format"] == FORMAT
        audit_summary(record), audit_in_words(record)
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise DamagedFileError(f"{path} is damaged, or of another version; audit the run again")
    return dict(record)
