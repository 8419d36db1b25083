"""Everything that changes from step to step: weights, optimizer, average. All of it is post-processing of releases."""

__all__ = ["Snapshot", "TrainingState", "WeightAverage", "projection", "weights"]

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from securesgd.errors import DamagedFileError, DivergedError, InvalidInputError
from securesgd.runtime.tensors import Checkpoint
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler, RunOptimizer
from securesgd.training.settings import TrainingSettings


class WeightAverage:
    """average ← d·average + (1 − d)·weights, with d growing from 0.1 to `decay` so that the start loses its weight."""

    def __init__(self, weights: dict[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, weights: dict[str, Tensor], step: int) -> None:
        """Add the weights after step `step` to the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), [weights[n].detach() for n in self.values], 1 - decay)


class TrainingState:
    """The model with its optimizer and the average of its weights, after `step` steps.

    Raises: InvalidInputError for an optimizer or scheduler whose state cannot be saved and resumed.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        optimizer: OwnOptimizer | None = None,
        scheduler: OwnScheduler | None = None,
    ) -> None:
        self.model, self.settings, self.step = model, settings, 0
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = RunOptimizer(self.trainable, settings, optimizer, scheduler)
        self.optimizer.require_resumable()
        self.average = WeightAverage(dict(self.trainable), settings.ema_decay) if settings.ema_decay else None

    def apply_gradients(self, gradients: dict[str, Tensor]) -> None:
        """Take one optimizer step along the private gradients."""
        self.optimizer.step(gradients, self.step)

    def count_step(self) -> None:
        """Count the step and add its weights to the average."""
        if self.average is not None:
            self.average.update(dict(self.trainable), self.step)
        self.step += 1

    def unchanged_by(self, on_step: Callable[[Any], Any], report: Any) -> Any:
        """Return what `on_step` returns, if it leaves the weights, buffers and learning rates as they are.

        Raises: InvalidInputError if not: resumed without it, the same noise would be used at other weights.
        KeyboardInterrupt if `on_step` does and has changed nothing: the state is that of a whole step then.
        """
        before = self.snapshot()
        answer, interruption = None, None
        try:
            answer = on_step(report)
        except KeyboardInterrupt as error:
            interruption = error
        changed = self.changed_since(before)
        if changed is not None:
            raise InvalidInputError(
                f"on_step changed {changed} after step {self.step}; valid: a function that only reads the model "
                "(project, or a scheduler, may change it)"
            )
        if interruption is not None:
            raise interruption
        return answer

    def snapshot(self) -> "Snapshot":
        """Return the weights, buffers and the optimizer's state as they are now, for `changed_since`."""
        return Snapshot({name: t.detach().clone() for name, t in self._tensors().items()}, self.optimizer.record())

    def changed_since(self, before: "Snapshot") -> str | None:
        """Return the name of a weight, buffer or state of the optimizer that has changed, or "the optimizer", or None.

        Buffers that are not saved count, too: the private data could be carried in them from one step to the next.
        """
        after = self._tensors()
        names = before.tensors.keys() | after.keys()
        changed = sorted(name for name in names if not _same(before.tensors.get(name), after.get(name)))
        return changed[0] if changed else None if self.optimizer.record() == before.numbers else "the optimizer"

    def _tensors(self) -> dict[str, Tensor]:
        return self.model.state_dict() | dict(self.model.named_buffers()) | self.optimizer.tensors()

    def require_unchanged_since(self, before: "Snapshot") -> None:
        """Return if nothing but the run itself has changed model and optimizer since the last step.

        Raises: InvalidInputError: resumed, the run would not have the change, and the ledger does not know it.
        """
        self.require_same_parameters()
        changed = self.changed_since(before)
        if changed is not None:
            valid = "only step() changes model, optimizer and scheduler (project= may move the weights after each step)"
            raise InvalidInputError(f"{changed} was changed between two steps; valid: {valid}")

    def require_same_parameters(self) -> None:
        """Return if model and optimizer have the parameters that they had at the start, and train the same.

        Raises: InvalidInputError naming one that was added, taken away, replaced, frozen or unfrozen.
        """
        now = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        changed = sorted(
            name for name in now.keys() | self.trainable.keys() if now.get(name) is not self.trainable.get(name)
        )
        if changed:
            raise InvalidInputError(
                f"the trainable parameter {changed[0]} was added, removed or replaced during the run; valid: the "
                f"{len(self.trainable)} parameters that the run was started with"
            )
        self.optimizer.require_same_groups()

    def require_finite(self) -> None:
        """Return if all weights are finite: others have no gradient, and every further step would be noise alone.

        This reads released weights only, so that it reveals nothing more about the data.
        Raises: DivergedError, an InvalidInputError, with the step and the learning rate.
        """
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.trainable.values()):
            rate = f"learning_rate {self.settings.learning_rate:g}"
            raise DivergedError(
                f"the weights are not finite after step {self.step}; "
                f"{'the learning rate' if self.optimizer.is_custom else rate} is too large for this model, start a new "
                "run with a smaller one"
            )

    def use_average(self) -> None:
        """Put the averaged weights into the model, if there is an average."""
        if self.average is not None:
            with torch.no_grad():
                for name, parameter in self.trainable.items():
                    parameter.copy_(self.average.values[name])

    def checkpoint(self) -> Checkpoint:
        """Return all tensors by name, and the numbers of the optimizer."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= self.optimizer.tensors()
        if self.average is not None:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.values.items()}
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return Checkpoint(copies, self.optimizer.record())

    def load(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Set everything to that of a checkpoint. Raises: DamagedFileError if it is not of this model or optimizer."""
        of_model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        self.load_weights(of_model, int(record["step"]))
        self.optimizer.load(tensors, record)
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(tensors[f"average.{name}"])

    def load_weights(self, weights: dict[str, Tensor], step: int) -> None:
        """Set the weights to those after step `step`. Raises: DamagedFileError if they are not of this model."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).replace("\n", " ").replace("\t", "")
            raise DamagedFileError(f"the checkpoint is not of this model: {reason}") from None
        self.step = step


def projection(model: nn.Module, project: Callable[[nn.Module], None] | None) -> Callable[[], Any]:
    """Return what is called after each step: `project` if given, else the model's own `project()` if it has one."""
    if project is not None:
        return lambda: project(model)
    method = getattr(type(model), "project", None)  # of the class: a layer that is called `project` is something else
    if not inspect.isfunction(method):
        return lambda: None
    _, *arguments = inspect.signature(method).parameters.values()
    if any(argument.default is argument.empty for argument in arguments):  # a method about something else
        return lambda: None
    return partial(method, model)


@dataclass(frozen=True)
class Snapshot:
    """What nobody but the run itself may change between two steps: a resumed run would not have the change."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all weights and buffers by name."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors have the same values, NaN where the other has it."""
    return (
        a is not None
        and b is not None
        and a.shape == b.shape
        and (torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()))
    )
