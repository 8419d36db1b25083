"""What a privacy budget buys, before any training: noise and minutes for each batch size and number of steps."""

__all__ = ["Plan", "PlanRow", "measured_seconds", "plan_run"]

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from securesgd.build import build_model, redistribution_release
from securesgd.config import RunConfig
from securesgd.errors import InvalidInputError
from securesgd.methods import method
from securesgd.models.interval_network import IntervalNetwork
from securesgd.privacy.accounting import epsilon_spent
from securesgd.privacy.events import SampledGaussianSteps
from securesgd.runtime.machine import torch_device
from securesgd.training.accounted_run import noise_multiplier_of
from securesgd.training.loop import per_example_cross_entropy, train
from securesgd.training.settings import TrainingSettings
from securesgd.validate import validate_count

WEAK, HOPELESS = 5.0, 1.5
"""Signal over noise of a whole run below which trainings gave poor models, and ones no better than the commonest class.

Measured on tables and digits at epsilon 0.03 to 4 (docs/how-to/plan.md).
"""
_TIMED_STEPS, _TIMED_SECONDS = 60, 3.0
"""At most so many steps are timed, and no further one after so many seconds; never fewer than four."""
_MOST_CELLS = 60


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One batch size and number of steps."""

    batch_size: int
    steps: int
    passes: float
    """Expected number of times that each example is used."""
    noise_multiplier: float
    noise_per_example: float
    """Noise multiplier over batch size: standard deviation of a step's noise in each weight, in clipping norms."""
    signal_to_noise: float
    """Of the whole run: √steps · batch size / (noise multiplier · √weights), if all gradients pointed the same way."""
    minutes: float | None
    """On this machine; None if nothing was timed."""

    @property
    def warning(self) -> str | None:
        """What training with this row will probably give, if that is bad; None otherwise."""
        if self.signal_to_noise < HOPELESS:
            return "only the commonest class will be learned"
        return "the noise will spoil much of what is learned" if self.signal_to_noise < WEAK else None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a budget buys."""

    epsilon: float
    delta: float
    examples: int
    weights: int
    """Trained parameters of the network."""
    population: int | None
    sampling_rate: float | None
    """What the configuration gives in place of the number of examples, which is then not public."""
    rows: tuple[PlanRow, ...]
    suggested: PlanRow

    @property
    def settings(self) -> str:
        """The options of `securesgd train` that ask for the suggested row."""
        row = self.suggested
        words = f"--epsilon {self.epsilon:g} --delta {self.delta:g} --set batch_size={row.batch_size} "
        words += f"--set steps={row.steps}"
        for name in ("population", "sampling_rate"):  # without it, the claim would be another one
            words += "" if getattr(self, name) is None else f" --set {name}={getattr(self, name)}"
        return words

    def json(self) -> dict[str, Any]:
        """Return the plan as JSON holds it."""
        rows = [asdict(row) | {"warning": row.warning} for row in self.rows]
        return asdict(self) | {
            "rows": rows,
            "suggested": asdict(self.suggested) | {"warning": self.suggested.warning},
            "settings": self.settings,
        }


def plan_run(
    config: RunConfig,
    examples: int,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    batch_sizes: Sequence[int] = (),
    steps: Sequence[int] = (),
    timed: bool = True,
    device: str | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return what the budget of a configuration buys for so many examples: a row per batch size and number of steps.

    Guarantee: the noise multipliers are those that training would use, by the same calibration. If the number of
    examples is not public (a sampling rate or a population is given), no row depends on it.
    Raises: InvalidInputError for a method without privacy, no epsilon, or batches larger than the data; PrivacyError.

    Without `batch_sizes` and `steps`, those of the configuration and some on either side. Minutes are of a few steps
    with random data at the smallest and the largest batch on `device`, and of calibration and accounting of each row.
    """
    training, place = config.training, torch_device(device)
    if not method(config.method).private or training.epsilon is None:
        raise InvalidInputError(f"method is {config.method} with epsilon {training.epsilon}; valid: a private method")
    validate_count("examples", examples, at_least=2)
    most = training.population if training.adjacency == "add-or-remove-one" else examples
    batches, lengths = batch_sizes or _around(training.batch_size, most), steps or _around(training.steps)
    if len(batches) * len(lengths) > _MOST_CELLS:
        raise InvalidInputError(f"{len(batches) * len(lengths)} rows are asked for; valid: at most {_MOST_CELLS}")
    model = build_model(config, input_shape, classes)
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    cells = [(replace(training, batch_size=b, steps=t)) for b in batches for t in lengths]
    for cell in cells:
        cell.rate(examples)  # refuse a batch that is too large before the first calibration
    seconds = dict.fromkeys(batches, 0.0)
    if timed:
        ends = sorted({min(batches), max(batches)})
        measured = []
        for number, batch in enumerate(ends):
            _report(on_progress, f"timing steps of {batch}", 0.5 * number / len(ends))
            settings = replace(training, batch_size=batch)
            measured.append(measured_seconds(config, settings, input_shape, classes, place))
        seconds = {b: float(np.interp(b, ends, measured)) for b in batches}
    rows = []
    for number, cell in enumerate(cells):
        _report(on_progress, f"noise for {cell.batch_size} × {cell.steps}", 0.5 + 0.5 * number / len(cells))
        rate, began = cell.rate(examples), time.perf_counter()
        noise = noise_multiplier_of(cell, rate, redistribution_release(replace(config, training=cell), model))
        calibration, began = time.perf_counter() - began, time.perf_counter()
        spent = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=cell.steps)
        epsilon_spent([spent], cell.delta, cell.accountant)
        accounting = (time.perf_counter() - began) * cell.steps / cell.block  # once for every block of steps
        rows.append(
            PlanRow(
                batch_size=cell.batch_size,
                steps=cell.steps,
                passes=rate * cell.steps,
                noise_multiplier=noise,
                noise_per_example=noise / cell.batch_size,
                signal_to_noise=math.sqrt(cell.steps / weights) * cell.batch_size / noise,
                minutes=(calibration + accounting + seconds[cell.batch_size] * cell.steps) / 60 if timed else None,
            )
        )
    return Plan(
        epsilon=training.epsilon,
        delta=training.delta,
        examples=examples,
        weights=weights,
        population=training.population,
        sampling_rate=training.sampling_rate,
        rows=tuple(rows),
        suggested=_suggested(rows, training),
    )


def measured_seconds(
    config: RunConfig,
    training: TrainingSettings,
    input_shape: tuple[int, ...],
    classes: int,
    device: torch.device | None = None,
) -> float:
    """Return the seconds that one step of training takes on this machine: the mean of a few with random data."""
    model = build_model(config, input_shape, classes).to(device)
    generator = torch.Generator().manual_seed(0)
    count = 2 * training.batch_size
    inputs = torch.rand(count, *input_shape, generator=generator)
    targets = torch.randint(classes, (count,), generator=generator)
    fast = replace(
        training, epsilon=None, noise_multiplier=1.0, noise_seed=0, steps=_TIMED_STEPS, accountant="rdp",
        sampling_rate=None, population=None,
    )  # fmt: skip
    times: list[float] = []

    def note(_: Any) -> bool:
        times.append(time.perf_counter())
        return len(times) < 5 or times[-1] - times[0] < _TIMED_SECONDS

    with tempfile.TemporaryDirectory() as folder:
        train(
            model, (inputs, targets), fast, Path(folder) / "timed",
            loss=model.loss if isinstance(model, IntervalNetwork) else per_example_cross_entropy,
            on_step=note,
        )  # fmt: skip
    return float(np.mean(np.diff(times)))


def _around(chosen: int, most: int | None = None) -> list[int]:
    """Return a number with half and twice of it, at most `most`."""
    values = {max(1, chosen // 2), chosen, 2 * chosen}
    return sorted({value if most is None else min(value, most) for value in values})


def _suggested(rows: Sequence[PlanRow], training: TrainingSettings) -> PlanRow:
    """Return the row of the configuration if it is not warned about, else the quickest with the least noise."""
    own = [row for row in rows if (row.batch_size, row.steps) == (training.batch_size, training.steps)]
    if own and own[0].warning is None:
        return own[0]
    return max(rows, key=lambda row: (round(row.signal_to_noise, 1), -row.passes))


def _report(on_progress: Callable[[str, float], None] | None, words: str, share: float) -> None:
    if on_progress is not None:
        on_progress(words, share)
