"""Attack a run: its model and test examples, a grid of attacks and budgets, certificates beside them, rows on disk.

Examples are attacked in parts, and a part is on disk as soon as it is done: the same call goes on where it was, and
asking for more examples attacks only the new ones.
"""

__all__ = ["Evaluation", "EvaluationSettings", "certifier_of", "evaluate_run"]

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.cells import Cells
from securesgd.attacks.harness import Certifier, attack_examples, clean_votes
from securesgd.attacks.robust_accuracy import attack_summary
from securesgd.attacks.sanity_checks import Suspicion, probe, suspicions_of_rows
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.certify import certify
from securesgd.certificates.record import MAX_DRAWS, CertifySettings
from securesgd.certificates.run_certificates import SENSITIVITIES
from securesgd.certificates.sensitivity import fingerprint, known_sensitivity
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.validate import validate_count

PART = 100
"""Examples between two writes."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How attacks are measured: part of what a cell is."""

    draws: int = 1000
    """Votes per image; a model without noise votes once."""
    certify_draws: int = 1000
    """Draws of each certificate; 0 for none."""
    failure_prob: float = 0.001
    """Of each certificate, and of the verdict that one is contradicted."""

    def __post_init__(self) -> None:
        validate_count("draws", self.draws, 1, MAX_DRAWS)
        validate_count("certify_draws", self.certify_draws, 0, MAX_DRAWS)
        if not 0 < self.failure_prob < 1:
            raise InvalidInputError(f"failure_prob is {self.failure_prob!r}; valid: between 0 and 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The cells that were asked for, and what speaks against believing them."""

    cells: dict[str, dict[str, Any]]
    """By name: settings, counts, `summary` (accuracies, intervals, sandwich)."""
    suspicions: list[Suspicion]
    images: dict[str, tuple[NDArray[np.int64], Tensor]] = field(default_factory=dict)
    """By name: indices and attacked images of what was measured now, for a picture."""

    @property
    def holds(self) -> bool:
        """Whether certified <= attacked <= clean in every cell, within the Monte-Carlo error."""
        return all(cell["summary"]["sandwich"]["holds"] for cell in self.cells.values())


def evaluate_run(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    attacks: Sequence[AttackSettings],
    settings: EvaluationSettings | None = None,
    *,
    classes: int | None = None,
    again: bool = False,
    keep_images: bool = False,
    probes: bool = True,
    on_progress: Callable[[AttackSettings, float], None] | None = None,
) -> Evaluation:
    """Attack examples 0, 1, … of a run's test set with each of `attacks`.

    A cell that is there with the same settings is not measured again (unless `again`, which replaces it); one that is
    there in part is finished. `probes` looks for signs that an attack is not to be believed, at its largest budget.
    `on_progress` gets the cell at work and the share of it that is done.
    Raises: InvalidInputError if the data do not fit the model, or another process attacks the folder;
    DamagedFileError if the files there are broken or about other weights. Nothing is overwritten then.
    """
    settings = settings or EvaluationSettings()
    outputs = _require_fit(model, inputs, targets, classes)
    measure = _Measurement(folder, model, inputs, targets, settings)
    with Cells.opened(folder, fingerprint(model)) as cells:
        names, pictures = {}, {}
        for attack in attacks:
            name = names[attack] = cells.begin(attack, asdict(settings), again=again)
            pictures[name] = measure.rest_of(cells, name, attack, keep_images, on_progress)
            if probes and attack.budget == max(a.budget for a in attacks if _kind(a) == _kind(attack)):
                entry = cells.entries[name]
                if "probes" not in entry:
                    entry["probes"] = [found.json() for found in probe(model, inputs, targets, attack)]
            mine = cells.of(name, len(inputs))
            cells.entries[name]["summary"] = attack_summary(
                mine, classes=outputs, failure_prob=settings.failure_prob,
                certificate_failure_prob=settings.failure_prob,
            )  # fmt: skip
        asked = {name: cells.entries[name] for name in names.values()}
        suspicions = _suspicions(cells)
        cells.suspicions = [found.json() for found in suspicions]
        cells.write()
    tried = {attack.attack for attack in attacks}
    return Evaluation(
        cells=asked,
        suspicions=[found for found in suspicions if found.attack in tried],
        images={name: shown for name, shown in pictures.items() if shown is not None},
    )


class _Measurement:
    """What stays the same from cell to cell: the examples, their clean votes and certificates."""

    def __init__(
        self, folder: Path, model: nn.Module, inputs: Tensor, targets: Tensor, settings: EvaluationSettings
    ) -> None:
        self.folder, self.model, self.inputs, self.targets, self.settings = folder, model, inputs, targets, settings
        self._certifiers: dict[tuple[str, int], Certifier | None] = {}
        self._votes: dict[tuple[int, bytes], Tensor] = {}

    def rest_of(
        self,
        cells: Cells,
        name: str,
        attack: AttackSettings,
        keep_images: bool,
        on_progress: Callable[[AttackSettings, float], None] | None,
    ) -> tuple[NDArray[np.int64], Tensor] | None:
        """Measure the examples that a cell does not have yet; return their indices and images."""
        there = {row["index"] for row in cells.of(name)}
        todo = np.array([i for i in range(len(self.inputs)) if i not in there], dtype=np.int64)
        images = []
        for start in range(0, len(todo), PART):
            part, began = todo[start : start + PART], time.perf_counter()

            def watch(share: float, start: int = start, size: int = len(part)) -> None:
                if on_progress is not None:
                    on_progress(attack, (start + 0.999 * share * size) / len(todo))

            watch(0.0)
            found = attack_examples(
                self.model, self.inputs[part], self.targets[part], part, attack,
                draws=self.settings.draws, clean=self._clean(part, attack.seed),
                certifier=self._certifier(attack), on_progress=watch,
            )  # fmt: skip
            cells.add(name, found, time.perf_counter() - began, keep_images=keep_images)
            images.append(found.images)
        if on_progress is not None:
            on_progress(attack, 1.0)
        return (todo, torch.cat(images)) if images else None

    def _clean(self, part: NDArray[np.int64], seed: int) -> Tensor:
        key = (seed, part.tobytes())
        if key not in self._votes:
            self._votes[key] = clean_votes(self.model, self.inputs[part], part, self.settings.draws, seed)
        return self._votes[key]

    def _certifier(self, attack: AttackSettings) -> Certifier | None:
        key = (attack.norm, attack.seed)
        if key not in self._certifiers:
            self._certifiers[key] = certifier_of(self.model, *key, self.settings, self.folder / SENSITIVITIES)
        return self._certifiers[key]


def certifier_of(
    model: nn.Module, norm: str, seed: int, settings: EvaluationSettings, sensitivities: Path
) -> Certifier | None:
    """Return a function that certifies images in `norm`, or None for a model without noise or without draws for it.

    Certificates of clean images are kept from cell to cell; those of attacked images have noise of their own.
    """
    if not isinstance(model, NoisyNetwork) or settings.certify_draws == 0:
        return None
    bound = known_sensitivity(model, norm, sensitivities)
    known: dict[bytes, dict[str, NDArray[Any]]] = {}

    def certifier(images: Tensor, indices: NDArray[np.int64], place: str) -> dict[str, NDArray[Any]]:
        key = indices.tobytes()
        if place == "clean" and key in known:
            return known[key]
        asked = CertifySettings(
            norm=norm,
            draws=settings.certify_draws,
            failure_prob=settings.failure_prob,
            seed=2 * seed + (place != "clean"),
        )
        found = certify(model, images, asked, indices=indices, sensitivity=bound)
        answer = {
            "prediction": found.prediction,
            "tight": np.where(found.abstained, 0.0, found.radius["tight"]),
            "as-published": found.radius["as-published"],
        }
        if place == "clean":
            known[key] = answer
        return answer

    return certifier


def _suspicions(cells: Cells) -> list[Suspicion]:
    """Return everything that speaks against the folder's cells: of the harness, of the probes, of the rows together."""
    found = []
    for name, entry in cells.entries.items():
        if entry["outside"]:
            words = (
                f"{entry['outside']} of {entry['attacked']} images of {name} came back outside the budget or the pixel "
                "range and were clipped: the attack breaks its own rules."
            )
            found.append(Suspicion(name="left-the-budget", attack=entry["attack"]["attack"], words=words))
        found += [Suspicion(**known) for known in entry.get("probes", ())]
    rows = {name: mine for name in cells.entries if (mine := cells.of(name))}
    return found + suspicions_of_rows(rows, {name: _besides_budget(cells.entries[name]) for name in rows})


def _besides_budget(entry: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in entry["attack"].items() if name != "budget"}, sort_keys=True)


def _kind(attack: AttackSettings) -> tuple[str, str, str]:
    return attack.attack, attack.protocol, attack.norm


def _require_fit(model: nn.Module, inputs: Tensor, targets: Tensor, classes: int | None) -> int:
    """Return the number of classes of the model; raise if the examples are not of its kind."""
    device = next(model.parameters(), inputs).device
    try:
        with torch.no_grad():
            outputs = model(inputs[:1].to(device)).shape[1]
    except RuntimeError as error:
        shape, reason = list(inputs.shape[1:]), str(error).splitlines()[0]
        raise InvalidInputError(f"the data do not fit the model: inputs of shape {shape} ({reason})") from None
    if classes is not None and classes != outputs:
        raise InvalidInputError(f"the data do not fit the model: {classes} classes, the model has {outputs}")
    if len(targets) < len(inputs) or int(targets.max()) >= outputs:
        raise InvalidInputError(
            f"the data do not fit the model: labels up to {int(targets.max())}, the model has {outputs} classes"
        )
    return outputs
