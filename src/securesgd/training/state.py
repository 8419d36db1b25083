"""Everything that changes from step to step: weights, optimizer, average. All of it is post-processing of releases."""

__all__ = ["TrainingState", "WeightAverage"]

from typing import Any

import torch
from torch import Tensor, nn

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.training.settings import TrainingSettings


class WeightAverage:
    """average ← d·average + (1 − d)·weights, with d growing from 0.1 to `decay` so that the start is forgotten."""

    def __init__(self, weights: dict[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, weights: dict[str, Tensor], step: int) -> None:
        """Take in the weights after step `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), [weights[n].detach() for n in self.values], 1 - decay)


_OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters, s: torch.optim.SGD(parameters, lr=s.learning_rate, momentum=s.momentum),
    "adam": lambda parameters, s: torch.optim.Adam(parameters, lr=s.learning_rate),
}


class TrainingState:
    """The model with its optimizer and the average of its weights, after `step` steps."""

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        self.model, self.settings, self.step = model, settings, 0
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer: torch.optim.Optimizer = _OPTIMIZERS[settings.optimizer](self.trainable.values(), settings)
        self.average = WeightAverage(dict(self.trainable), settings.ema_decay) if settings.ema_decay else None

    def descend(self, gradients: dict[str, Tensor]) -> None:
        """Take one optimizer step along the private gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(self.step)
        for name, parameter in self.trainable.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def advance(self) -> None:
        """Count the step and take its weights into the average."""
        if self.average is not None:
            self.average.update(dict(self.trainable), self.step)
        self.step += 1

    def require_finite(self) -> None:
        """Pass if all weights are finite: others have no gradient, and every further step would be noise alone.

        This looks at released weights only, so that it tells nothing new about the data.
        Raises: InvalidInputError with the step and the learning rate.
        """
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.trainable.values()):
            raise InvalidInputError(
                f"the weights are not finite after step {self.step}; learning_rate {self.settings.learning_rate:g} is "
                "too large for this model, start a new run with a smaller one"
            )

    def use_average(self) -> None:
        """Put the averaged weights into the model, if an average is kept."""
        if self.average is not None:
            with torch.no_grad():
                for name, parameter in self.trainable.items():
                    parameter.copy_(self.average.values[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for a checkpoint."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.trainable.items():
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{key}.{name}"] = value
        if self.average is not None:
            found |= {f"average.{name}": tensor for name, tensor in self.average.values.items()}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Set everything to a checkpoint's tensors. Raises: DamagedFileError if they are not of this model."""
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).replace("\n", " ").replace("\t", "")
            raise DamagedFileError(f"the checkpoint is not of this model: {reason}") from None
        self.optimizer.state.clear()
        for full_name, tensor in tensors.items():
            kind, _, rest = full_name.partition(".")
            if kind == "optimizer":
                key, _, name = rest.partition(".")
                parameter = self.trainable[name]
                # Adam keeps its step count on the CPU whatever the device.
                place = tensor.clone() if tensor.dim() == 0 else tensor.to(parameter.device, copy=True)
                self.optimizer.state[parameter][key] = place
            elif kind == "average" and self.average is not None:
                self.average.values[rest].copy_(tensor)
        self.step = step
