"""`securesgd certify --check`: attack the certificates themselves, and say whether one is provably wrong.

Joins the certificates of a run with the search of `attacks/ball_search.py`. The rule `tight` has the largest radii of
all sound rules, so its balls contain theirs; the printed formula of the paper is searched beside it, to see how often
it is broken.
"""

__all__ = ["check_run"]

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from securesgd.attacks.ball_search import search
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.storage import write_json
from securesgd.theory.majority import allowed_failures

RULES = ("tight", "as-published")


def check_run(
    folder: Path,
    model: NoisyNetwork,
    inputs: Tensor,
    rows: Sequence[dict[str, Any]],
    *,
    certificate_failure_prob: float,
    direction: np.ndarray | None = None,
    restarts: int = 2,
    steps: int = 20,
    eot: int = 50,
    seed: int = 0,
    failure_prob: float = 1e-3,
    on_progress: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Search the certified balls of `rows` (of one norm, as in certificates.csv); write and return what was found.

    Guarantee: if the certificates are what they claim, `sound` is True with probability >= 1 − failure_prob, besides
    the failures that the certificates' own probability explains (`allowed`; counted as if examples failed
    independently, though some share their noise: an alarm too many is the safer side).
    """
    if not rows:
        raise InvalidInputError(f"{folder} has no certificates to check; run securesgd certify first")
    norm = str(rows[0]["norm"])
    chosen = [row for row in rows if not row["abstained"]]
    effort = {"restarts": restarts, "steps": steps, "eot": eot, "seed": seed}
    result: dict[str, Any] = {"norm": norm, "examples": len(rows), **effort, "rules": {}}
    for rule in RULES if chosen else ():
        found = search(
            model,
            inputs[[int(row["index"]) for row in chosen]],
            [int(row["prediction"]) for row in chosen],
            [float(row[f"radius_{rule}"]) for row in chosen],
            norm,
            restarts=restarts,
            steps=steps,
            eot=eot,
            failure_prob=failure_prob,
            seed=seed,
            direction=direction,
            on_progress=None if on_progress is None else lambda share, rule=rule: on_progress(rule, share),  # type: ignore[misc]
        )
        broken = [int(row["index"]) for row, wrong in zip(chosen, found.flipped, strict=True) if wrong]
        result["rules"][rule] = {
            "searched": int(found.searched.sum()),
            "near": int(found.tested.sum()),
            "violations": len(broken),
            "broken": broken,
            "in_words": found.in_words,
        }
    tight = result["rules"].get("tight", {"searched": 0, "violations": 0})
    result["allowed"] = allowed_failures(tight["searched"], certificate_failure_prob)
    result["sound"] = tight["violations"] <= result["allowed"]
    write_json(folder / f"check-{norm}.json", result)
    return result
