"""An attack on one input: what the strongest search finds just inside the proven radius, and how far outside it wins.

All budgets are climbed at once, a ball each around the same input.
"""

__all__ = ["AttackedInput", "attack_input"]

import secrets
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from securesgd.attacks.ball import Ball
from securesgd.attacks.falsify import climb_from_starts, shrunk
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.rules import INTERVAL
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.run import Prediction, Run
from securesgd.runtime.randomness import seeded_generator

_TIMES = (1.02, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 25.0)
"""The budgets outside, in radii."""
_SMALLEST = 0.005
"""The radius that budgets are multiples of where none is proven, as a share of the input range."""
_STEPS, _EOT = 20, 20


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedInput:
    """A point that an attack found, and what the model says there."""

    values: Tensor
    budget: float
    times_radius: float | None
    """The budget in radii; None if no radius was proven."""
    prediction: Prediction
    changed: bool
    """Whether the model proves another class here, with fresh noise."""


def attack_input(
    run: Run, x: Tensor, prediction: Prediction, *, norm: str, family: str, schema: Schema | None, draws: int
) -> tuple[AttackedInput | None, AttackedInput]:
    """Return the worst point found inside the proven radius (None if nothing is proven), and the nearest that wins.

    Of a table only the numeric columns move. If the attack wins at no budget, the second point is that of the largest.
    Assumes: `prediction` is what the run says about `x`.
    Raises: InvalidInputError if the model is not certain enough of any class, or for a table in another norm than linf.
    """
    if prediction.label is None:
        raise InvalidInputError("the model abstained, so there is no class to attack; give an input it is sure of")
    if schema is not None and norm != "linf":
        raise InvalidInputError(f"the radii of this table are in {norm}; valid for attacks on a table: linf")
    low, high = run.input_range or (None, None)
    span = 1.0 if low is None or high is None else high - low
    proven = prediction.radius > 0
    base = prediction.radius if proven else _SMALLEST * span
    inside = shrunk(np.array([base]), norm, x.numel()) if proven else torch.zeros(0, dtype=torch.float64)
    budgets = torch.cat([inside, base * torch.tensor(_TIMES, dtype=torch.float64)])
    points = _climb(run, x, prediction.label, budgets, norm, family, schema)
    predictions = run.predict(points, draws=draws)
    assert isinstance(predictions, list)
    found = [
        AttackedInput(
            values=point, budget=float(budget), times_radius=float(budget) / base if proven else None, prediction=at,
            changed=at.label is not None and at.label != prediction.label,
        )
        for point, budget, at in zip(points, budgets, predictions, strict=True)
    ]  # fmt: skip
    outside = found[len(inside) :]
    return found[0] if proven else None, next((point for point in outside if point.changed), outside[-1])


def _climb(run: Run, x: Tensor, label: int, budgets: Tensor, norm: str, family: str, schema: Schema | None) -> Tensor:
    """Return the best point of the attack in each ball."""
    centre = x.expand(len(budgets), *x.shape).contiguous()
    widths = None
    if schema is not None:
        moves = [column.numeric for column in schema.used_columns for _ in column.features]
        widths = torch.tensor(moves).to(centre).reshape(x.shape).expand(centre.shape)
    device = next(run.model.parameters(), centre).device
    ball = Ball(
        centre=centre.to(device),
        radius=budgets.to(centre).to(device),
        norm=norm,
        box=run.input_range,
        widths=None if widths is None else widths.to(device),
    )
    seed = secrets.randbits(32)
    eot = 0 if family == INTERVAL else _EOT
    settings = AttackSettings(attack="apgd-ce", budget=1.0, steps=_STEPS, restarts=1, adaptive=True, eot=eot)
    with evaluation_mode(run.model):
        objective = Objective(run.model, "smoothed", eot, seeded_generator(seed, "served attack"))
        labels = torch.full((len(budgets),), label, device=device)
        return climb_from_starts(objective, ball, labels, settings, 1, seed, None, None).points.cpu()
