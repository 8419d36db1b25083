"""The optimizer of a run and its learning rates: those of the settings, or the user's own, resumed bit for bit.

An optimizer sees private gradients only, so that whatever it does with them is post-processing, at no cost in privacy.
"""

__all__ = ["OptimizerFactory", "OwnOptimizer", "OwnScheduler", "RunOptimizer", "SchedulerFactory"]

import contextlib
import hashlib
import inspect
import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.tensors import tensors_digest
from securesgd.training.fingerprint import qualified_name
from securesgd.training.given_optimizer import (
    OptimizerFactory,
    OwnOptimizer,
    OwnScheduler,
    SchedulerFactory,
    as_factories,
)
from securesgd.training.settings import TrainingSettings

_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], TrainingSettings], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, s: torch.optim.SGD(parameters, lr=s.learning_rate, momentum=s.momentum),
    "adam": lambda parameters, s: torch.optim.Adam(parameters, lr=s.learning_rate),
}

_STEPS_TRIED = 10_000  # of a scheduler before training: a tenth of a second


_ARGUMENT = {"optimizer": "optimizer", "schedule": "scheduler"}


class RunOptimizer:
    """The optimizer of the trainable parameters and, if given, the scheduler of its learning rates.

    Without a scheduler, the settings' warm-up and schedule apply to the learning rates that the optimizer starts with.
    """

    def __init__(
        self,
        trainable: dict[str, nn.Parameter],
        settings: TrainingSettings,
        optimizer: OwnOptimizer | None = None,
        scheduler: OwnScheduler | None = None,
    ) -> None:
        optimizer, scheduler = as_factories(optimizer, scheduler)
        for name, value, given in (
            ("optimizer", settings.optimizer, optimizer),
            ("schedule", settings.schedule, scheduler),
        ):
            if value == "own" and given is None:
                raise InvalidInputError(f"{name} is 'own', which only securesgd.train(…, {_ARGUMENT[name]}=…) can give")
        self.trainable, self.settings = trainable, settings
        self._factories = optimizer, scheduler
        parameters = list(trainable.values())
        self.optimizer = (
            _OPTIMIZERS[settings.optimizer](parameters, settings)
            if optimizer is None
            else _make_optimizer(optimizer, parameters)
        )
        self.scheduler = None if scheduler is None else _make_scheduler(scheduler, self.optimizer)
        self._trial = ""
        """Digest of what a user's own optimizer and scheduler do in a trial, by `require_resumable`."""
        self._first_rates = [group.get("lr") for group in self.optimizer.param_groups]
        self.learning_rate: float | None = None
        """Of the last step, for the first group of parameters; None before, or if the optimizer has none."""

    @property
    def is_custom(self) -> bool:
        """Whether the optimizer or its scheduler is the user's own."""
        return self._factories != (None, None)

    def step(self, gradients: dict[str, Tensor], step: int) -> None:
        """Move the weights along the private gradients of step `step`, then the learning rates."""
        if self.scheduler is None:
            for group, rate in zip(self.optimizer.param_groups, self._first_rates, strict=True):
                group["lr"] = self.settings.learning_rate_at(step, rate)
        for name, parameter in self.trainable.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        rate = self.optimizer.param_groups[0].get("lr")
        self.learning_rate = None if rate is None else float(rate)
        if self.scheduler is not None:
            self.scheduler.step()

    def require_same_groups(self) -> None:
        """Return if the optimizer holds the trainable parameters in as many groups as it was made with.

        Raises: InvalidInputError if a group was added or taken away, or another parameter is in one.
        """
        groups = self.optimizer.param_groups
        if len(groups) != len(self._first_rates):
            raise InvalidInputError(
                f"{type(self.optimizer).__name__} has {len(groups)} groups of parameters; valid: the "
                f"{len(self._first_rates)} that the run was started with"
            )
        _require_all_parameters(self.optimizer, list(self.trainable.values()))

    def fingerprint(self) -> tuple[Any, ...]:
        """Return names, first numbers and trial of a user's optimizer and scheduler; () for those of the settings."""
        if not self.is_custom:
            return ()
        names = [qualified_name(value) for value in (*self._factories, type(self.optimizer), type(self.scheduler))]
        return *names, json.dumps(self.record(), sort_keys=True), self._trial

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, for a checkpoint."""
        return {
            f"optimizer.{key}.{name}": value
            for name, parameter in self.trainable.items()
            for key, value in self.optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        }

    def record(self) -> dict[str, Any]:
        """Return everything else that changes, for the JSON record of a checkpoint.

        Nothing for the optimizers of the settings: their learning rates are a function of the step.
        Raises: InvalidInputError if it cannot be written as JSON.
        """
        if not self.is_custom:
            return {}
        numbers = {
            name: {key: v for key, v in self.optimizer.state[parameter].items() if not isinstance(v, Tensor)}
            for name, parameter in self.trainable.items()
        }
        state = {
            "groups": [_without_parameters(group) for group in self.optimizer.param_groups],
            "numbers": {name: values for name, values in numbers.items() if values},
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }
        return {"optimizer": _as_json(state)}

    def load(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Set the state to that of a checkpoint. Raises: DamagedFileError if it is not of this optimizer."""
        self.optimizer.state.clear()
        for full_name, tensor in tensors.items():
            kind, _, rest = full_name.partition(".")
            if kind == "optimizer":
                key, _, name = rest.partition(".")
                parameter = self.trainable[name]
                # Adam keeps its step count on the CPU whatever the device.
                place = tensor.clone() if tensor.dim() == 0 else tensor.to(parameter.device, copy=True)
                self.optimizer.state[parameter][key] = place
        if not self.is_custom:
            return
        try:
            state = record["optimizer"]
            for name, numbers in state["numbers"].items():
                self.optimizer.state[self.trainable[name]].update(numbers)
            for group, values in zip(self.optimizer.param_groups, state["groups"], strict=True):
                group.update(_with_types_of(_without_parameters(group), values))
            if self.scheduler is not None:
                self.scheduler.load_state_dict(_with_types_of(self.scheduler.state_dict(), state["scheduler"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"the checkpoint is not of this optimizer: {error}") from None

    def require_resumable(self) -> None:
        """Return if a saved and loaded state continues with the same bits, tried on the weights for three steps.

        The weights are left as they were. Nothing is done for the optimizers of the settings.
        Raises: InvalidInputError naming the optimizer.
        """
        if not self.is_custom:
            return
        before = self._weights()
        try:
            with torch.random.fork_rng(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Seems like `optimizer.step", category=UserWarning)  # copies
                self._try_to_resume()
        except InvalidInputError:
            raise
        except Exception as error:  # whatever the user's optimizer raises, nothing is written yet
            reason = str(error).partition("\n")[0]
            raise InvalidInputError(f"{self._name} does not work in training: {reason}") from error
        finally:
            self._set_weights(before)

    def _try_to_resume(self) -> None:
        first, second = (RunOptimizer(self.trainable, self.settings, *self._factories) for _ in range(2))
        if first.optimizer is second.optimizer or first.optimizer is self.optimizer:
            raise InvalidInputError("optimizer returned the same object twice; valid: a function that makes a new one")
        torch.manual_seed(0)
        # Weights that are the same whatever the model starts from: the trial is compared when a run is resumed.
        self._set_weights({name: torch.linspace(-1, 1, p.numel()).view_as(p) for name, p in self.trainable.items()})
        for step in range(2):
            first.step(self._ones(), step)
        foreign = [key for key in first.optimizer.state if id(key) not in {id(p) for p in self.trainable.values()}]
        keys = {key for values in first.optimizer.state.values() for key in values}
        saved = {name: t.detach().clone() for name, t in first.tensors().items()}, first.record(), self._weights()
        ends = []
        second.load(*saved[:2])
        for optimizer in (first, second):
            self._set_weights(saved[2])
            torch.manual_seed(0)
            optimizer.step(self._ones(), 2)
            ends.append((self._weights(), optimizer.tensors(), optimizer.record()))
        same = ends[0][2] == ends[1][2] and all(
            _same_tensors(a, b) for a, b in zip(*(e[:2] for e in ends), strict=True)
        )
        same &= _attributes(first.optimizer) == _attributes(second.optimizer)
        if foreign or not same or any("." in key for key in keys):
            raise InvalidInputError(
                f"the state of {self._name} cannot be saved and resumed; valid: an optimizer whose state is tensors "
                "and numbers of each parameter, and which keeps nothing else"
            )
        rates = []
        if first.scheduler is not None:
            for _ in range(3, min(self.settings.steps, _STEPS_TRIED)):
                first.scheduler.step()  # some schedulers have a last step
                rates.append([float(group.get("lr", 0.0)) for group in first.optimizer.param_groups])
        content = f"{tensors_digest(ends[0][0])} {tensors_digest(ends[0][1])} {ends[0][2]} {rates}"
        self._trial = hashlib.sha256(content.encode()).hexdigest()

    def _ones(self) -> dict[str, Tensor]:
        return {name: torch.ones_like(parameter) for name, parameter in self.trainable.items()}

    @property
    def _name(self) -> str:
        made = [self.optimizer] if self.scheduler is None else [self.optimizer, self.scheduler]
        return " with ".join(type(value).__name__ for value in made)

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.trainable.items()}

    @torch.no_grad()
    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.trainable.items():
            parameter.copy_(weights[name])
            parameter.grad = None


def _make_optimizer(factory: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the user's optimizer. Raises: InvalidInputError if training cannot use it."""
    _require_function("optimizer", factory, "the parameters and returns a torch.optim.Optimizer")
    optimizer = factory(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInputError(
            f"optimizer returned a {type(optimizer).__name__}; valid: a function that takes the parameters and returns "
            "a torch.optim.Optimizer"
        )
    _require_no_argument(optimizer, "a closure, which would compute gradients without privacy")
    _require_all_parameters(optimizer, parameters)
    return optimizer


def _require_all_parameters(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if set(held) != {id(parameter) for parameter in parameters}:
        raise InvalidInputError(
            f"{type(optimizer).__name__} does not hold the {len(parameters)} trainable parameters of the model; valid: "
            "all of them and no other (freeze a parameter by requires_grad_(False))"
        )


def _make_scheduler(factory: SchedulerFactory, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return the user's scheduler. Raises: InvalidInputError if training cannot use it."""
    _require_function("scheduler", factory, "the optimizer and returns a torch.optim.lr_scheduler.LRScheduler of it")
    scheduler = factory(optimizer)
    if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
        raise InvalidInputError(
            f"scheduler returned a {type(scheduler).__name__}; valid: a function that takes the optimizer and returns "
            "a torch.optim.lr_scheduler.LRScheduler of it"
        )
    _require_no_argument(scheduler, "a value; a loss would reveal private data")
    return scheduler


def _require_function(name: str, factory: Any, what: str) -> None:
    if not callable(factory):
        raise InvalidInputError(f"{name} is a {type(factory).__name__}; valid: a function that takes {what}")


def _require_no_argument(value: torch.optim.Optimizer | LRScheduler, what: str) -> None:
    _, *parameters = inspect.signature(type(value).step).parameters.values()  # a scheduler wraps that of the object
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        raise InvalidInputError(
            f"step({needed[0].name}) of {type(value).__name__} needs {what}; valid: one whose step() needs no argument"
        )


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, bytes]:
    """Return what an optimizer keeps besides groups and state, where a checkpoint does not look."""
    kept: dict[str, bytes] = {}
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state"):
            with contextlib.suppress(Exception):  # a lambda, say, cannot be written down
                kept[name] = pickle.dumps(value)
    return kept


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _as_json(value: Any) -> Any:
    """Return `value` as it will be after writing and reading it. Raises: InvalidInputError if that is not possible."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the state of the optimizer or scheduler cannot be saved as JSON ({error}); valid: finite numbers, texts "
            "and lists of them, besides the tensors of each parameter"
        ) from None


def _with_types_of(fresh: Any, stored: Any) -> Any:
    """Return `stored` with the types of `fresh`, the same state before any step: JSON has no tuples and integer keys.

    Values that training does not change, such as the milestones of a scheduler, are those of `fresh` itself.
    """
    if _as_json(fresh) == stored:
        return fresh
    if isinstance(fresh, dict) and isinstance(stored, dict) and fresh.keys() == stored.keys():
        return {key: _with_types_of(value, stored[key]) for key, value in fresh.items()}
    if isinstance(fresh, list | tuple) and isinstance(stored, list) and len(fresh) == len(stored):
        return type(fresh)(_with_types_of(a, b) for a, b in zip(fresh, stored, strict=True))
    return stored


def _same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
