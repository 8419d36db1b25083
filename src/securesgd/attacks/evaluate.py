"""Attack a run: its model and test examples, a grid of attacks and budgets, certificates beside them, rows on disk.

Examples are attacked in parts, and a part is on disk as soon as it is done: the same call resumes a stopped one, and
asking for more examples attacks only the new ones.
"""

__all__ = [
    "INTERVAL_TOLERANCE",
    "Evaluation",
    "EvaluationSettings",
    "collect_warnings",
    "evaluate_run",
    "make_certifier",
]

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

from securesgd.attacks.ball import PIXELS
from securesgd.attacks.cells import Cells
from securesgd.attacks.harness import Certifier, attack_examples, clean_votes
from securesgd.attacks.objective import evaluation_mode
from securesgd.attacks.projected_gradient import Progress
from securesgd.attacks.robust_accuracy import PLACES, Place, attack_balance, attack_summary
from securesgd.attacks.sanity_checks import SanityWarning, check_rows, probe_attack
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.certify import certify
from securesgd.certificates.intervals import has_interval_bounds
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL, MAX_DRAWS
from securesgd.certificates.run_certificates import SENSITIVITIES
from securesgd.certificates.sensitivity import fingerprint, known_sensitivity
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory.class_balance import WARNING, ClassBalance
from securesgd.validate import validate_count

PART = 100
"""Examples between two writes."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The cells of one call, and the sanity warnings about their attacks."""

    cells: dict[str, dict[str, Any]]
    """By name: settings, counts, `summary` (accuracies, intervals, sandwich)."""
    warnings: list[SanityWarning]
    balances: dict[str, dict[Place, ClassBalance]]
    """By name: what the accuracies are worth, class by class, `clean` and `attacked`."""
    images: dict[str, tuple[NDArray[np.int64], Tensor]] = field(default_factory=dict)
    """By name: indices and attacked images of the cells measured by this call; those of the others were on disk."""
    picture: Path | None = None
    """The gallery of the strongest attack, if it was drawn."""

    @property
    def holds(self) -> bool:
        """Whether certified <= attacked <= clean in every cell, within the Monte-Carlo error."""
        return all(cell["summary"]["sandwich"]["holds"] for cell in self.cells.values())

    def __str__(self) -> str:
        lines = [
            f"{cell['attack']['attack']}, {cell['attack']['norm']} {cell['attack']['budget']:g}, "
            f"{cell['summary']['examples']} examples: {cell['summary']['clean_accuracy']['share']:.3f} right, "
            f"{cell['summary']['accuracy']['share']:.3f} under attack"
            for cell in self.cells.values()
        ]
        warnings = (balance["clean"].warning() for balance in self.balances.values())
        return "\n".join([*lines, *dict.fromkeys(WARNING + warning for warning in warnings if warning)])

    def json(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the record as JSON holds it, with the balance of the classes beside the summary of each cell."""
        cells = {
            name: cell
            | {"balance": {place: balance.json(class_names) for place, balance in self.balances[name].items()}}
            for name, cell in self.cells.items()
        }
        warnings = [warning.json() for warning in self.warnings]
        return {"cells": cells, "suspicions": warnings, "sandwich_holds": self.holds}


def evaluate_run(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    attacks: Sequence[AttackSettings],
    settings: EvaluationSettings | None = None,
    *,
    examples: int = 0,
    classes: int | None = None,
    again: bool = False,
    keep_images: bool = False,
    probes: bool = True,
    on_progress: Callable[[AttackSettings, float], None] | None = None,
) -> Evaluation:
    """Attack examples 0, 1, … of a run's test set with each of `attacks`: the first `examples`, or all if 0.

    A cell on disk with the same settings is not measured again (unless `again`, which replaces it); one that is there
    in part is finished. `probes` runs the sanity checks of each attack at its largest budget. `on_progress` gets the
    attack at work and the share of the whole call that is done.
    Raises: InvalidInputError if the data do not fit the model or are not those of a cell on disk, or another process
    attacks the folder; DamagedFileError if the files there are damaged or were made with other weights. Nothing is
    overwritten then.
    """
    settings, data = settings or EvaluationSettings(), examples_digest(inputs, targets)
    if validate_count("examples", examples, 0):
        inputs, targets = inputs[:examples], targets[:examples]
    outputs = _require_fit(model, inputs, targets, classes)
    measure = _Measurement(folder, model, inputs, targets, settings)
    with Cells.open(folder, fingerprint(model)) as cells:
        names, images, balances = {}, {}, {}
        for number, attack in enumerate(attacks):
            name = names[attack] = cells.begin(attack, asdict(settings), data, again=again)

            def watch(share: float, attack: AttackSettings = attack, number: int = number) -> None:
                if on_progress is not None:
                    on_progress(attack, (number + share) / len(attacks))

            images[name] = measure.finish_cell(cells, name, attack, keep_images, watch)
            if probes and attack.budget == max(a.budget for a in attacks if _kind(a) == _kind(attack)):
                entry = cells.entries[name]
                if "probes" not in entry:
                    entry["probes"] = [warning.json() for warning in probe_attack(model, inputs, targets, attack)]
            rows = cells.cell_rows(name, len(inputs))
            balances[name] = {place: attack_balance(rows, place, outputs) for place in PLACES}
            cells.entries[name]["summary"] = attack_summary(
                rows, classes=outputs, failure_prob=settings.failure_prob,
                certificate_failure_prob=settings.failure_prob if isinstance(model, NoisyNetwork) else 0.0,
            )  # fmt: skip
        warnings = collect_warnings(cells)
        cells.warnings = [warning.json() for warning in warnings]
        cells.write()
    evaluated = {attack.attack for attack in attacks}
    return Evaluation(
        cells={name: cells.entries[name] for name in names.values()},
        warnings=[warning for warning in warnings if warning.attack in evaluated],
        balances=balances,
        images={name: measured for name, measured in images.items() if measured is not None},
    )


class _Measurement:
    """The examples of a run with their clean votes and certificates, which all cells share."""

    def __init__(
        self, folder: Path, model: nn.Module, inputs: Tensor, targets: Tensor, settings: EvaluationSettings
    ) -> None:
        self.folder, self.model, self.inputs, self.targets, self.settings = folder, model, inputs, targets, settings
        self._certifiers: dict[tuple[str, int], Certifier | None] = {}
        self._votes: dict[tuple[int, bytes], Tensor] = {}

    def finish_cell(
        self, cells: Cells, name: str, attack: AttackSettings, keep_images: bool, on_progress: Progress
    ) -> tuple[NDArray[np.int64], Tensor] | None:
        """Measure the examples that a cell does not have yet; return their indices and images, None if it has all."""
        measured = {row["index"] for row in cells.cell_rows(name)}
        missing = np.array([i for i in range(len(self.inputs)) if i not in measured], dtype=np.int64)
        images = []
        for start in range(0, len(missing), PART):
            part, began = missing[start : start + PART], time.perf_counter()

            def watch(share: float, start: int = start, size: int = len(part)) -> None:
                on_progress((start + 0.999 * share * size) / len(missing))

            watch(0.0)
            examples = attack_examples(
                self.model, self.inputs[part], self.targets[part], part, attack,
                draws=self.settings.draws, clean=self._clean_votes(part, attack.seed),
                certifier=self._certifier(attack), on_progress=watch,
            )  # fmt: skip
            cells.add(name, examples, time.perf_counter() - began, keep_images=keep_images)
            images.append(examples.images)
        on_progress(1.0)
        return (missing, torch.cat(images)) if images else None

    def _clean_votes(self, part: NDArray[np.int64], seed: int) -> Tensor:
        key = (seed, part.tobytes())
        if key not in self._votes:
            self._votes[key] = clean_votes(self.model, self.inputs[part], part, self.settings.draws, seed)
        return self._votes[key]

    def _certifier(self, attack: AttackSettings) -> Certifier | None:
        key = (attack.norm, attack.seed)
        if key not in self._certifiers:
            self._certifiers[key] = make_certifier(self.model, *key, self.settings, self.folder / SENSITIVITIES)
        return self._certifiers[key]


def make_certifier(
    model: nn.Module, norm: str, seed: int, settings: EvaluationSettings, sensitivities: Path
) -> Certifier | None:
    """Return a function that certifies images in `norm`, or None without draws for it.

    A model without noise is certified by intervals, in linf: a change of l2 size μ is one of linf size at most μ, so
    its radii hold in every norm. None if one of its layers has no interval bounds. Certificates of clean images are
    kept from cell to cell; those of attacked images have noise of their own.
    """
    if settings.certify_draws == 0:
        return None
    known: dict[bytes, dict[str, NDArray[Any]]] = {}
    if not isinstance(model, NoisyNetwork):
        return _interval_certifier(model, known)
    bound = known_sensitivity(model, norm, sensitivities)

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


def collect_warnings(cells: Cells) -> list[SanityWarning]:
    """Return all warnings about the folder's cells: of the harness, of the probes, of the rows compared."""
    warnings = []
    for name, entry in cells.entries.items():
        if entry["outside"]:
            words = (
                f"{entry['outside']} of {entry['attacked']} images of {name} came back outside the budget or the pixel "
                "range and were clipped: the attack breaks its own rules."
            )
            warnings.append(SanityWarning(name="left-the-budget", attack=entry["attack"]["attack"], words=words))
        warnings += [SanityWarning(**record) for record in entry.get("probes", ())]
    rows = {name: cell_rows for name in cells.entries if (cell_rows := cells.cell_rows(name))}
    return warnings + check_rows(rows, {name: _settings_but_budget(cells.entries[name]) for name in rows})


def _settings_but_budget(entry: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in entry["attack"].items() if name != "budget"}, sort_keys=True)


def _kind(attack: AttackSettings) -> tuple[str, str, str]:
    return attack.attack, attack.protocol, attack.norm


def _require_fit(model: nn.Module, inputs: Tensor, targets: Tensor, classes: int | None) -> int:
    """Return the number of classes of the model; raise InvalidInputError if the examples do not fit it."""
    device = next(model.parameters(), inputs).device
    if not len(inputs):
        raise InvalidInputError("there are no test examples to attack")
    try:
        with torch.no_grad(), evaluation_mode(model):
            logits = model(inputs[:1].to(device))
    except Exception as error:  # whatever a model of the user raises
        shape, reason = list(inputs.shape[1:]), str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"the data do not fit the model: inputs of shape {shape} ({reason})") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        kind = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidInputError(
            f"the model returns {kind} for one example; valid: logits of shape [1, classes], at least 2 classes"
        )
    outputs = logits.shape[1]
    if classes is not None and classes != outputs:
        raise InvalidInputError(f"the data do not fit the model: {classes} classes, the model has {outputs}")
    if len(targets) < len(inputs) or int(targets.max()) >= outputs:
        raise InvalidInputError(
            f"the data do not fit the model: labels up to {int(targets.max())}, the model has {outputs} classes"
        )
    return outputs
