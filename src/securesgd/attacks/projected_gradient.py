"""The one projected-gradient loop that fgsm, ifgsm, mim, madry and apgd are settings of."""

__all__ = ["AdaptiveStep", "Climb", "FixedStep", "StepRule", "projected_gradient"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from securesgd.attacks.ball import Ball, per_image
from securesgd.attacks.objective import Look, Objective
from securesgd.attacks.settings import AttackSettings


class StepRule(Protocol):
    """Returns the next points of the examples `rows`, which now stand at `x`."""

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, seen: Look) -> Tensor: ...


class FixedStep:
    """Steps of `length` radii along the gradient, or along its decaying sum if `momentum` > 0.

    Reference: I-FGSM, Kurakin et al. 2017; momentum, Dong et al. 2018, Eq. 6 and 7.
    """

    def __init__(self, length: float, momentum: float, like: Tensor) -> None:
        self.length, self.momentum = length, momentum
        self.sum = torch.zeros_like(like) if momentum else None

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, seen: Look) -> Tensor:
        """Return the points one step further."""
        assert seen.gradient is not None
        direction = seen.gradient
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
        self.last_loss = -self.best_loss  # so that the first look is not a rise
        self.rises = torch.zeros(count, device=like.device)
        self.loss_at_checkpoint = self.best_loss.clone()
        self.halved = torch.ones(count, dtype=torch.bool, device=like.device)

    def __call__(self, rows: Tensor, x: Tensor, ball: Ball, seen: Look) -> Tensor:
        """Return the points one step further, with the step size that the losses so far call for."""
        assert seen.gradient is not None
        better = seen.loss > self.best_loss[rows]
        self.best[rows[better]], self.best_gradient[rows[better]] = x[better], seen.gradient[better]
        self.best_loss[rows[better]] = seen.loss[better]
        self.rises[rows] += seen.loss > self.last_loss[rows]
        self.last_loss[rows] = seen.loss
        gradient = seen.gradient
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
    at, gap, found = 0.22, 0.22, set()
    while at <= 1:
        found.add(max(1, round(at * steps)))
        gap = max(gap - 0.03, 0.06)
        at += gap
    return found


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
