"""How an attack moves, given the gradient where it stands: all in which projected-gradient attacks differ."""

__all__ = ["AdaptiveStep", "FixedStep", "StepRule"]

from typing import Protocol

import torch
from torch import Tensor

from securesgd.attacks.ball import Ball, per_image
from securesgd.attacks.objective import Look


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
