"""The one projected-gradient loop that fgsm, ifgsm, mim, madry and apgd are settings of."""

__all__ = ["Climb", "projected_gradient"]

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from securesgd.attacks.ball import Ball
from securesgd.attacks.objective import Look, Objective
from securesgd.attacks.settings import AttackSettings
from securesgd.attacks.step_rules import AdaptiveStep, FixedStep, StepRule

Progress = Callable[[float], None]
"""Gets the share that is done."""


@dataclass(kw_only=True, eq=False)
class Climb:
    """The best point found so far of every example, by looks that were not used to choose it."""

    points: Tensor
    margin: Tensor
    """Of the point, as the attack saw it: [-1, 1], above 0 it believes to have won."""
    settled: Tensor
    """Won beyond the chance of the draws; not attacked any more if the attack stops early."""
    flat: Tensor
    """Where the first gradient was exactly zero."""

    @classmethod
    def begin(cls, points: Tensor) -> "Climb":
        """Return the state before anything was seen."""
        nothing = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        margin = torch.full((len(points),), -torch.inf).to(points)
        return cls(points=points.clone(), margin=margin, settled=nothing, flat=nothing.clone())

    def note(self, rows: Tensor, x: Tensor, seen: Look) -> None:
        """Keep points that are better than the best so far."""
        better = seen.margin > self.margin[rows]
        self.points[rows[better]], self.margin[rows[better]] = x[better], seen.margin[better]
        self.settled[rows] |= seen.won


def projected_gradient(
    objective: Objective,
    ball: Ball,
    labels: Tensor,
    settings: AttackSettings,
    generator: torch.Generator,
    *,
    start: Tensor | None = None,
    climb: Climb | None = None,
    on_progress: Progress | None = None,
) -> Climb:
    """Return the points reached from `start` (the centre or a random point if None), `restarts` times.

    `climb` goes on from what another call has found: examples settled there are left alone if the attack stops early.
    Without `keep_best` the points are the last ones of the last restart.
    """
    climb = Climb.begin(ball.centre) if climb is None else climb
    for restart in range(settings.restarts):
        x = _start(ball, settings, generator, restart) if start is None else ball.project(start)
        rule = _rule(settings, x)
        rows = _open(climb, settings)
        for step in range(settings.steps):
            if not len(rows):
                break
            seen = objective.look(x[rows], labels[rows])
            assert seen.gradient is not None
            if step == restart == 0:
                climb.flat[rows] |= ~seen.gradient.flatten(1).any(1)
            x[rows] = _noted(climb, objective, rows, x[rows], labels, seen, settings, rule, ball)
            rows = _open(climb, settings)
            if on_progress is not None:
                on_progress((restart + (step + 1) / settings.steps) / settings.restarts)
        if not settings.keep_best:
            climb.points = x
        elif len(rows):
            climb.note(rows, x[rows], objective.confirm(x[rows], labels[rows]))
    return climb


def _noted(
    climb: Climb,
    objective: Objective,
    rows: Tensor,
    x: Tensor,
    labels: Tensor,
    seen: Look,
    settings: AttackSettings,
    rule: StepRule,
    ball: Ball,
) -> Tensor:
    """Note what this look found and return the next points.

    Without noise a look is the truth. With noise a point that looks won is looked at again with fresh draws: of many
    looks the luckiest would win, and the attack would stop at points that are not wrong.
    """
    if settings.keep_best or settings.early_stop:
        if not objective.noisy:
            climb.note(rows, x, seen)
        elif settings.early_stop and bool(seen.won.any()):
            lucky = seen.won.nonzero()[:, 0]
            climb.note(rows[lucky], x[lucky], objective.confirm(x[lucky], labels[rows[lucky]]))
    return rule(rows, x, ball.take(rows), seen)


def _open(climb: Climb, settings: AttackSettings) -> Tensor:
    """Return the examples that are still attacked."""
    return (~climb.settled | (not settings.early_stop)).nonzero()[:, 0]


def _start(ball: Ball, settings: AttackSettings, generator: torch.Generator, restart: int) -> Tensor:
    """Return random points, or the clean images for the first try of an attack without a random start."""
    return ball.random(generator) if settings.random_start or restart else ball.centre.clone()


def _rule(settings: AttackSettings, like: Tensor) -> StepRule:
    if settings.adaptive:
        return AdaptiveStep(settings.steps, like)
    return FixedStep(settings.step_share / settings.steps, settings.momentum, like)
