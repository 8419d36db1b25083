"""DP-SGD, lines 4-16 of Algorithm 1: sample, clip, add up, add noise, divide, descend; every step reserved first."""

__all__ = ["StepReport", "TrainingResult", "per_example_cross_entropy", "remember_weights", "train"]

import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from securesgd.clipping.engine import ClippingEngine, Loss
from securesgd.clipping.rules.forms import MOST_EXAMPLES
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.privacy import Ledger, PrivacyStatement
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, load_tensors, tensors_digest
from securesgd.training.accounted_run import AccountedRun
from securesgd.training.examples import as_examples, check_examples, check_loss, data_digest
from securesgd.training.fingerprint import ResumeFingerprint
from securesgd.training.interrupt import StopSignals, TrainingInterrupted
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.optimizer import OptimizerFactory, SchedulerFactory
from securesgd.training.settings import TrainingSettings
from securesgd.training.state import TrainingState
from securesgd.training.step import Step


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What the person who trains learns of a step. **Private**: epsilon does not cover loss and batch size."""

    step: int
    steps: int
    loss: float
    """Mean over the examples of the sample whose loss is finite; NaN if there is none."""
    batch_size: int
    epsilon: float
    """Of the steps so far, the whole block of the last one included, and of the one-off release once it was made."""
    seconds: float
    learning_rate: float | None = None
    """Of this step; None if the optimizer has none."""
    held_out: float | None = None
    """Accuracy on held-out examples, now and then, if there are any."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    steps: int
    """Steps that ran: fewer than the settings' if `on_step` or `finish` ended the run early."""
    noise_multiplier: float
    statement: PrivacyStatement
    seconds: float


def per_example_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example."""
    return cross_entropy(outputs, targets, reduction="none")


def train(
    model: nn.Module,
    data: "Dataset[Any] | tuple[Tensor, Tensor]",
    settings: TrainingSettings,
    folder: str | Path,
    *,
    resume: bool = False,
    finish: bool = False,
    loss: Loss = per_example_cross_entropy,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    on_step: Callable[[StepReport], Any] | None = None,
    project: Callable[[nn.Module], None] | None = None,
    one_off_release: OneOffRelease | None = None,
    not_private: str = "the method does not protect the training data",
) -> TrainingResult:
    """Train `model` in place by DP-SGD and return the run's result with its privacy statement.

    Guarantee: the weights in `folder` and in `model`, at every moment of the run and after a crash, are covered by the
    (epsilon, delta) of `folder/ledger.jsonl` for the adjacency it names, in floating point as in exact arithmetic
    (docs/noise.md has the proof and its assumptions). A run that was interrupted and resumed on as many threads ends
    with the same bits as one that was not. A run with a `noise_seed` guarantees nothing, and its statement says so.
    Assumes: `loss` gives one loss per example and reads no other; the initial weights do not depend on `data`; the
    number of examples is public unless the settings give a sampling rate or population; what `on_step` receives is not
    published. When a run ends early, by `on_step` or `finish`, is decided by something that does not depend on `data`:
    by the clock, say. If released weights decide it, the epsilon of all `steps` is what holds; a decision by
    `StepReport.loss` or `batch_size` is not covered at all. A run is resumed with the same code of model, loss,
    optimizer, scheduler and `project` (`ResumeFingerprint` checks what Python shows of it), on as many threads, and on
    a GPU with torch's deterministic algorithms.
    Raises: PrivacyError if the steps do not fit the target; InvalidInputError for bad settings, data, optimizer, a
    folder in use, a model that this process has trained on these data before, or an `on_step` that changes the model;
    DamagedFileError for a broken run folder. Nothing existing is overwritten. Data are checked before the run
    (`check_examples`, `check_loss`); once it has begun no example ends it: one without a finite gradient contributes
    nothing. TrainingInterrupted, a KeyboardInterrupt, after Ctrl-C: the current step is ended and saved first.

    The model is left in eval mode.
    `optimizer` makes an optimizer of the parameters, in place of the settings' optimizer, learning rate and momentum:
    `lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)`. `scheduler` makes a scheduler of the optimizer, in
    place of the settings' schedule and warm-up; it is stepped after each step.
    `on_step` is called after each step; if it returns False (not None or 0), the run ends there and is a finished run.
    Its ledger counts all steps that were reserved, up to a block more than ran. `finish` ends a run that was stopped in
    the same way, without another step: the result is the weights of the last checkpoint (their average, if the settings
    have one) at the epsilon of the ledger, and secret and checkpoint are removed, so that it cannot be resumed.
    `project` is called after each step and may move the weights (post-processing, for example onto a sensitivity
    bound); without it, the model's own method `project()` is, if it has one. `one_off_release` may read the data once,
    for a cost of its own. `not_private` is the reason that the ledger gives if the settings have private=False.
    Under torchrun each rank handles its share of every sample; noise is added once, to the sum.
    """
    started = time.perf_counter()
    processes, files, examples = Processes(), RunFolder(folder), as_examples(data)
    if settings.rate(len(examples)) * len(examples) > MOST_EXAMPLES / 2:  # no sample will ever be twice as large
        raise InvalidInputError(f"batch_size is {settings.batch_size}; valid: at most {MOST_EXAMPLES // 2}")
    engine = ClippingEngine(model, settings.max_grad_norm)
    state = TrainingState(model, settings, optimizer, scheduler)
    labelled = loss is per_example_cross_entropy or isinstance(model, IntervalNetwork)
    check_examples(examples, model, labelled=labelled)
    processes.together(lambda: check_loss(examples, model, loss))
    resuming, finished = processes.on_first(lambda: (files.claim(resume, finish=finish), files.finished))
    if finished:
        result = _load_finished(state, processes, files, started)
        remember_weights(model, data)
        return result
    run: AccountedRun | None = None

    def open_run() -> tuple[Randomness, Checkpoint, bool]:
        nonlocal run
        fingerprint = ResumeFingerprint(
            settings,
            model,
            loss,
            len(examples),
            processes.count,
            one_off_release,
            engine.sensitivity,
            state.optimizer.fingerprint(),
            project,
        )
        open_accounted = AccountedRun.resume if resuming else AccountedRun.start
        digest = data_digest(examples)
        if not resuming and settings.private and settings.noise_seed is None:
            _require_first_training(model, digest)
        run = open_accounted(files, fingerprint, state.checkpoint(), digest)
        cleanup.callback(_note_training, model, digest, run.begin)
        cleanup.callback(run.ledger.close)
        if not finish:
            run.require_device(fingerprint.device)
        return run.randomness, run.begin, on_step is not None

    after_step = _projection(model, project)
    with ExitStack() as cleanup, torch.random.fork_rng():
        randomness, begin, reports = processes.on_first(open_run)
        sampling_rate, noise_multiplier = begin.record["sampling_rate"], begin.record["noise_multiplier"]
        state.load(begin.tensors, begin.record)
        step = Step(engine, examples, loss, settings, sampling_rate, noise_multiplier, randomness, processes)
        if finish and state.step == 0:
            raise InvalidInputError(f"{files.path} has no step in its checkpoint yet, so nothing to finish; resume it")
        last = state.step if finish else settings.steps
        epsilon: float | None = None
        stopped = False
        with StopSignals() as signals:
            while state.step < last and not stopped:
                model.train()  # whatever mode a callback has left: a resumed run would not have it
                if epsilon is None or state.step % settings.block == 0:
                    epsilon = processes.on_first(lambda: run.reserve_block(state.step, not_private))  # type: ignore[union-attr]
                if one_off_release is not None and state.step == one_off_release.step:
                    epsilon = processes.on_first(lambda: run.record_one_off_release(state.step))  # type: ignore[union-attr]
                    one_off_release.run(model, examples, randomness, processes)
                gradients, batch_size, mean_loss = step.gradient(state.step)
                state.apply_gradients(gradients)
                after_step()
                state.count_step()
                if reports:
                    report = StepReport(
                        step=state.step,
                        steps=settings.steps,
                        loss=mean_loss,
                        batch_size=batch_size,
                        epsilon=epsilon,
                        seconds=time.perf_counter() - started,
                        learning_rate=state.optimizer.learning_rate,
                    )
                    stopped = processes.on_first(partial(_stops, state, on_step, report, signals))  # type: ignore[arg-type]
                interrupted = processes.any(signals.requested) and not stopped
                is_due = state.step % settings.checkpoint_steps == 0 and state.step < last and not stopped
                if is_due or interrupted or stopped or state.step == last:
                    state.require_finite()
                if is_due or interrupted:
                    paid = processes.on_first(lambda: run.save(state.checkpoint(), state.step))  # type: ignore[union-attr]
                if interrupted:
                    raise TrainingInterrupted(files.path, state.step, settings.steps, paid)
        state.use_average()
        statement = processes.on_first(lambda: run.finish(_weights(model), state.step))  # type: ignore[union-attr]
    model.eval()
    return TrainingResult(
        folder=files.path,
        steps=state.step,
        noise_multiplier=float(noise_multiplier),
        statement=statement,
        seconds=time.perf_counter() - started,
    )


def _stops(
    state: TrainingState, on_step: Callable[[StepReport], Any], report: StepReport, signals: StopSignals
) -> bool:
    """Call `on_step` and return whether it ends the run. An interruption in it is one after the step."""
    try:
        return state.unchanged_by(on_step, report) is False
    except KeyboardInterrupt:
        signals.requested = True
        return False


def _projection(model: nn.Module, project: Callable[[nn.Module], None] | None) -> Callable[[], Any]:
    """Return what is called after each step: `project` if given, else the model's own `project()` if it has one."""
    if project is not None:
        return lambda: project(model)
    method = getattr(type(model), "project", None)  # of the class: a layer that is called `project` is something else
    if not inspect.isfunction(method):
        return lambda: None
    _, *arguments = inspect.signature(method).parameters.values()
    if any(argument.default is argument.empty for argument in arguments):  # a method about something else
        return lambda: None
    return partial(method, model)


_TRAINED: set[tuple[str, str]] = set()
"""Digests of weights that depend on data, with those of the data; of this process, in memory only."""


def _require_first_training(model: nn.Module, data: str) -> None:
    """Return if the weights are not of an earlier run of this process on the same data.

    Raises: InvalidInputError: the new run would start from weights that depend on its data, at a cost that only the
    ledger of the earlier run has.
    """
    if (tensors_digest(_weights(model)), data) in _TRAINED:
        raise InvalidInputError(
            "the model was trained on these data before, and a new ledger would not count that; valid: a model with "
            "new weights, or resume=True for a run that was interrupted"
        )


def _note_training(model: nn.Module, data: str, begin: Checkpoint) -> None:
    """Remember the weights that a run leaves in the model, unless it has not moved them yet."""
    digest = tensors_digest(_weights(model))
    first = {name.removeprefix("model."): t for name, t in begin.tensors.items() if name.startswith("model.")}
    if int(begin.record["step"]) > 0 or digest != tensors_digest(first):
        _TRAINED.add((digest, data))


def remember_weights(model: nn.Module, data: "Dataset[Any] | tuple[Tensor, Tensor]") -> None:
    """Remember that the weights in `model`, loaded from a finished run, depend on `data`: `train` then refuses both."""
    _TRAINED.add((tensors_digest(_weights(model)), data_digest(as_examples(data))))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _load_finished(state: TrainingState, processes: Processes, files: RunFolder, started: float) -> TrainingResult:
    """Return the result of a run that was finished before, and load its weights into the model."""

    def load() -> tuple[Checkpoint, PrivacyStatement]:
        files.tidy()
        weights = load_tensors(files.model)
        with Ledger.open(files.ledger) as ledger:
            ledger.require_head(*weights.record["ledger"])  # lines cut off the end would lower its epsilon
            return weights, ledger.statement()

    weights, statement = processes.on_first(load)
    steps = int(weights.record["steps"])
    state.load_weights(weights.tensors, steps)
    state.model.eval()
    return TrainingResult(
        folder=files.path,
        steps=steps,
        noise_multiplier=float(weights.record["noise_multiplier"]),
        statement=statement,
        seconds=time.perf_counter() - started,
    )
