"""What a run asks of its data: everything that decides a released number, besides the data, the weights and the key."""

__all__ = ["Question"]

import hashlib
from dataclasses import dataclass

from torch import nn

from securesgd.training.clipping import Loss
from securesgd.training.interlude import Interlude
from securesgd.training.settings import TrainingSettings


@dataclass(frozen=True)
class Question:
    """The same noise may only ever answer the same question: under another one, the difference would have no noise."""

    settings: TrainingSettings
    model: nn.Module
    loss: Loss
    examples: int
    processes: int
    interlude: Interlude | None
    sensitivity: float
    """Of a clipped sum as the engine computes it."""

    def digest(self, noise_multiplier: float, *, by_process: bool = True) -> str:
        """Return a digest by which a resumed run is compared with the one that was started.

        The model counts by its structure and its tensors' names, shapes and whether they are trained; loss and
        interlude by their names. What their code computes cannot be compared. Without `by_process` the number of
        processes does not count.
        """
        tensors = sorted(f"{name} {list(t.shape)} {t.dtype}" for name, t in self.model.state_dict().items())
        trained = sorted(name for name, p in self.model.named_parameters() if p.requires_grad)
        loss = getattr(self.loss, "__module__", ""), getattr(self.loss, "__qualname__", type(self.loss).__name__)
        between = None if self.interlude is None else (self.interlude.step, self.interlude.event)
        parts = (
            self.settings.fingerprint(noise_multiplier),
            repr(self.model),
            tensors,
            trained,
            loss,
            self.examples,
            self.processes if by_process else None,
            between,
            self.sensitivity,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
