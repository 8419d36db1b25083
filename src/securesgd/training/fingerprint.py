"""The fingerprint of a run: a resumed run must compute the same releases as the one that was started.

The noise of a step is a function of the run's key. The same noise under another learning rate, model or loss would
cancel in the difference of the two results, and reveal what it protects.
"""

__all__ = ["ResumeFingerprint", "qualified_name"]

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from securesgd.clipping.engine import ARITHMETIC, Loss
from securesgd.runtime.machine import processor
from securesgd.runtime.randomness import MOST_BY_WORD
from securesgd.training.code_fingerprint import describe_code, describe_module
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.settings import TrainingSettings

_FORMER_MODULES = {
    "securesgd.baselines.adlm.network": "securesgd.adlm.network",
    "securesgd.training.step_loss": "securesgd.training.loop",
}
"""Where losses were when the committed rows were made: the digest, and with it the noise of a seed, must not change."""


@dataclass(frozen=True)
class ResumeFingerprint:
    """Everything that decides what the steps of a run release, except the data and the first weights."""

    settings: TrainingSettings
    model: nn.Module
    loss: Loss
    examples: int
    processes: int
    one_off_release: OneOffRelease | None
    sensitivity: float
    """Of a clipped sum as the engine computes it."""
    optimizer: tuple[Any, ...] = ()
    """Names and numbers of the user's own optimizer and scheduler; empty for those of the settings."""
    project: Callable[[nn.Module], None] | None = None
    """What moves the weights after each step, if it is not the model's own."""
    origin: str = ""
    """Where the first weights come from, if that is recorded and could be claimed to be something else later."""

    @property
    def device(self) -> str:
        """The kind of device of the model. Not in the digest, with which the noise of a seed is the same on all."""
        return next(self.model.parameters()).device.type

    def machine(self) -> dict[str, Any]:
        """Return what decides the last bits of a sum, for the checkpoint: device, processor, threads and arithmetic."""
        arithmetic = f"arithmetic {ARITHMETIC} on torch {torch.__version__}"
        threads = torch.get_num_threads()
        return {"device": self.device, "processor": processor(), "threads": threads, "arithmetic": arithmetic}

    def digest(self, noise_multiplier: float, *, by_process: bool = True) -> str:
        """Return a digest by which a resumed run is compared with the one that was started.

        The model counts by its structure and its tensors' names, shapes and whether they are trained; the one-off
        release by its step and event; optimizer and scheduler by names, numbers and what they do in a trial; loss,
        projection and layers that are not of torch or this package by their code too, as far as Python shows it
        (`describe_code`). Without `by_process` the number of processes does not count, nor does `origin`: the noise of
        a seed is bound to the first weights themselves.
        """
        tensors = sorted(f"{name} {list(t.shape)} {t.dtype}" for name, t in self.model.state_dict().items())
        trained = sorted(name for name, p in self.model.named_parameters() if p.requires_grad)
        release = self.one_off_release
        parts: tuple[Any, ...] = (
            self.settings.fingerprint(noise_multiplier),
            repr(self.model),
            tensors,
            trained,
            qualified_name(self.loss),
            self.examples,
            self.processes if by_process else None,
            None if release is None else (release.step, release.event),
            self.sensitivity,
        )
        if self.optimizer:  # else the digest, and the noise of a seed, are those of earlier versions
            parts += (self.optimizer,)
        if self.examples > MOST_BY_WORD:  # sampled otherwise by version 0.2: no step of it may be repeated
            parts += ("sampled by gaps",)
        if by_process and self.origin:
            parts += (self.origin,)
        parts += tuple(part for part in self._own_code() if part)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _own_code(self) -> list[Any]:
        """Return descriptions of the user's own loss, projection and layers; nothing for those of this package."""
        own = [
            (what, describe_code(function))
            for what, function in (("loss", self.loss), ("project", self.project))
            if function is not None and not str(qualified_name(function)[0]).startswith("securesgd.")
        ]
        return [*own, describe_module(self.model)]


def qualified_name(function: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function, or those of the class of another callable."""
    module = getattr(function, "__module__", "")
    return _FORMER_MODULES.get(module, module), getattr(function, "__qualname__", type(function).__name__)
