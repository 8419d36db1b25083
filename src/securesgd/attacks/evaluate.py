"""Attack a run: its model and test examples, a grid of attacks and budgets, certificates beside them, rows on disk.

Examples are attacked in parts, and a part is on disk as soon as it is done: the same call resumes a stopped one, and
asking for more examples attacks only the new ones.
"""

__all__ = ["Evaluation", "EvaluationSettings", "collect_warnings", "evaluate_run"]

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.cells import Cells, cell_name
from securesgd.attacks.harness import AttackedExamples
from securesgd.attacks.measurement import EvaluationSettings, Measurement
from securesgd.attacks.objective import evaluation_mode
from securesgd.attacks.robust_accuracy import PLACES, Place, attack_balance, attack_summary
from securesgd.attacks.sanity_checks import SanityWarning, check_rows
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.sensitivity import fingerprint
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.processes import Processes, share_out
from securesgd.theory.class_balance import WARNING, ClassBalance
from securesgd.validate import validate_count

PART = 100
"""Examples between two writes."""


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
    Under torch.distributed processes share the parts of all cells, and the first one writes; rows are those that a
    single process makes, bit for bit, and every process returns the whole.
    Raises: InvalidInputError if the data do not fit the model or are not those of a cell on disk, or another process
    attacks the folder; DamagedFileError if the files there are damaged or were made with other weights. Nothing is
    overwritten then.
    """
    settings, data = settings or EvaluationSettings(), examples_digest(inputs, targets)
    if validate_count("examples", examples, 0):
        inputs, targets = inputs[:examples], targets[:examples]
    outputs, processes = _require_fit(model, inputs, targets, classes), Processes()
    for attack in attacks:
        attack.require_target_below(outputs)
    with ExitStack() as stack:
        cells = processes.on_first(lambda: stack.enter_context(Cells.open(folder, fingerprint(model))))
        names = {attack: cell_name(attack, asdict(settings)) for attack in attacks}
        jobs = _open_jobs(cells, names, len(inputs), data, again=again, probes=probes)
        measure = Measurement(folder, model, inputs, targets, settings, {job.attack.norm for job in jobs})
        last = {job.name: job for job in jobs}
        images: dict[str, list[tuple[NDArray[np.int64], Tensor]]] = {}
        balances: dict[str, dict[Place, ClassBalance]] = {}

        def do(job: "_Job") -> tuple[AttackedExamples | list[SanityWarning], float]:
            def watch(share: float) -> None:
                if on_progress is not None:
                    on_progress(job.attack, min(1.0, (job.number + 0.999 * share * processes.count) / len(jobs)))

            began = time.perf_counter()
            watch(0.0)
            done = measure.probe(job.attack) if job.part is None else measure.attack_part(job.attack, job.part, watch)
            return done, time.perf_counter() - began

        def keep(job: "_Job", done: AttackedExamples | list[SanityWarning], seconds: float) -> None:
            if job.begins:
                cells.begin(job.attack, asdict(settings), data, again=again)
            if isinstance(done, AttackedExamples):
                cells.add(job.name, done, seconds, keep_images=keep_images)
            else:
                cells.entries[job.name]["probes"] = [warning.json() for warning in done]
            if job is last[job.name]:
                summarise(job.name)

        def summarise(name: str) -> None:
            rows = cells.cell_rows(name, len(inputs))
            balances[name] = {place: attack_balance(rows, place, outputs) for place in PLACES}
            cells.entries[name]["summary"] = attack_summary(
                rows, classes=outputs, failure_prob=settings.failure_prob,
                certificate_failure_prob=settings.failure_prob if isinstance(model, NoisyNetwork) else 0.0,
            )  # fmt: skip

        for job, (done, seconds) in share_out(jobs, do, processes):
            processes.on_first(lambda job=job, done=done, seconds=seconds: keep(job, done, seconds))  # type: ignore[misc]
            if isinstance(done, AttackedExamples) and job.part is not None:
                images.setdefault(job.name, []).append((job.part, done.images))

        def finish() -> Evaluation:
            for name in names.values():
                if name not in balances:
                    summarise(name)
            warnings = collect_warnings(cells)
            cells.warnings = [warning.json() for warning in warnings]
            cells.write()
            evaluated = {attack.attack for attack in attacks}
            return Evaluation(
                cells={name: cells.entries[name] for name in names.values()},
                warnings=[warning for warning in warnings if warning.attack in evaluated],
                balances={name: balances[name] for name in names.values()},
            )

        evaluation = processes.on_first(finish)
    if on_progress is not None:
        on_progress(attacks[-1], 1.0)
    return replace(
        evaluation,
        images={
            name: (np.concatenate([part for part, _ in parts]), torch.cat([image for _, image in parts]))
            for name, parts in images.items()
        },
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """What one process does at a time: attack a part of a cell's examples, or probe its attack."""

    number: int
    name: str
    attack: AttackSettings
    part: NDArray[np.int64] | None
    """None: run the sanity checks of the attack."""
    begins: bool
    """Whether it is the first of its cell."""


def _open_jobs(
    cells: Cells, names: Mapping[AttackSettings, str], examples: int, data: str, *, again: bool, probes: bool
) -> list[_Job]:
    """Return what is missing of the cells, one cell after another.

    Random numbers of an attack belong to a part of the examples, so a part is never divided between processes.
    Raises: InvalidInputError if a cell has rows of other data, and is not measured again.
    """
    jobs: list[_Job] = []
    for attack, name in names.items():
        if not again:
            cells.require_data(name, data)
        measured = set() if again else {row["index"] for row in cells.cell_rows(name)}
        missing = np.array([i for i in range(examples) if i not in measured], dtype=np.int64)
        parts: list[NDArray[np.int64] | None] = [missing[at : at + PART] for at in range(0, len(missing), PART)]
        is_largest = attack.budget == max(a.budget for a in names if _kind(a) == _kind(attack))
        if probes and is_largest and (again or "probes" not in cells.entries.get(name, {})):
            parts.append(None)
        jobs += [
            _Job(number=len(jobs) + i, name=name, attack=attack, part=part, begins=i == 0)
            for i, part in enumerate(parts)
        ]
    return jobs


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
