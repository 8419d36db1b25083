"""A moving average of the weights: computed from released weights only, so it costs no privacy."""

__all__ = ["WeightAverage"]

import torch
from torch import Tensor


class WeightAverage:
    """average ← d·average + (1 − d)·weights, with d growing from 0.1 to `decay` so that the start is forgotten."""

    def __init__(self, weights: dict[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: weight.detach().clone() for name, weight in weights.items()}

    def update(self, weights: dict[str, Tensor], step: int) -> None:
        """Take in the weights after step `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.values.values()), [weights[n].detach() for n in self.values], 1 - decay)
