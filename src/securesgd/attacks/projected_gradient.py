"""The one projected-gradient loop that fgsm, ifgsm, mim, madry and apgd are settings of."""

__all__ = ["AdaptiveStep", "BestPoints", "FixedStep", "StepRule", "projected_gradient"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from securesgd.attacks.ball import Ball, per_image
from securesgd.attacks.objective import Objective, ObjectiveValues
from securesgd.attacks.settings import AttackSettings


class StepRule(Protocol):
    """Returns the next points of the examples `rows`, which now stand at `x`."""

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, values: ObjectiveValues) -> Tensor: ...


class FixedStep:
    """Steps of `length` radii along the gradient, or along its decaying sum if `momentum` > 0.

    Reference: I-FGSM, Kurakin et al. 2017; momentum, Dong et al. 2018, Eq. 6 and 7.
    """

    def __init__(self, length: float, momentum: float, like: Tensor) -> None:
        self.length, self.momentum = length, momentum
        self.sum = torch.zeros_like(like) if momentum else None

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, values: ObjectiveValues) -> Tensor:
        """Return the points one step further."""
        assert values.gradient is not None
        direction = values.gradient
        if self.sum is not None:
            mean = direction.flatten(1).abs().mean(1).clamp_min(torch.finfo(direction.dtype).tiny)
            unit = direction / per_image(mean, x)
            direction = self.sum[rows] = self.momentum * self.sum[rows] + unit
        return ball.project(x + ball.step(direction, self.length))


class AdaptiveStep:
    """APGD: starts with steps of two radii and halves them, going back to the best point, where the loss stops rising.

    Reference: Croce & Hein 2020, arXiv:2003.01690v2, Algorithm 1 and Section 3. The loss that is compared is the mean
    over the noise draws.
    """

    _INERTIA, _RISING = 0.75, 0.75  # the paper's alpha and rho

    def __init__(self, steps: int, like: Tensor) -> None:
        self.checkpoints = _checkpoints(steps)
        self.step, self.since = 0, 0
        count = len(like)
        self.length = torch.full((count,), 2.0).to(like)
        self.best, self.best_gradient, self.previous = like.clone(), torch.zeros_like(like), like.clone()
        self.best_loss = torch.full((count,), -torch.inf).to(like)
        self.last_loss = -self.best_loss  # so that the first evaluation is not a rise
        self.rises = torch.zeros(count, device=like.device)
        self.loss_at_checkpoint = self.best_loss.clone()
        self.halved = torch.ones(count, dtype=torch.bool, device=like.device)

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, values: ObjectiveValues) -> Tensor:
        """Return the points one step further, with the step size that the losses so far call for."""
        assert values.gradient is not None
        better = values.loss > self.best_loss[rows]
        self.best[rows[better]], self.best_gradient[rows[better]] = x[better], values.gradient[better]
        self.best_loss[rows[better]] = values.loss[better]
        self.rises[rows] += values.loss > self.last_loss[rows]
        self.last_loss[rows] = values.loss
        gradient = values.gradient
        if self.step in self.checkpoints:
            back = self._halve(rows)
            x = torch.where(per_image(back, x), self.best[rows], x)
            gradient = torch.where(per_image(back, x), self.best_gradient[rows], gradient)
        target = ball.project(x + ball.step(gradient, self.length[rows]))
        if self.step > 0:
            target = x + self._INERTIA * (target - x) + (1 - self._INERTIA) * (x - self.previous[rows])
        self.previous[rows] = x
        self.step, self.since = self.step + 1, self.since + 1
        return ball.project(target)

    def _halve(self, rows: Tensor) -> Tensor:
        """Halve the steps that oscillate or have stopped improving; return which."""
        oscillates = self.rises[rows] < self._RISING * self.since
        stuck = ~self.halved[rows] & (self.loss_at_checkpoint[rows] >= self.best_loss[rows])
        halve = oscillates | stuck
        self.length[rows[halve]] /= 2
        self.halved[rows], self.loss_at_checkpoint[rows] = halve, self.best_loss[rows]
        self.rises[rows], self.since = 0, 0
        return halve


def _checkpoints(steps: int) -> set[int]:
    """Return the steps at which the step size is reconsidered: p₁ = 0.22, gaps shrinking by 0.03, at least 0.06."""
    at, gap, checkpoints = 0.22, 0.22, set()
    while at <= 1:
        checkpoints.add(max(1, round(at * steps)))
        gap = max(gap - 0.03, 0.06)
        at += gap
    return checkpoints


Progress = Callable[[float], None]
"""A function that gets the share of the work that is done."""


@dataclass(kw_only=True, eq=False)
class BestPoints:
    """The best point so far of every example, by evaluations that were not used to choose it."""

    points: Tensor
    margin: Tensor
    """Of the point, as the attack saw it: [-1, 1], above 0 it believes to have won."""
    settled: Tensor
    """Won beyond the chance of the draws; not attacked any more if the attack stops early."""
    flat: Tensor
    """Where the first gradient was exactly zero."""

    @classmethod
    def start(cls, points: Tensor) -> "BestPoints":
        """Return the clean images, before any evaluation."""
        none = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        margin = torch.full((len(points),), -torch.inf).to(points)
        return cls(points=points.clone(), margin=margin, settled=none, flat=none.clone())

    def update(self, rows: Tensor, x: Tensor, values: ObjectiveValues) -> None:
        """Replace the best points of `rows` by `x` where `x` is better."""
        better = values.margin > self.margin[rows]
        self.points[rows[better]], self.margin[rows[better]] = x[better], values.margin[better]
        self.settled[rows] |= values.won


def projected_gradient(
    objective: Objective,
    ball: Ball,
    labels: Tensor,
    settings: AttackSettings,
    generator: torch.Generator,
    *,
    start: Tensor | None = None,
    best_points: BestPoints | None = None,
    on_progress: Progress | None = None,
) -> BestPoints:
    """Return the points reached from `start` (the centre or a random point if None), `restarts` times.

    `best_points` are those of an earlier call: examples settled there are left alone if the attack stops early.
    Without `keep_best` the points are the last ones of the last restart.
    """
    best_points = BestPoints.start(ball.centre) if best_points is None else best_points
    for restart in range(settings.restarts):
        x = _start(ball, settings, generator, restart) if start is None else ball.project(start)
        rule = _rule(settings, x)
        rows = _active_rows(best_points, settings)
        for step in range(settings.steps):
            if not len(rows):
                break
            values = objective.evaluate(x[rows], labels[rows])
            assert values.gradient is not None
            if step == restart == 0:
                best_points.flat[rows] |= ~values.gradient.flatten(1).any(1)
            x[rows] = _update_and_step(best_points, objective, rows, x[rows], labels, values, settings, rule, ball)
            rows = _active_rows(best_points, settings)
            if on_progress is not None:
                on_progress((restart + (step + 1) / settings.steps) / settings.restarts)
        if not settings.keep_best:
            best_points.points = x
        elif len(rows):
            best_points.update(rows, x[rows], objective.confirm(x[rows], labels[rows]))
    return best_points


def _update_and_step(
    best_points: BestPoints,
    objective: Objective,
    rows: Tensor,
    x: Tensor,
    labels: Tensor,
    values: ObjectiveValues,
    settings: AttackSettings,
    rule: StepRule,
    ball: Ball,
) -> Tensor:
    """Update the best points with these values and return the next points.

    Without noise an evaluation is exact. With noise a point that seems won is evaluated again with fresh draws:
    otherwise the luckiest of many evaluations would win, and the attack would stop at points that are not wrong.
    """
    if settings.keep_best or settings.early_stop:
        if not objective.noisy:
            best_points.update(rows, x, values)
        elif settings.early_stop and bool(values.won.any()):
            lucky = values.won.nonzero()[:, 0]
            best_points.update(rows[lucky], x[lucky], objective.confirm(x[lucky], labels[rows[lucky]]))
    return rule(rows, x, ball.take(rows), values)


def _active_rows(best_points: BestPoints, settings: AttackSettings) -> Tensor:
    """Return the examples that are still attacked."""
    return (~best_points.settled | (not settings.early_stop)).nonzero()[:, 0]


def _start(ball: Ball, settings: AttackSettings, generator: torch.Generator, restart: int) -> Tensor:
    """Return random points, or the clean images for the first try of an attack without a random start."""
    return ball.random(generator) if settings.random_start or restart else ball.centre.clone()


def _rule(settings: AttackSettings, like: Tensor) -> StepRule:
    if settings.adaptive:
        return AdaptiveStep(settings.steps, like)
    return FixedStep(settings.step_share / settings.steps, settings.momentum, like)
