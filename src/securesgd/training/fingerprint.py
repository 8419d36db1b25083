"""The fingerprint of a run: a resumed run must compute the same releases as the one that was started.

The noise of a step is a function of the run's key. The same noise under another learning rate, model or loss would
cancel in the difference of the two results, and reveal what it protects.
"""

__all__ = ["ResumeFingerprint", "qualified_name"]

import hashlib
from dataclasses import dataclass
from typing import Any

from torch import nn

from securesgd.clipping.engine import Loss
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.settings import TrainingSettings

_FORMER_MODULES = {"securesgd.baselines.adlm.network": "securesgd.adlm.network"}
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

    def digest(self, noise_multiplier: float, *, by_process: bool = True) -> str:
        """Return a digest by which a resumed run is compared with the one that was started.

        The model counts by its structure and its tensors' names, shapes and whether they are trained; the loss by its
        name; the one-off release by its step and event; optimizer and scheduler by names and numbers. What their code
        computes cannot be compared. Without `by_process` the number of processes does not count.
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
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def qualified_name(function: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function, or those of the class of another callable."""
    module = getattr(function, "__module__", "")
    return _FORMER_MODULES.get(module, module), getattr(function, "__qualname__", type(function).__name__)
