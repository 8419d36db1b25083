"""DP-SGD, lines 4-16 of Algorithm 1: sample, clip, add up, add noise, divide, descend; every step reserved first."""

__all__ = ["StepReport", "TrainingResult", "per_example_cross_entropy", "remember_weights", "train"]

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.clipping.losses import Loss
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler
from securesgd.training.private_training import PrivateTraining
from securesgd.training.result import StepReport, TrainingResult
from securesgd.training.settings import TrainingSettings
from securesgd.training.step_loss import per_example_cross_entropy
from securesgd.training.trained_weights import remember_weights


def train(
    model: nn.Module,
    data: "Dataset[Any] | tuple[Tensor, Tensor]",
    settings: TrainingSettings,
    folder: str | Path,
    *,
    resume: bool = False,
    finish: bool = False,
    loss: Loss = per_example_cross_entropy,
    optimizer: OwnOptimizer | None = None,
    scheduler: OwnScheduler | None = None,
    on_step: Callable[[StepReport], Any] | None = None,
    project: Callable[[nn.Module], None] | None = None,
    one_off_release: OneOffRelease | None = None,
    not_private: str = "the method does not protect the training data",
    origin: str = "",
) -> TrainingResult:
    """Train `model` in place by DP-SGD and return the run's result with its privacy statement.

    Guarantee: the weights in `folder` and in `model`, at every moment of the run and after a crash, are covered by the
    (epsilon, delta) of `folder/ledger.jsonl` for the adjacency it names, in floating point as in exact arithmetic
    (docs/reference/noise.md has the proof and its assumptions). A run that was interrupted and resumed ends with the
    same bits as one that was not: it is computed on as many threads as it was started on. A run with a `noise_seed`
    guarantees nothing, and its statement says so.
    Assumes: `loss` gives one loss per example and reads no other; the initial weights do not depend on `data`; the
    number of examples is public unless the settings give a sampling rate or population; what `on_step` receives is not
    published. When a run ends early, by `on_step` or `finish`, is decided by something that does not depend on `data`:
    by the clock, say. If released weights decide it, the epsilon of all `steps` is what holds; a decision by
    `StepReport.loss` or `batch_size` is not covered at all. A run is resumed with the same code of model, loss,
    optimizer, scheduler and `project` (`ResumeFingerprint` checks what Python shows of it), with as many processes, and
    on a GPU with torch's deterministic algorithms; another kind of device, processor or version of torch is refused,
    and so is a step that gives other clipped sums when it is run again (`AskedSteps`).
    Raises: PrivacyError if the steps do not fit the target; InvalidInputError for bad settings, data, optimizer, a
    folder in use, a model that this process has trained on these data before, or an `on_step` that changes the model;
    DamagedFileError for a broken run folder. Nothing existing is overwritten. Data are checked before the run
    (`check_examples`, `check_loss`); once it has begun no example ends it: one without a finite gradient contributes
    nothing. TrainingInterrupted, a KeyboardInterrupt, after Ctrl-C: the current step is ended and saved first.

    The model is left in eval mode.
    `optimizer` makes an optimizer of the parameters, in place of the settings' optimizer, learning rate and momentum:
    `lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)`; a new optimizer will do, too. `scheduler` makes a
    scheduler of the optimizer, in place of the settings' schedule and warm-up; it is stepped after each step.
    `on_step` is called after each step; if it returns False (not None or 0), the run ends there and is a finished run.
    Its ledger counts all steps that were reserved, up to a block more than ran. `finish` ends a run that was stopped in
    the same way, without another step: the result is the weights of the last checkpoint (their average, if the settings
    have one) at the epsilon of the ledger, and secret and checkpoint are removed, so that it cannot be resumed.
    `project` is called after each step and may move the weights (post-processing, for example onto a sensitivity
    bound); without it, the model's own method `project()` is, if it has one. `one_off_release` may read the data once,
    for a cost of its own. `not_private` is the reason that the ledger gives if the settings have private=False.
    `origin` says where the first weights come from; a run is not resumed with another one.
    Under torchrun each rank handles its share of every sample; noise is added once, to the sum.
    """
    training = PrivateTraining(
        model,
        data,
        settings,
        folder,
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        resume=resume,
        finish=finish,
        on_step=on_step,
        project=project,
        one_off_release=one_off_release,
        not_private=not_private,
        origin=origin,
    )
    with closing(training), training.signals, closing(training.batches()) as batches:
        for batch in batches:
            training.step(batch)
        return training.finish()
