"""Sanity checks of attacks: signs that an accuracy under attack overstates the robustness of the model.

`probe_attack` runs an attack on a few images under conditions in which it must succeed; `check_rows` compares finished
measurements with each other: budgets of one attack, and the black-box attack with those that follow gradients.

Reference: Carlini et al. 2019, "On Evaluating Adversarial Robustness", arXiv:1902.06705.
"""

__all__ = ["SanityWarning", "check_rows", "probe_attack"]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.craft import craft
from securesgd.attacks.harness import clip_to_budget
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.robust_accuracy import settled_right, settled_wrong
from securesgd.attacks.settings import AttackSettings, uses_gradients
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import vote_counts
from securesgd.runtime.randomness import seeded_generator

Rows = Sequence[Mapping[str, Any]]
_SHARE = 0.01  # of the examples: fewer may be chance
_SETTLED = 1e-4  # failure probability of one image's votes
_PROBED, _PROBE_DRAWS = 64, 200  # examples of a probe, and votes per example
_MUCH = 0.05  # of the probed examples
_AGREEMENT = 0.1  # cosine between two averaged gradients, below which the average is mostly noise


@dataclass(frozen=True, kw_only=True)
class SanityWarning:
    """A reason not to trust the accuracy measured under an attack."""

    name: str
    attack: str
    words: str
    """What was values, what it means, and what to do."""
    evidence: dict[str, float] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the record as JSON holds it."""
        return asdict(self)


def check_rows(cells: Mapping[str, Rows], kinds: Mapping[str, str] | None = None) -> list[SanityWarning]:
    """Return warnings from comparing finished cells (rows by name): budgets of one attack, attacks at one budget.

    `kinds` names what two cells must share, besides the budget, to be compared as one attack at two budgets; if not
    given, cells of the same attack, protocol and norm are.
    """
    kinds = kinds or {name: f"{row['attack']} {row['protocol']}" for name, (row, *_) in cells.items()}
    warnings: list[SanityWarning] = []
    for group in _group(cells, lambda name, row: (kinds[name], row["norm"])):
        for smaller, larger in pairwise(sorted(group, key=lambda rows: float(rows[0]["budget"]))):
            warnings += _compare_budgets(smaller, larger)
    for group in _group(cells, lambda _, row: (row["protocol"], row["norm"], float(row["budget"]))):
        warnings += _compare_black_box(group)
    return warnings


def _group(cells: Mapping[str, Rows], key: Callable[[str, Mapping[str, Any]], tuple[Any, ...]]) -> list[list[Rows]]:
    groups: dict[tuple[Any, ...], list[Rows]] = {}
    for name, rows in cells.items():
        groups.setdefault(key(name, rows[0]), []).append(rows)
    return list(groups.values())


def _compare_budgets(smaller: Rows, larger: Rows) -> list[SanityWarning]:
    """Compare one attack at two budgets. Every point of the smaller ball is in the larger one."""
    small, large = _common_examples(smaller, larger)
    n = len(small)
    if n == 0 or float(smaller[0]["budget"]) == float(larger[0]["budget"]):
        return []
    attack, (low, high) = str(small[0]["attack"]), (float(rows[0]["budget"]) for rows in (small, large))
    lost = int((_wrong(small) & _right(large)).sum())
    wrong = int(_wrong(small).sum()), int(_wrong(large).sum())
    warnings = []
    if lost > 1 + _SHARE * n:
        warnings.append(
            SanityWarning(
                name="stronger-at-smaller-budget",
                attack=attack,
                words=f"{lost} of {n} images fall at budget {low:g} but stand at {high:g}, although every smaller "
                "change is allowed there too: the attack does not search well. Take more steps or restarts, or auto.",
                evidence={"images": lost, "of": n, "smaller": low, "larger": high},
            )
        )
    if high >= 1.5 * low and wrong[0] >= 0.05 * n and wrong[1] <= wrong[0] and wrong[1] < 0.85 * n:
        warnings.append(
            SanityWarning(
                name="larger-budget-does-not-hurt",
                attack=attack,
                words=f"budget {high:g} breaks {wrong[1]} of {n} images, budget {low:g} {wrong[0]}: a larger budget "
                "must break more until all are broken. Gradients may be masked; use square and auto.",
                evidence={"smaller_broken": wrong[0], "larger_broken": wrong[1], "of": n},
            )
        )
    return warnings


def _compare_black_box(group: Sequence[Rows]) -> list[SanityWarning]:
    """Compare what square breaks with what gradients break, at one budget."""
    white_box = [rows for rows in group if uses_gradients(str(rows[0]["attack"]))]
    warnings = []
    for rows in group:
        attack = rows[0]["attack"]
        if attack == "auto":
            only = sum(
                row["broken_by"] == "square" and bool(wrong) for row, wrong in zip(rows, _wrong(rows), strict=True)
            )
            n = len(rows)
        elif attack == "square" and white_box:
            square, *others = _common_examples(rows, *white_box)
            n = len(square)
            stands = np.logical_and.reduce([_right(other) for other in others])
            only = int((_wrong(square) & stands).sum())
        else:
            continue
        if n and only > 1 + _SHARE * n:
            warnings.append(
                SanityWarning(
                    name="black-box-beats-white-box",
                    attack=str(attack),
                    words=f"{only} of {n} images fall to square, which sees only scores, and to no gradient attack: "
                    "gradients do not lead where the model is weak. The gradient attacks' accuracies are too high.",
                    evidence={"images": only, "of": n, "budget": float(rows[0]["budget"])},
                )
            )
    return warnings


def _common_examples(*cells: Rows) -> list[list[Mapping[str, Any]]]:
    """Return the rows of the examples that all cells have, in the same order."""
    tables = [{int(row["index"]): row for row in rows} for rows in cells]
    both = sorted(set.intersection(*(set(table) for table in tables)))
    return [[table[index] for index in both] for table in tables]


def _right(rows: Rows) -> NDArray[np.bool_]:
    return settled_right(rows, "", _SETTLED)


def _wrong(rows: Rows) -> NDArray[np.bool_]:
    return settled_wrong(rows, "", _SETTLED)


def probe_attack(model: nn.Module, inputs: Tensor, labels: Tensor, settings: AttackSettings) -> list[SanityWarning]:
    """Return warnings about this attack on this model, from the first examples the model gets right.

    Gradients that are zero, or differ wildly between draws; twice the steps that break fewer; a budget of the whole
    pixel range that does not break everything. `square` is not probed, and of an attack from outside nothing is assumed
    about gradients.
    """
    if settings.attack == "square":
        return []
    with evaluation_mode(model):
        votes = vote_counts(model, inputs[: 2 * _PROBED], _PROBE_DRAWS, seeded_generator(settings.seed, "probe votes"))
        right = (votes.argmax(1) == labels[: 2 * _PROBED]).nonzero()[:_PROBED, 0]
        if len(right) < 8:
            return []
        x, y = inputs[right], labels[right]
        warnings = _check_gradients(model, x, y, settings) if settings.function is None else []
        if settings.attack != "fgsm" and settings.target is None:
            warnings += _check_effort(model, x, y, settings)
    return warnings


def _check_gradients(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[SanityWarning]:
    device = next(model.parameters(), x).device
    x, labels = x.to(device), labels.to(device)
    generator = seeded_generator(settings.seed, "probe gradients")
    objective = Objective(model, settings.loss, settings.eot, generator, rows=settings.rows)
    one, two = (objective.evaluate(x, labels).gradient for _ in range(2))
    assert one is not None
    assert two is not None
    n, name = len(x), settings.attack
    zero = int((~one.flatten(1).any(1)).sum())
    warnings = []
    if zero > 0.02 * n:
        warnings.append(
            SanityWarning(
                name="zero-gradients",
                attack=name,
                words=f"the gradient is exactly zero at {zero} of {n} images: the loss is flat or saturated there, so "
                "a gradient attack cannot move. Its accuracy is no measure of robustness; use square and auto.",
                evidence={"images": zero, "of": n},
            )
        )
    agreement = float(nn.functional.cosine_similarity(one.flatten(1), two.flatten(1)).median())
    if objective.noisy and zero < n / 2 and agreement < _AGREEMENT:
        warnings.append(
            SanityWarning(
                name="gradients-differ-between-draws",
                attack=name,
                words=f"two gradients, each averaged over {settings.eot} draws, have a median cosine of "
                f"{agreement:.2f}: the average is mostly noise. Raise --eot, to about "
                f"{_enough_draws(agreement, settings.eot)}.",
                evidence={"cosine": agreement, "eot": settings.eot},
            )
        )
    if isinstance(model, NoisyNetwork) and not objective.noisy:
        warnings.append(
            SanityWarning(
                name="noise-free-gradients",
                attack=name,
                words="the attack sees the network without its noise, not the classifier it is measured on: its "
                "accuracy is an upper bound that an attack with --eot 20 may well lower.",
            )
        )
    return warnings


def _check_effort(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[SanityWarning]:
    """Give the attack more: twice the steps should not break fewer, and the whole pixel range must break all."""
    whole = 1.0 if settings.norm == "linf" else math.sqrt(x[0].numel())
    # Without a best point kept, a longer walk may pass by: the paper's own weakness, not a sign of masked gradients.
    best = replace(settings, keep_best=True, early_stop=True, labels="true", queries=1)
    trials = {
        "as set": best,
        "twice the steps": replace(best, steps=2 * best.steps),
        "whole range": replace(best, budget=whole),
    }
    broken = {name: int(_broken(model, x, labels, trial).sum()) for name, trial in trials.items()}
    n, warnings = len(x), []
    if broken["twice the steps"] < broken["as set"] - max(2.0, _MUCH * n):
        warnings.append(
            SanityWarning(
                name="more-steps-do-not-hurt",
                attack=settings.attack,
                words=f"with twice the steps the attack breaks {broken['twice the steps']} of {n} images, with "
                f"{settings.steps} steps {broken['as set']}: it walks past what it has found.",
                evidence={"broken": broken["as set"], "with_twice_the_steps": broken["twice the steps"], "of": n},
            )
        )
    if broken["whole range"] < (1 - _MUCH) * n - 1:
        warnings.append(
            SanityWarning(
                name="whole-range-does-not-break",
                attack=settings.attack,
                words=f"allowed to change every pixel as it likes, the attack still breaks only "
                f"{broken['whole range']} of {n} images, where all must fall: its gradients lead nowhere "
                "(masking), or it has too few steps.",
                evidence={"broken": broken["whole range"], "of": n},
            )
        )
    return warnings


def _broken(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> Tensor:
    images, _ = clip_to_budget(craft(model, x, labels, settings).images, x, settings)
    generator = seeded_generator(settings.seed, "probe votes", 1)
    return vote_counts(model, images, _PROBE_DRAWS, generator).argmax(1) != labels


def _enough_draws(cosine: float, draws: int) -> int:
    """Return the draws at which two averages would agree to a cosine of one half."""
    # Averages of n draws have cosine s/(s + v/n) for signal s and variance v of one draw: solve for s/v, then for n.
    ratio = max(cosine, 1e-3) / (1 - max(cosine, 1e-3)) / draws
    return min(10_000, math.ceil(1 / ratio))
