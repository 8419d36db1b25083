"""Training that is broken on purpose in one place, to see that an audit notices."""

__all__ = ["SABOTAGES", "Sabotage", "sabotaged_step"]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from securesgd.clipping.engine import ClippedSum, ClippingEngine, Loss
from securesgd.errors import InvalidInputError, nearest
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import Purpose, Randomness
from securesgd.training.step import Step, plain_sum


class _NoClipping(ClippingEngine):
    """Adds up gradients as they are."""

    def clipped_sum(self, inputs: Tensor, targets: Tensor, loss: Loss, *copies: Any, **given: Any) -> ClippedSum:
        """Return the sum of the gradients, of whatever length."""
        return plain_sum(self.model, inputs, targets, loss, *copies, **given)


class _MeanClipping(_NoClipping):
    """Clips the mean over the batch in place of each gradient."""

    def clipped_sum(self, inputs: Tensor, targets: Tensor, loss: Loss, *copies: Any, **given: Any) -> ClippedSum:
        """Return the mean gradient, clipped, times the number of examples."""
        sums = super().clipped_sum(inputs, targets, loss, *copies, **given)
        length = math.sqrt(sum(float(g.double().square().sum()) for g in sums.gradients.values()))
        factor = min(1.0, self.max_grad_norm * max(1, len(inputs)) / max(length, 1e-300))
        return replace(sums, gradients={name: g * factor for name, g in sums.gradients.items()})


class _UnclippedBiases(ClippingEngine):
    """Forgets the biases: neither in the norm that is clipped, nor scaled."""

    def clipped_sum(self, inputs: Tensor, targets: Tensor, loss: Loss, *copies: Any, **given: Any) -> ClippedSum:
        """Return the clipped sum of all but the biases, and the plain sum of these."""
        plain = plain_sum(self.model, inputs, targets, loss, *copies, **given)
        biases = [p for name, p in self.model.named_parameters() if name.endswith("bias") and p.requires_grad]
        for parameter in biases:
            parameter.requires_grad_(False)
        try:
            clipped = super().clipped_sum(inputs, targets, loss, *copies, **given)
        finally:
            for parameter in biases:
                parameter.requires_grad_(True)
        gradients = {name: clipped.gradients.get(name, g) for name, g in plain.gradients.items()}
        return replace(clipped, gradients=gradients)


@dataclass(frozen=True)
class _ReusedNoise(Randomness):
    """Draws the noise of step 0 again in the steps that `reuses` names."""

    reuses: Callable[[int], bool] = lambda step: True

    def stream(self, purpose: Purpose, step: int) -> KeyStream:
        """Return the words of a step, or for noise that is reused, those of step 0."""
        return super().stream(purpose, 0 if purpose == "noise" and self.reuses(step) else step)


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """What is broken, in words and in code."""

    words: str
    engine: type[ClippingEngine] = ClippingEngine
    noise_factor: float = 1.0
    reuses: Callable[[int], bool] | None = None


SABOTAGES = {
    "no-clipping": Sabotage(words="gradients are added up unclipped", engine=_NoClipping),
    "half-noise": Sabotage(words="the noise is half of what was calibrated", noise_factor=0.5),
    "noise-reused": Sabotage(words="all steps add the noise of the first", reuses=lambda step: True),
    "noise-twice": Sabotage(words="the second step adds the noise of the first", reuses=lambda step: step == 1),
    "biases-unclipped": Sabotage(words="biases are left out of clipping", engine=_UnclippedBiases),
    "mean-clipping": Sabotage(words="the mean over the batch is clipped, not each gradient", engine=_MeanClipping),
}
"""By name: a row here is a sabotage that an audit must catch."""


def sabotaged_step(step: Step, name: str | None) -> Step:
    """Return a step that is broken as `name` says, or the step itself for None.

    Raises: InvalidInputError for an unknown name.
    """
    if name is None:
        return step
    if name not in SABOTAGES:
        raise InvalidInputError(f"unknown sabotage {name!r}: {nearest(name, SABOTAGES)}")
    chosen = SABOTAGES[name]
    randomness = step.randomness
    if chosen.reuses is not None:
        randomness = _ReusedNoise(randomness.key, chosen.reuses)
    return replace(
        step,
        engine=chosen.engine(step.engine.model, step.engine.max_grad_norm),
        noise_multiplier=step.noise_multiplier * chosen.noise_factor,
        randomness=randomness,
    )
