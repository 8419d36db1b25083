"""What is known of each example: its class, the bounds the votes gave, and a proven radius by every rule."""

__all__ = ["ALL_RULES", "Certificates", "published_whitened_sensitivity", "sensitivity_of"]

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.certify.settings import CertifySettings
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory import Sensitivity, published_sensitivity
from securesgd.theory.certificates import ALL_RULES, radii_by_rule
from securesgd.theory.validation import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificates:
    """An entry per example, in the order of the inputs.

    Guarantee: for each example, with probability >= 1 − settings.failure_prob over the draws: if it is not abstained,
    `prediction` is the class of the smoothed classifier, and no change of the input of size below `radius` (in
    settings.norm; any rule but `as-published`) makes it another one.
    """

    settings: CertifySettings
    sensitivity: Sensitivity
    published_sensitivity: float
    """The paper's own Δ, which only the rule `as-published` uses."""
    index: NDArray[np.int64]
    prediction: NDArray[np.int64]
    """The class the selection draws chose; without meaning where abstained."""
    abstained: NDArray[np.bool_]
    """The draws do not prove that the prediction is the smoothed classifier's class."""
    answer: NDArray[Any]
    """To "is a radius of at least settings.radius proven?": yes; no, and by no number of draws (with the way the other
    classes are bounded); or open. Empty if nothing was asked."""
    draws: NDArray[np.int64]
    """Counted draws, besides settings.selection_draws."""
    p_lower: Array
    q_upper: Array
    rounding: Array
    """What the rounding of the layer may add to a move of it, in standard deviations; taken off before the radius."""
    input_path: str
    """`traced`: the whole way of the input to the noisy layer was seen. Else why it was only compared at the inputs."""
    radius: dict[str, Array]
    """By rule; 0 where nothing is proven. `as-published` is no guarantee."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def noise(self) -> str:
        """Where the draws came from, and for which inputs they are evidence."""
        return self.settings.noise

    def in_norm(self, norm: str, model: NoisyNetwork, sensitivity: Sensitivity | None = None) -> "Certificates":
        """Return the same certificates with radii in another norm: the votes are the same, only Δ differs."""
        settings = replace(self.settings, norm=norm, radius=None, tolerance=None)
        bound = sensitivity_of(model, norm, sensitivity)
        published = published_whitened_sensitivity(model, bound)
        return replace(
            self,
            settings=settings,
            sensitivity=bound,
            published_sensitivity=published,
            answer=np.full(len(self), ""),
            radius=radii_by_rule(self.p_lower, self.q_upper, bound.upper, published, self.rounding),
        )


def sensitivity_of(model: NoisyNetwork, norm: str, given: Sensitivity | None) -> Sensitivity:
    """Return Δ of the model in `norm`: the given one if it fits, else computed and proven now."""
    if given is None:
        return model.sensitivity(norm)  # type: ignore[arg-type]
    if given.norm != norm:
        raise InvalidInputError(f"the given sensitivity is in {given.norm}, the radii are asked in {norm}")
    if np.shape(given.direction) != (math.prod(model.input_shape),):
        raise InvalidInputError(f"the given sensitivity is of {np.size(given.direction)} inputs, the model has others")
    attained = float(np.linalg.norm(model.whitening * model.linear_map().apply(given.direction[:, None])[:, 0]))
    if not given.upper >= attained * (1 - 1e-9):
        raise InvalidInputError(
            f"the given sensitivity is {given.upper:g}, but its own direction moves the layer by {attained:g}; "
            "valid: what model.sensitivity(norm) returns"
        )
    return given


def published_whitened_sensitivity(model: NoisyNetwork, proven: Sensitivity) -> float:
    """Return the paper's Δ of the layer, in standard deviations per unit of input. **No guarantee.**

    The paper has one for l_inf only; in the other norms its rule is taken with the proven Δ.
    """
    if proven.norm != "linf":
        return proven.upper
    variance = 1 / model.whitening**2
    return published_sensitivity(model.linear_map(), variance / variance.sum()) / float(np.sqrt(variance.mean()))
