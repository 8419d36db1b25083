"""DP-SGD step by step, in a loop that is the caller's: sample, pay, clip, add noise, descend, save."""

__all__ = ["PrivateTraining"]

import os
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.losses import Loss
from securesgd.clipping.rules.forms import MOST_EXAMPLES
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.runtime.machine import compute_threads
from securesgd.runtime.processes import Processes
from securesgd.runtime.random_state import RandomState
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint
from securesgd.training.accounted_run import AccountedRun
from securesgd.training.asked_steps import AskedSteps, asked_digest, noise_bound_to
from securesgd.training.batch import Batch, OneAtATime
from securesgd.training.consistency import joint_loss
from securesgd.training.examples import StoredExamples, as_examples, check_examples, check_loss, data_digest
from securesgd.training.fingerprint import ResumeFingerprint
from securesgd.training.interrupt import StopSignals, TrainingInterrupted
from securesgd.training.kept_features import trained_examples, trained_network
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler
from securesgd.training.result import StepReport, TrainingResult, load_finished
from securesgd.training.settings import TrainingSettings
from securesgd.training.state import Snapshot, TrainingState, projection, weights
from securesgd.training.step import Step
from securesgd.training.step_loss import check_first_loss, loss_of_each_step, loss_of_step, per_example_cross_entropy
from securesgd.training.trained_weights import note_training, open_training, remember_weights, require_first_training


class PrivateTraining:
    """A run of DP-SGD whose loop is the caller's: `for batch in t.batches(): t.step(batch, loss)`, then `t.finish()`.

    Guarantee and assumptions are those of `training.loop.train`, which is such a loop. What a step was asked and gave
    is recorded (but in a fixed loop with a `noise_seed`, which guarantees nothing), and one that is run again after a
    crash is refused if that is something else. With `loss` None, `step` gets a loss each time and the batches may be
    altered (`Batch.replace`); in such a loop nothing but `step` may change the model, its optimizer or its scheduler.
    Raises: as `train`; InvalidInputError also for misuse of the object.
    """

    def __init__(
        self,
        model: nn.Module,
        data: "Dataset[Any] | tuple[Tensor, Tensor]",
        settings: TrainingSettings,
        folder: str | Path,
        *,
        loss: Loss | None = None,
        optimizer: OwnOptimizer | None = None,
        scheduler: OwnScheduler | None = None,
        resume: bool = False,
        finish: bool = False,
        on_step: Callable[[StepReport], Any] | None = None,
        project: Callable[[nn.Module], None] | None = None,
        one_off_release: OneOffRelease | None = None,
        not_private: str = "the method does not protect the training data",
        origin: str = "",
    ) -> None:
        self._started, self._process = time.perf_counter(), os.getpid()
        self.model, self.settings = model, settings
        self.signals = StopSignals()
        self._loss, self._on_step, self._one_off_release = loss, on_step, one_off_release
        self._not_private, self._is_finish, self._origin = not_private, finish, origin
        self._processes, self._files, self._examples = Processes(), RunFolder(folder), as_examples(data)
        if settings.rate(len(self._examples)) * len(self._examples) > MOST_EXAMPLES / 2:  # never is a sample twice that
            raise InvalidInputError(f"batch_size is {settings.batch_size}; valid: at most {MOST_EXAMPLES // 2}")
        network = trained_network(model, settings, loss, one_off_release)
        self._engine = ClippingEngine(network, settings.max_grad_norm, settings.precision)
        self._state = TrainingState(model, settings, optimizer, scheduler)
        self._after_step = projection(model, project)
        self._batch: Batch | None = None  # that was given out and has not been used yet
        self._rng: RandomState | None = None
        self._rows = self._batch_size = 0
        self._iterating = self._stopped = self._ended = False
        self._result: TrainingResult | None = None
        self._epsilon: float | None = None
        self._snapshot: Snapshot | None = None
        self._run: AccountedRun | None = None
        self._asked: AskedSteps | None = None  # on rank 0, if steps are recorded
        self._own_loop, self._loss_checked = loss is None, loss is not None
        self._is_recorded = self._own_loop or (settings.private and settings.noise_seed is None)
        self._calls = OneAtATime()
        joint_loss(loss or per_example_cross_entropy, settings)  # refused before anything is written
        is_labelled = loss is per_example_cross_entropy or isinstance(model, IntervalNetwork)
        check_examples(self._examples, model, labelled=is_labelled)
        if loss is not None:
            self._processes.together(lambda: check_loss(self._examples, model, loss))
        files = self._files
        resuming, finished = self._processes.on_first(lambda: (files.claim(resume, finish=finish), files.finished))
        self._cleanup = ExitStack()
        self._finalizer = weakref.finalize(self, self._cleanup.close)  # also for an object that is just dropped
        self._finalizer.atexit = False
        if finished:
            self._result = load_finished(self._state, self._processes, self._files, self._started)
            remember_weights(model, data)
            return
        try:
            self._open(resuming, project)
        except BaseException:
            self.close()
            raise

    def _open(self, resuming: bool, project: Callable[[nn.Module], None] | None) -> None:
        """Start or resume the run: ledger, key and checkpoint on rank 0, its state on all."""
        settings, processes, state = self.settings, self._processes, self._state

        def open_run() -> tuple[Randomness, Checkpoint, bool, float]:
            loss, optimizer = self._loss or loss_of_each_step, state.optimizer.fingerprint()
            asked = settings, self.model, loss, len(self._examples), processes.count, self._one_off_release
            fingerprint = ResumeFingerprint(*asked, self._engine.sensitivity, optimizer, project, self._origin)
            digest = data_digest(self._examples)
            if not resuming and settings.private and settings.noise_seed is None:
                require_first_training(self.model, digest)
            open_accounted = AccountedRun.resume if resuming else AccountedRun.start
            run = self._run = open_accounted(self._files, fingerprint, state.checkpoint(), digest)
            self._cleanup.callback(run.ledger.close)
            if not self._is_finish:
                run.require_machine(fingerprint.machine())
            self._cleanup.callback(note_training, self.model, digest, run.begin)
            return run.randomness, run.begin, self._on_step is not None, run.ledger.epsilon

        self._cleanup.enter_context(open_training(self.model, self._files.path))
        self._randomness, begin, self._reports, self._paid = processes.on_first(open_run)
        self._threads = int(begin.record.get("threads", torch.get_num_threads()))
        self._cleanup.enter_context(compute_threads(self._threads))
        state.load(begin.tensors, begin.record)
        loss = joint_loss(self._loss or per_example_cross_entropy, settings)
        rate, noise = float(begin.record["sampling_rate"]), float(begin.record["noise_multiplier"])
        sources = self._engine.model, self._examples, settings, self._randomness, self._files.path
        examples = self._examples if self._is_finish else processes.together(lambda: trained_examples(*sources))
        self._step = Step(self._engine, examples, loss, settings, rate, noise, self._randomness, processes)
        if isinstance(examples, StoredExamples):  # a Dataset may draw from the generator of its step
            self._step = self._cleanup.enter_context(self._step.reading_ahead())
        if self._is_finish and state.step == 0:
            raise InvalidInputError(
                f"{self._files.path} has no step in its checkpoint yet, so nothing to finish; resume it"
            )
        self._last = state.step if self._is_finish else settings.steps
        if self._is_recorded and self._run is not None and not self._is_finish:
            self._asked = self._run.asked_steps(state.step)
            self._cleanup.callback(self._asked.close)
            self._step = replace(self._step, recorded=self._asked.wait)
        if self._own_loop:
            self._snapshot = state.snapshot()

    @property
    def step_number(self) -> int:
        """How many steps were run, those of earlier attempts included."""
        return self._state.step if self._result is None else self._result.steps

    @property
    def steps(self) -> int:
        """How many steps the run has if it is not ended early."""
        return self.settings.steps

    @property
    def epsilon(self) -> float:
        """What the ledger counts so far: all steps that were reserved, up to a block more than ran."""
        return self._paid if self._result is None else self._result.statement.accounted_epsilon

    @property
    def noise_multiplier(self) -> float:
        """Noise of a step in sensitivities."""
        return self._step.noise_multiplier if self._result is None else self._result.noise_multiplier

    @property
    def closed(self) -> bool:
        """Whether no further step is possible with this object."""
        return not self._finalizer.alive

    @property
    def finished(self) -> bool:
        """Whether the run is a finished one, so that there is no step to run."""
        return self._result is not None

    def batches(self) -> Generator[Batch]:
        """Yield the sample of each step that is left, in order; each must be given to `step` before the next.

        While the loop lasts, torch's generator is seeded for each step from the run's secret, so that augmentations
        are the same when a step is run again; afterwards it is as before.
        Raises: InvalidInputError for a second loop within the first, or if a batch was left out.
        """
        with self._calls.call("batches()"):
            if self._iterating:
                raise InvalidInputError("batches() is in use by another loop; valid: one loop at a time")
            self._iterating = True
        try:
            with torch.random.fork_rng():
                while self._result is None and self.step_number < self._last and not self._stopped:
                    with self._calls.call("batches()"):
                        self._require_open()
                        batch = self._batch = self._draw()
                    yield batch
                    if self._batch is not None and self._result is None:
                        raise InvalidInputError(
                            f"the batch of step {batch.step + 1} was not given to step(); valid: every batch, also an "
                            "empty one, since leaving one out is not random any more"
                        )
        finally:
            self._iterating = False

    def _draw(self) -> Batch:
        state, processes = self._state, self._processes
        with self.signals:
            inputs, targets, self._batch_size = self._step.draw(state.step)
        self._rng = RandomState.capture(self.model)
        if self._own_loop:
            self._randomness.seed_model(state.step * processes.count + processes.rank, "loop")
        self._rows = len(inputs)
        return Batch(step=state.step, inputs=inputs, targets=targets, _owner=self)

    def step(self, batch: Batch, loss: Loss | None = None) -> StepReport:
        """Clip, add noise, descend and project for one batch, after its cost is in the ledger; return what happened.

        `loss` gives one loss per row, from (outputs, targets), or from (model, inputs, targets) if it runs the model
        itself; None: the cross-entropy. The scheduler is stepped, and a checkpoint is written when one is due.
        Raises: InvalidInputError for a batch that is not the last of `batches`, was used before or has other rows, and
        if the model or its optimizer were changed since the last step. After any other error, and TrainingInterrupted,
        the training is closed, and the run can be resumed.
        """
        if not isinstance(batch, Batch) or not batch.belongs_to(self):
            self._require_open()
            raise InvalidInputError(f"step() got a {type(batch).__name__} that is not of this training's batches()")
        with self._calls.call("step()", is_step=True):
            self._require_open()
            if self._batch is None or not batch.step == self._batch.step == self._state.step:
                raise InvalidInputError(
                    f"the batch of step {batch.step + 1} was used before; valid: the last one of batches(), once"
                )
            batch.require_rows(self._rows)
            if loss is not None and not self._own_loop:
                raise InvalidInputError("the loss was given at the start of the training; valid: step(batch)")
            chosen = self._loss or loss_of_step(self.model, loss)
            joint = joint_loss(chosen, self.settings)
            if self._snapshot is not None:
                self._state.require_unchanged_since(self._snapshot)
            self._batch = None
            try:
                with self.signals, compute_threads(self._threads), torch.random.fork_rng(enabled=self._own_loop):
                    return self._take_step(batch, chosen, joint)
            except BaseException:
                self._finalizer()
                raise

    def _take_step(self, batch: Batch, loss: Loss, joint: Loss) -> StepReport:
        model, state, settings, processes = self.model, self._state, self.settings, self._processes
        model.train()  # whatever mode a callback has left: a resumed run would not have it
        if not self._loss_checked:
            self._loss_checked = True
            processes.together(lambda: check_first_loss(self._examples, batch, model, loss))
        if self._epsilon is None or state.step % settings.block == 0:
            self._pay(lambda run: run.reserve_block(state.step, self._not_private))
        if self._one_off_release is not None and state.step == self._one_off_release.step:
            self._pay(lambda run: run.record_one_off_release(state.step))
            self._one_off_release.run(model, self._examples, self._randomness, processes, self._asked)
        step = self._step
        if self._is_recorded:  # the batch and the loss of a fixed loop are what fingerprint and key say
            asked = " ".join(processes.gather(asked_digest(batch, loss))) if self._own_loop else ""
            sources, seeded = (self._asked, self._randomness, processes), settings.noise_seed is not None
            step = replace(step, noise_of=noise_bound_to(*sources, batch.step, asked, seeded=seeded))
        if self._rng is not None:
            self._rng.restore()
        gradients, mean_loss = step.gradient_of(batch.inputs, batch.targets, state.step, joint)
        state.apply_gradients(gradients)
        self._after_step()
        state.count_step()
        report = StepReport(
            step=state.step,
            steps=settings.steps,
            loss=mean_loss,
            batch_size=self._batch_size,
            epsilon=self._epsilon or 0.0,
            seconds=time.perf_counter() - self._started,
            learning_rate=state.optimizer.learning_rate,
        )
        if self._reports:
            self._stopped = processes.on_first(partial(self._stops, report))
        self._save_if_due()
        if self._own_loop:
            self._snapshot = state.snapshot()
        return report

    def _save_if_due(self) -> None:
        """Write a checkpoint if one is due. Raises: TrainingInterrupted, after one, if a signal came."""
        state, settings, stopped = self._state, self.settings, self._stopped
        interrupted = self._processes.any(self.signals.requested) and not stopped
        is_due = state.step % settings.checkpoint_steps == 0 and state.step < self._last and not stopped
        if is_due or interrupted or stopped or state.step == self._last:
            state.require_finite()
        if is_due or interrupted:
            paid = self._processes.on_first(self._save)
            if interrupted:
                raise TrainingInterrupted(self._files.path, state.step, settings.steps, paid)

    def _save(self) -> float:
        checkpoint, run = self._state.checkpoint(), self._run
        assert run is not None
        if self._asked is not None:
            checkpoint = Checkpoint(checkpoint.tensors, checkpoint.record | {"asked": self._asked.chain})
        paid = run.save(checkpoint, self._state.step)
        if self._asked is not None:
            self._asked.forget(self._state.step)
        return paid

    def _pay(self, action: Callable[[AccountedRun], float]) -> None:
        """Write to the ledger, on rank 0, what the next step costs."""

        def pay() -> tuple[float, float]:
            assert self._run is not None
            return action(self._run), self._run.ledger.epsilon

        self._epsilon, self._paid = self._processes.on_first(pay)

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise InvalidInputError(
                f"this training is of process {self._process}; valid: to use it there, or to resume the run in another "
                "process once it has ended"
            )
        if self._ended or self._result is not None:
            raise InvalidInputError(f"the run in {self._files.path} is finished; valid: a new run in another folder")
        if self.closed:
            raise InvalidInputError(
                f"this training of {self._files.path} was closed or stopped by an error; valid: resume=True"
            )

    def _stops(self, report: StepReport) -> bool:
        """Call `on_step` and return whether it ends the run. An interruption in it is one after the step."""
        assert self._on_step is not None
        try:
            return self._state.unchanged_by(self._on_step, report) is False
        except KeyboardInterrupt:
            self.signals.requested = True
            return False

    def finish(self) -> TrainingResult:
        """End the run, at its last step or before, write its weights, and return its result; the model is in eval mode.

        The ledger counts all steps that were reserved, up to a block more than ran; secret and checkpoint are removed.
        Raises: InvalidInputError if no step was run, the model was changed since the last one, or it was called before.
        """
        with self._calls.call("finish()"):
            return self._finish()

    def _finish(self) -> TrainingResult:
        if self._ended:
            raise InvalidInputError("finish() was called before; valid: once")
        if self._result is None:
            self._require_open()
            state = self._state
            if state.step == 0:
                raise InvalidInputError("no step was run yet, so there is nothing to finish; valid: step() first")
            if self._snapshot is not None:
                state.require_unchanged_since(self._snapshot)
            try:
                state.require_finite()
                state.use_average()
                statement = self._processes.on_first(
                    lambda: self._run.finish(weights(state.model), state.step)  # type: ignore[union-attr]
                )
            finally:
                self.close()
            self.model.eval()
            self._result = TrainingResult(
                folder=self._files.path,
                steps=state.step,
                noise_multiplier=self._step.noise_multiplier,
                statement=statement,
                seconds=time.perf_counter() - self._started,
            )
        self._ended = True
        return self._result

    def close(self) -> None:
        """End this training without finishing the run, which can be resumed; harmless if it has ended.

        A step that another thread is taking is waited for.
        """
        with self._calls.call("close()", wait=True):
            self._finalizer()

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise InvalidInputError("a training cannot be copied or pickled: two would use the same noise; valid: one")
