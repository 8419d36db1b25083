"""What a trained network says about inputs that may come from anybody: a class, and a radius in which it stays."""

__all__ = ["Prediction", "as_batch", "predict_batch", "prediction_range", "prediction_settings"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.attacks.objective import evaluation_mode
from securesgd.certificates.certify import CertifyProgress, certify
from securesgd.certificates.intervals import has_interval_bounds
from securesgd.certificates.record import NO_NOISE, SEEDED, CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.errors import InvalidInputError
from securesgd.runtime.run_folder import IN_MEMORY
from securesgd.theory import Sensitivity
from securesgd.theory.rounding import probability_of_success

OnProgress = Callable[[CertifyProgress], None]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run says about one input."""

    label: int | None
    """The class; None if the draws do not prove one."""
    class_name: str | None
    radius: float
    """No change of the input smaller than this, in `norm`, makes the class another one. 0 if not proven."""
    abstained: bool
    draws: int
    votes: tuple[float, ...] = ()
    """What each class got of the draws; empty for a model without noise, which draws nothing."""
    norm: str = "linf"
    answer: str = ""
    """To "is the radius that was asked for proven?": yes, no, or open (more draws may tell). Empty if none was."""
    noise: str = NO_NOISE
    """Where the draws came from, and for which inputs they are evidence: `Certificates.noise`."""
    failure_prob: float = 0.0
    """Bound on the probability, over the draws, that any of this is wrong."""

    @property
    def seeded(self) -> bool:
        """Whether the noise can be repeated: then all this says nothing of inputs that were chosen knowing the seed."""
        return self.noise == SEEDED

    @property
    def guarantee(self) -> str:
        """What is proven, in a sentence or two."""
        change = f"no change of the input smaller than its radius in {self.norm}"
        if self.noise == NO_NOISE:
            return (
                f"For certain, by interval bounds of the network without noise: {change} that stays in the range of "
                "inputs makes the class another one. It does not say that the class is right."
            )
        success = probability_of_success(self.failure_prob)
        sure = f"With probability at least {success} for each input, over the noise of its draws"
        void = (
            " THE NOISE HAS A FIXED SEED, WHICH IS FOR REPEATABLE TESTS: for an input that was chosen by somebody who "
            "knows the seed, nothing is proven."
        )
        return (
            f"{sure}: unless it abstains, the class is that of the smoothed network, and {change} makes it another "
            f"one. It does not say that the class is right.{void if self.seeded else ''}"
        )


def as_batch(inputs: Any, shape: tuple[int, ...]) -> tuple[Tensor, bool]:
    """Return inputs as a batch, and whether they were a single one of this shape.

    Double precision, which a certificate takes as it is, rounding counted, stays; everything else becomes float32.
    Raises: InvalidInputError if they are no tensor.
    """
    try:
        inputs = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"inputs are a {type(inputs).__name__}; valid: a tensor ({error})") from None
    if inputs.dtype != torch.float64:
        inputs = inputs.to(torch.float32)
    single = tuple(inputs.shape) == shape
    return (inputs[None] if single else inputs), single


def prediction_range(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return what every input of a run is within, by the content of its model.json; None: any numbers.

    Whatever `load_data` reads is scaled to 0..1. Tensors in memory are within the range that training checked, if it
    did: without one, a proof for changes that stay in 0..1 would be none for inputs that were not scaled.
    """
    in_memory = (record.get("data") or {}).get("name") == IN_MEMORY
    ends = record.get("input_range", None if in_memory else (0.0, 1.0))
    return None if ends is None else (float(ends[0]), float(ends[1]))


def prediction_settings(
    model: nn.Module, norm: str, input_range: tuple[float, float] | None, changes: dict[str, Any]
) -> CertifySettings:
    """Return how a batch is certified: `norm` and `input_range` are the run's, `changes` go before them.

    Raises: InvalidInputError for settings that are not valid, and for a box, of which a radius would be a share.
    """
    settings = CertifySettings(draws=1_000, input_range=input_range).with_changes(**changes).for_model(model)
    if settings.box is not None:
        raise InvalidInputError("box is given; valid for predictions: a norm, while run.certify takes a box")
    return settings if settings.family == INTERVAL or "norm" in changes else replace(settings, norm=norm)


def predict_batch(
    model: nn.Module,
    batch: Tensor,
    settings: CertifySettings,
    class_names: Sequence[str],
    *,
    sensitivity: Sensitivity | None = None,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Return a prediction for each input of a batch; `sensitivity` is Δ if it is proven already.

    Guarantee: that of `certificates.certify`. A model with neither noise nor interval bounds predicts with radius 0.
    Raises: InvalidInputError for inputs that do not fit, are not finite or out of range.
    """
    shared: dict[str, Any] = {"norm": settings.norm, "noise": settings.noise}
    if settings.family != INTERVAL or has_interval_bounds(model, tuple(batch.shape[1:])):
        with evaluation_mode(model):
            bound = None if settings.family == INTERVAL else sensitivity
            proven = certify(model, batch, settings, sensitivity=bound, on_progress=on_progress)
        labels = [None if no else int(c) for c, no in zip(proven.prediction, proven.abstained, strict=True)]
        columns = zip(labels, proven.radius["tight"], proven.draws, proven.votes, proven.answer, strict=True)
        shared["failure_prob"] = 0.0 if settings.family == INTERVAL else settings.failure_prob
    else:
        if not bool(torch.isfinite(batch).all()):
            raise InvalidInputError("the inputs are not finite; valid: finite numbers")
        with torch.no_grad(), evaluation_mode(model):
            outputs = model(batch.to(next(model.parameters())))
        nothing, answer = np.zeros((len(batch), 0)), np.full(len(batch), "" if settings.radius is None else "no")
        columns = zip(outputs.argmax(1).tolist(), nothing.sum(1), nothing.sum(1), nothing, answer, strict=True)
    return [
        Prediction(
            label=label,
            class_name=None if label is None or label >= len(class_names) else class_names[label],
            radius=float(radius),
            abstained=label is None,
            draws=int(draws),
            votes=tuple(votes.tolist()),
            answer=str(answer),
            **shared,
        )
        for label, radius, draws, votes, answer in columns
    ]
