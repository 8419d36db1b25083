"""What an attack is measured with: votes of clean images and certificates, which all cells of a run share."""

__all__ = ["INTERVAL_TOLERANCE", "EvaluationSettings", "Measurement", "make_certifier"]

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.ball import PIXELS
from securesgd.attacks.harness import AttackedExamples, Certifier, attack_examples, clean_votes
from securesgd.attacks.projected_gradient import Progress
from securesgd.attacks.sanity_checks import SanityWarning, probe_attack
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.certify import certify
from securesgd.certificates.intervals import has_interval_bounds
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL, MAX_DRAWS
from securesgd.certificates.run_certificates import SENSITIVITIES
from securesgd.certificates.sensitivity import known_sensitivity
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.processes import Processes
from securesgd.theory import Sensitivity
from securesgd.validate import validate_count

INTERVAL_TOLERANCE = 1e-3
"""Of interval radii beside an attack."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How attacks are measured: part of what a cell is."""

    draws: int = 1000
    """Votes per image; a model without noise votes once."""
    certify_draws: int = 1000
    """Draws of each certificate; 0 for none. Interval certificates of a model without noise draw nothing."""
    failure_prob: float = 0.001
    """Of each certificate, and of the verdict that one is contradicted."""

    def __post_init__(self) -> None:
        validate_count("draws", self.draws, 1, MAX_DRAWS)
        validate_count("certify_draws", self.certify_draws, 0, MAX_DRAWS)
        if not 0 < self.failure_prob < 1:
            raise InvalidInputError(f"failure_prob is {self.failure_prob!r}; valid: between 0 and 1")


class Measurement:
    """The examples of a run with their clean votes and certificates, which all cells share.

    Sensitivities of the norms that are to be certified are proven, or read, by the first process.
    """

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        settings: EvaluationSettings,
        norms: Iterable[str],
    ) -> None:
        self.model, self.inputs, self.targets, self.settings = model, inputs, targets, settings
        self._certifiers: dict[tuple[str, int], Certifier | None] = {}
        self._votes: dict[tuple[int, bytes], Tensor] = {}
        self._bounds: dict[str, Sensitivity] = {}
        if isinstance(model, NoisyNetwork) and settings.certify_draws:
            self._bounds = Processes().on_first(
                lambda: {norm: known_sensitivity(model, norm, folder / SENSITIVITIES) for norm in sorted(norms)}
            )

    def probe(self, attack: AttackSettings) -> list[SanityWarning]:
        """Return the warnings of an attack's sanity checks."""
        return probe_attack(self.model, self.inputs, self.targets, attack)

    def attack_part(self, attack: AttackSettings, part: NDArray[np.int64], on_progress: Progress) -> AttackedExamples:
        """Attack and measure a part of the examples."""
        return attack_examples(
            self.model, self.inputs[part], self.targets[part], part, attack,
            draws=self.settings.draws, clean=self._clean_votes(part, attack.seed),
            certifier=self._certifier(attack), on_progress=on_progress,
        )  # fmt: skip

    def _clean_votes(self, part: NDArray[np.int64], seed: int) -> Tensor:
        key = (seed, part.tobytes())
        if key not in self._votes:
            self._votes[key] = clean_votes(self.model, self.inputs[part], part, self.settings.draws, seed)
        return self._votes[key]

    def _certifier(self, attack: AttackSettings) -> Certifier | None:
        key = (attack.norm, attack.seed)
        if key not in self._certifiers:
            bound = self._bounds.get(attack.norm)
            self._certifiers[key] = make_certifier(self.model, *key, self.settings, bound)
        return self._certifiers[key]


def make_certifier(
    model: nn.Module, norm: str, seed: int, settings: EvaluationSettings, bound: Sensitivity | None
) -> Certifier | None:
    """Return a function that certifies images in `norm`, or None without draws for it.

    `bound` is the proven sensitivity of a noisy model in this norm; if it is None, it is proven at each use.

    A model without noise is certified by intervals, in linf: a change of l2 size μ is one of linf size at most μ, so
    its radii hold in every norm. None if one of its layers has no interval bounds. Certificates of clean images are
    kept from cell to cell; those of attacked images have noise of their own.
    """
    if settings.certify_draws == 0:
        return None
    known: dict[bytes, dict[str, NDArray[Any]]] = {}
    if not isinstance(model, NoisyNetwork):
        return _interval_certifier(model, known)

    def certifier(images: Tensor, indices: NDArray[np.int64], place: str) -> dict[str, NDArray[Any]]:
        key = indices.tobytes()
        if place == "clean" and key in known:
            return known[key]
        certify_settings = CertifySettings(
            norm=norm,
            draws=settings.certify_draws,
            failure_prob=settings.failure_prob,
            seed=2 * seed + (place != "clean"),
        )
        certificates = certify(model, images, certify_settings, indices=indices, sensitivity=bound)
        result = {
            "prediction": certificates.prediction,
            "tight": np.where(certificates.abstained, 0.0, certificates.radius["tight"]),
            "as-published": certificates.radius["as-published"],
        }
        if place == "clean":
            known[key] = result
        return result

    return certifier


def _interval_certifier(model: nn.Module, known: dict[bytes, dict[str, NDArray[Any]]]) -> Certifier:
    """Return a function that certifies images by intervals; nothing, if a layer of the model has none."""

    def certifier(images: Tensor, indices: NDArray[np.int64], place: str) -> dict[str, NDArray[Any]]:
        key = indices.tobytes()
        if place == "clean" and key in known:
            return known[key]
        if not has_interval_bounds(model, tuple(images.shape[1:])):
            return {}
        in_range = bool(((images >= PIXELS[0]) & (images <= PIXELS[1])).all())
        settings = CertifySettings(
            family=INTERVAL, tolerance=INTERVAL_TOLERANCE, input_range=PIXELS if in_range else None
        )  # without a range a certificate says more
        certificates = certify(model, images, settings, indices=indices)
        result = {"prediction": certificates.prediction, "tight": certificates.radius["tight"]}
        if place == "clean":
            known[key] = result
        return result

    return certifier
