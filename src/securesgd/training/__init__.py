"""DP-SGD: per-example clipping, Poisson sampling, noise, and a loop in which every step is paid for first."""

from securesgd.training.clipping import ClippedSum, ClippingEngine
from securesgd.training.loop import StepReport, TrainingResult, per_example_cross_entropy, train
from securesgd.training.settings import TrainingSettings

__all__ = [
    "ClippedSum",
    "ClippingEngine",
    "StepReport",
    "TrainingResult",
    "TrainingSettings",
    "per_example_cross_entropy",
    "train",
]
