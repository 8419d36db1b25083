"""Predictions with their proof: `verify` for one input and radius, `CertifiedClassifier` for arrays of inputs."""

__all__ = ["CertifiedClassifier", "Verified", "verify"]

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from securesgd.certificates.certify import certify
from securesgd.certificates.record import Certificates, CertifySettings
from securesgd.certificates.sensitivity import fingerprint, model_sensitivity
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory import Sensitivity


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The answer of Algorithm 1 for one input."""

    is_robust: bool
    """Proven: no change of the input smaller than the given radius changes the class of the smoothed classifier."""
    label: int | None
    """The smoothed classifier's class; None if the draws do not tell."""
    radius: float
    """mu_max, the largest radius these draws prove. Drawing stops when `is_robust` is known: more may be provable."""
    draws: int
    noise: str
    """Where the draws came from: `fresh` ones are evidence for any input, `seeded` ones for inputs fixed beforehand."""


def verify(model: nn.Module, x: Tensor, radius: float, **settings: object) -> Verified:
    """Return whether the prediction for one input is proven within `radius`, its label, and the radius proven.

    Guarantee: the answer is wrong with probability at most `failure_prob` (0.001 if not given) over the draws, which
    are fresh: whoever chose the input cannot have known them. With a `seed` they could.
    Raises: InvalidInputError as `certify` does.

    `settings` are those of `CertifySettings`: norm, draws, failure_prob, seed, …
    """
    certificate = certify(model, x.unsqueeze(0), CertifySettings(radius=radius, **settings))  # type: ignore[arg-type]
    return Verified(
        is_robust=bool(certificate.answer[0] == "yes"),
        label=None if certificate.abstained[0] else int(certificate.prediction[0]),
        radius=float(certificate.radius["tight"][0]),
        draws=int(certificate.draws[0]),
        noise=certificate.noise,
    )


class CertifiedClassifier:
    """A noisy network as a scikit-learn user expects it: arrays in, predictions out, masked where it abstains.

    Guarantee: each prediction that is not masked is the smoothed classifier's class with probability
    >= 1 − failure_prob; `certify` gives radii. The weights may change between calls; a call is about the present ones.
    Every call draws fresh noise, so inputs may come from anybody. With a seed in the settings, calls repeat; then the
    inputs must have been fixed beforehand, and the same row number (or index) has the same noise in every call.
    """

    def __init__(self, model: nn.Module, settings: CertifySettings | None = None) -> None:
        if not isinstance(model, NoisyNetwork):
            raise InvalidInputError(f"{type(model).__name__} has no noise in its first layer; wrap it in NoisyNetwork")
        self.model, self.settings = model, settings or CertifySettings(draws=1_000)
        self._known: tuple[str, Sensitivity] | None = None

    def predict(self, X: ArrayLike | Tensor) -> np.ma.MaskedArray[Any, np.dtype[np.int64]]:
        """Return a class per row of X, masked where the draws do not prove one (`.filled(-1)` for a plain array)."""
        # With radius 0 drawing stops as soon as the top class is proven.
        certificates = self._certify(X, replace(self.settings, radius=0.0, tolerance=None))
        return np.ma.MaskedArray(certificates.prediction, mask=certificates.abstained)

    def certify(self, X: ArrayLike | Tensor, indices: ArrayLike | None = None) -> Certificates:
        """Return the certificates of the rows of X by the classifier's settings."""
        return self._certify(X, self.settings, indices)

    def score(self, X: ArrayLike | Tensor, y: ArrayLike) -> float:
        """Return the share of rows predicted right; an abstention is wrong."""
        predicted = self.predict(X)
        return float(((predicted.data == np.asarray(y)) & ~np.ma.getmaskarray(predicted)).mean())

    def _certify(
        self, X: ArrayLike | Tensor, settings: CertifySettings, indices: ArrayLike | None = None
    ) -> Certificates:
        inputs = X if isinstance(X, Tensor) else torch.as_tensor(np.asarray(X), dtype=torch.float32)
        # Δ of other weights, or of another stride, padding or dilation, would prove nothing.
        weights = f"{fingerprint(self.model.noisy)} {self.model.noisy.layer!r}"
        if self._known is None or self._known[0] != weights:
            self._known = weights, model_sensitivity(self.model, settings.norm, None)
        return certify(self.model, inputs, settings, indices=indices, sensitivity=self._known[1])
