"""An optimizer or scheduler that the user has made already, as the function that `RunOptimizer` makes its own with.

A run tries its optimizer before it starts, on copies, so that a state that cannot be resumed is refused in time. The
first optimizer made is the user's own object; all others are copies of it as it was.
"""

__all__ = ["OptimizerFactory", "OwnOptimizer", "OwnScheduler", "SchedulerFactory", "as_factories"]

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from securesgd.errors import InvalidInputError

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]
OwnOptimizer = OptimizerFactory | torch.optim.Optimizer
OwnScheduler = SchedulerFactory | LRScheduler
"""A function that makes one, or a new one that was not used yet."""


class GivenOptimizer:
    """Returns the given optimizer at the first call, and copies of it that share its parameters at all others."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer.state:
            raise InvalidInputError(
                f"{type(optimizer).__name__} has taken steps already; valid: a new one, whose state no data have moved"
            )
        self.optimizer, self._is_given = optimizer, False

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if not self._is_given:
            self._is_given = True
            return self.optimizer
        memo: dict[int, Any] = {id(p): p for group in self.optimizer.param_groups for p in group["params"]}
        return copy.deepcopy(self.optimizer, memo)


class GivenScheduler:
    """Returns the given scheduler for its own optimizer, and for another one a copy that moves that one."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler

    def __call__(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        own = self.scheduler.optimizer
        if optimizer is own:
            return self.scheduler
        if type(optimizer) is not type(own):
            raise InvalidInputError(
                f"{type(self.scheduler).__name__} moves another optimizer; valid: a scheduler of the optimizer given"
            )
        return copy.deepcopy(self.scheduler, {id(own): optimizer})


def as_factories(
    optimizer: OwnOptimizer | None, scheduler: OwnScheduler | None
) -> tuple[OptimizerFactory | None, SchedulerFactory | None]:
    """Return functions that make them; what is a function already, or None, is returned as it is.

    Raises: InvalidInputError if an optimizer was used before, or a scheduler is of another one.
    """
    if isinstance(scheduler, LRScheduler):
        if scheduler.optimizer is not optimizer:
            raise InvalidInputError(
                f"{type(scheduler).__name__} moves another optimizer; valid: a scheduler of the optimizer that is "
                "given, or a function that makes one"
            )
        scheduler = GivenScheduler(scheduler)
    return GivenOptimizer(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer, scheduler
