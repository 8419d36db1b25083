"""Sanity checks of attacks: signs, in rows and in the model itself, that a measured accuracy should not be believed."""

__all__ = ["Suspicion", "probe", "suspicions_of_rows"]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.craft import craft
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.robust_accuracy import settled_right, settled_wrong
from securesgd.attacks.settings import AttackSettings
from securesgd.attacks.streams import stream
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import vote_counts

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


_EXAMPLES = 64
_DRAWS = 200
_MUCH = 0.05  # of the probed examples
_AGREEMENT = 0.1  # cosine between two averaged gradients, below which the average is mostly noise


def probe(model: nn.Module, inputs: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    """Return what speaks against believing this attack on this model, from the first examples it gets right.

    Gradients that are zero, or differ wildly between draws; twice the steps that break fewer; a budget of the whole
    pixel range that does not break everything. A gradient-free attack has nothing to probe.
    """
    if settings.attack == "square":
        return []
    with evaluation_mode(model):
        votes = vote_counts(model, inputs[: 2 * _EXAMPLES], _DRAWS, stream(settings.seed, "probe votes"))
        right = (votes.argmax(1) == labels[: 2 * _EXAMPLES]).nonzero()[:_EXAMPLES, 0]
        if len(right) < 8:
            return []
        x, y = inputs[right], labels[right]
        found = _gradients(model, x, y, settings)
        if settings.attack != "fgsm" and settings.target is None:
            found += _effort(model, x, y, settings)
    return found


def _gradients(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    device = next(model.parameters(), x).device
    x, labels = x.to(device), labels.to(device)
    generator = stream(settings.seed, "probe gradients")
    objective = Objective(model, settings.loss, settings.eot, generator, rows=settings.rows)
    one, two = (objective.look(x, labels).gradient for _ in range(2))
    assert one is not None
    assert two is not None
    n, name = len(x), settings.attack
    zero = int((~one.flatten(1).any(1)).sum())
    found = []
    if zero > 0.02 * n:
        found.append(
            Suspicion(
                name="zero-gradients",
                attack=name,
                words=f"the gradient is exactly zero at {zero} of {n} images: the loss is flat or saturated there, so "
                "a gradient attack cannot move. Its accuracy is no measure of robustness; believe square and auto.",
                evidence={"images": zero, "of": n},
            )
        )
    agreement = float(nn.functional.cosine_similarity(one.flatten(1), two.flatten(1)).median())
    if objective.noisy and zero < n / 2 and agreement < _AGREEMENT:
        found.append(
            Suspicion(
                name="gradients-differ-between-draws",
                attack=name,
                words=f"two gradients, each averaged over {settings.eot} draws, have a median cosine of "
                f"{agreement:.2f}: the average is mostly noise. Raise --eot, to about "
                f"{_enough_draws(agreement, settings.eot)}.",
                evidence={"cosine": agreement, "eot": settings.eot},
            )
        )
    if isinstance(model, NoisyNetwork) and not objective.noisy:
        found.append(
            Suspicion(
                name="noise-free-gradients",
                attack=name,
                words="the attack sees the network without its noise, not the classifier it is measured on: its "
                "accuracy is an upper bound that an attack with --eot 20 may well lower.",
            )
        )
    return found


def _effort(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    """Spend more: twice the steps should not break fewer, and the whole pixel range must break all."""
    whole = 1.0 if settings.norm == "linf" else math.sqrt(x[0].numel())
    # Without a best point kept, a longer walk may pass by: the paper's own weakness, not a sign of masked gradients.
    best = replace(settings, keep_best=True, early_stop=True, labels="true", queries=1)
    asked = {
        "as asked": best,
        "twice the steps": replace(best, steps=2 * best.steps),
        "whole range": replace(best, budget=whole),
    }
    broken = {name: int(_broken(model, x, labels, one).sum()) for name, one in asked.items()}
    n, found = len(x), []
    if broken["twice the steps"] < broken["as asked"] - max(2.0, _MUCH * n):
        found.append(
            Suspicion(
                name="more-steps-do-not-hurt",
                attack=settings.attack,
                words=f"with twice the steps the attack breaks {broken['twice the steps']} of {n} images, with "
                f"{settings.steps} steps {broken['as asked']}: it walks past what it has found.",
                evidence={"broken": broken["as asked"], "with_twice_the_steps": broken["twice the steps"], "of": n},
            )
        )
    if broken["whole range"] < (1 - _MUCH) * n - 1:
        found.append(
            Suspicion(
                name="whole-range-does-not-break",
                attack=settings.attack,
                words=f"allowed to change every pixel as it likes, the attack still breaks only "
                f"{broken['whole range']} of {n} images, where all must fall: its gradients lead nowhere "
                "(masking), or it has too few steps.",
                evidence={"broken": broken["whole range"], "of": n},
            )
        )
    return found


def _broken(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> Tensor:
    images = craft(model, x, labels, settings).images
    return vote_counts(model, images, _DRAWS, stream(settings.seed, "probe votes", 1)).argmax(1) != labels


def _enough_draws(cosine: float, draws: int) -> int:
    """Return the draws at which two averages would agree to a cosine of one half."""
    # Averages of n draws have cosine s/(s + v/n) for signal s and variance v of one draw: solve for s/v, then for n.
    ratio = max(cosine, 1e-3) / (1 - max(cosine, 1e-3)) / draws
    return min(10_000, math.ceil(1 / ratio))
