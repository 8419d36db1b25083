"""When the numbers of attacks should not be believed: each sign with what it means, in words.

An attack that fails proves nothing. It may be the attack that is weak, and some defences are only good at making
gradients useless (Athalye, Carlini & Wagner 2018; Carlini et al. 2019, "On Evaluating Adversarial Robustness", Section
5). These are the signs that show in finished rows; `probes.py` looks at the model itself.
"""

__all__ = ["Suspicion", "suspicions_of_rows"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.report.attacked import settled_right, settled_wrong

Rows = Sequence[Mapping[str, Any]]
_SHARE = 0.01  # of the examples: fewer may be chance
_SETTLED = 1e-4  # failure probability of one image's votes


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A reason not to believe an attack's number."""

    name: str
    attack: str
    words: str
    """What was seen, what it means, and what to do."""
    evidence: dict[str, float] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the record as JSON holds it."""
        return asdict(self)


def suspicions_of_rows(cells: Mapping[str, Rows], kinds: Mapping[str, str] | None = None) -> list[Suspicion]:
    """Return what finished cells (rows by name) say against each other: budgets of an attack, attacks at a budget.

    `kinds` names what two cells must share, besides the budget, to be compared as one attack at two budgets; if not
    given, cells of the same attack, protocol and norm are.
    """
    kinds = kinds or {name: f"{row['attack']} {row['protocol']}" for name, (row, *_) in cells.items()}
    found: list[Suspicion] = []
    for group in _grouped(cells, lambda name, row: (kinds[name], row["norm"])):
        for smaller, larger in pairwise(sorted(group, key=lambda rows: float(rows[0]["budget"]))):
            found += _budgets(smaller, larger)
    for group in _grouped(cells, lambda _, row: (row["protocol"], row["norm"], float(row["budget"]))):
        found += _black_box(group)
    return found


def _grouped(cells: Mapping[str, Rows], key: Callable[[str, Mapping[str, Any]], tuple[Any, ...]]) -> list[list[Rows]]:
    groups: dict[tuple[Any, ...], list[Rows]] = {}
    for name, rows in cells.items():
        groups.setdefault(key(name, rows[0]), []).append(rows)
    return list(groups.values())


def _budgets(smaller: Rows, larger: Rows) -> list[Suspicion]:
    """Compare one attack at two budgets. Every point of the smaller ball is in the larger one."""
    small, large = _shared(smaller, larger)
    n = len(small)
    if n == 0 or float(smaller[0]["budget"]) == float(larger[0]["budget"]):
        return []
    attack, (low, high) = str(small[0]["attack"]), (float(rows[0]["budget"]) for rows in (small, large))
    lost = int((_wrong(small) & _right(large)).sum())
    wrong = int(_wrong(small).sum()), int(_wrong(large).sum())
    found = []
    if lost > 1 + _SHARE * n:
        found.append(
            Suspicion(
                name="stronger-at-smaller-budget",
                attack=attack,
                words=f"{lost} of {n} images fall at budget {low:g} but stand at {high:g}, although every smaller "
                "change is allowed there too: the attack does not search well. Take more steps or restarts, or auto.",
                evidence={"images": lost, "of": n, "smaller": low, "larger": high},
            )
        )
    if high >= 1.5 * low and wrong[0] >= 0.05 * n and wrong[1] <= wrong[0] and wrong[1] < 0.85 * n:
        found.append(
            Suspicion(
                name="larger-budget-does-not-hurt",
                attack=attack,
                words=f"budget {high:g} breaks {wrong[1]} of {n} images, budget {low:g} {wrong[0]}: a larger budget "
                "must break more until all are broken. Gradients may be masked; believe square and auto.",
                evidence={"smaller_broken": wrong[0], "larger_broken": wrong[1], "of": n},
            )
        )
    return found


def _black_box(group: Sequence[Rows]) -> list[Suspicion]:
    """Compare what square breaks with what gradients break, at one budget."""
    white = [rows for rows in group if rows[0]["attack"] not in ("square", "auto")]
    found = []
    for rows in group:
        attack = rows[0]["attack"]
        if attack == "auto":
            only = sum(
                row["broken_by"] == "square" and bool(wrong) for row, wrong in zip(rows, _wrong(rows), strict=True)
            )
            n = len(rows)
        elif attack == "square" and white:
            mine, *others = _shared(rows, *white)
            n = len(mine)
            stands = np.logical_and.reduce([_right(other) for other in others])
            only = int((_wrong(mine) & stands).sum())
        else:
            continue
        if n and only > 1 + _SHARE * n:
            found.append(
                Suspicion(
                    name="black-box-beats-white-box",
                    attack=str(attack),
                    words=f"{only} of {n} images fall to square, which sees only scores, and to no gradient attack: "
                    "gradients do not lead where the model is weak. The gradient attacks' accuracies are too high.",
                    evidence={"images": only, "of": n, "budget": float(rows[0]["budget"])},
                )
            )
    return found


def _shared(*cells: Rows) -> list[list[Mapping[str, Any]]]:
    """Return the rows of the examples that all cells have, in the same order."""
    tables = [{int(row["index"]): row for row in rows} for rows in cells]
    both = sorted(set.intersection(*(set(table) for table in tables)))
    return [[table[index] for index in both] for table in tables]


def _right(rows: Rows) -> NDArray[np.bool_]:
    return settled_right(rows, "", _SETTLED)


def _wrong(rows: Rows) -> NDArray[np.bool_]:
    return settled_wrong(rows, "", _SETTLED)
