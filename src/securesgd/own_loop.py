"""Private training in a loop of the user's own: batches and steps are the engine's, everything around them is hers."""

__all__ = ["PrivateTraining"]

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.clipping.losses import Loss
from securesgd.data.load import LoadedData
from securesgd.run import Run
from securesgd.run_job import FolderClaim, finished_run, own_job, write_records
from securesgd.runtime.processes import process_group
from securesgd.training import private_training as engine
from securesgd.training.batch import Batch
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler
from securesgd.training.result import StepReport


class PrivateTraining:
    """DP-SGD in a loop of your own, into a run folder that every command takes.

        training = ss.PrivateTraining(model, optimizer, data, out="runs/mine", epsilon=3, delta=1e-5, batch_size=256,
                                      steps=500)
        for batch in training.batches():
            training.step(batch, loss)
        run = training.finish()

    Guarantee: that of `train`: the weights are (epsilon, delta)-differentially private for `data` at every moment and
    after a crash, at the epsilon of the ledger in `out`, which counts a step before it is computed. Interrupted and
    resumed with the same code, the run ends with the same bits; a step that is run again with other inputs, another
    loss or other clipped sums, whatever made them other, is refused, and would have other noise.
    Assumes: as `train`. What the loop does to a batch, it does to each row by itself (`Batch.replace`). What a batch
    and a `StepReport` show is private, and whether the run is ended early, and the choice of losses, do not depend on
    it: a choice by released weights is covered by epsilon, one by losses or examples is not. The loss treats examples
    one by one; that is checked (`ClippingEngine`), and one that mixes them is refused.
    Raises: InvalidInputError, one line, for settings, data or a model that do not fit, a folder in use, an optimizer
    that has been used, and every misuse: a batch twice, of another training or left out; other rows; weights,
    parameters, groups of the optimizer or a learning rate changed outside of `step`; two loops at once; a second
    `finish`; a forked process. PrivacyError if the steps do not fit the target. TrainingInterrupted, a
    KeyboardInterrupt, after Ctrl-C in a step, with a checkpoint of it.

    `optimizer` is a new torch.optim optimizer over the parameters of `model` or a function that makes one, `scheduler`
    a scheduler of it or a function that makes one: `step` steps both. None: those of the settings. `project` may move
    the weights after each step. The model takes inputs as `data` has them; it is in training mode in each step, and
    may be evaluated between steps. Other arguments are those of `train`. Under torchrun every process runs the loop,
    on its share of each batch.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OwnOptimizer | None,
        data: "LoadedData | Dataset[Any] | tuple[Tensor, Tensor] | str",
        *,
        out: str | Path,
        scheduler: OwnScheduler | None = None,
        project: Callable[[nn.Module], None] | None = None,
        test: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
        network: str | None = None,
        resume: bool = False,
        input_range: tuple[float, float] | None = (0.0, 1.0),
        **settings: Any,
    ) -> None:
        given = {"optimizer": optimizer, "scheduler": scheduler, "input_range": input_range}
        self._job = own_job(model, data, settings=settings, test=test, network=network, **given)  # type: ignore[arg-type]
        self._group = ExitStack()
        self._group.enter_context(process_group())
        try:
            self._claim = FolderClaim(Path(out), self._job.config, resume=resume)
            try:
                self._job.require_config(self._claim.config, out)
                arguments = self._job.training_arguments() | {"loss": None}
                self._metrics = self._job.metrics(self._claim.files)
                self._training = engine.PrivateTraining(
                    model,
                    self._job.examples,
                    self._job.config.training,
                    out,
                    resume=True,  # the folder is ours
                    on_step=self._metrics.watch(None),
                    project=project,
                    **arguments,
                )
            except BaseException:
                self._claim.withdraw()
                raise
        except BaseException:
            self._group.close()
            raise

    @property
    def step_number(self) -> int:
        """How many steps were run, those of earlier attempts included."""
        return self._training.step_number

    @property
    def steps(self) -> int:
        """How many steps the run has if it is not ended early."""
        return self._training.steps

    @property
    def epsilon(self) -> float:
        """What the ledger counts so far: all steps that were reserved, up to a block more than ran."""
        return self._training.epsilon

    @property
    def noise_multiplier(self) -> float:
        """Noise of a step in sensitivities, as given or as calibrated to the target."""
        return self._training.noise_multiplier

    def batches(self) -> Iterator[Batch]:
        """Yield the Poisson sample of each step that is left; each must be given to `step` before the next.

        A batch has `inputs` and `targets`, on the device of the data, and may be empty: that is a step like any other.
        Torch's generator is seeded for each step, so that augmentations are repeatable; afterwards it is as before.
        """
        return self._training.batches()

    def step(self, batch: Batch, loss: Loss | None = None) -> StepReport:
        """Take one private step: reserve its cost, clip, add noise, step the optimizer and scheduler, project, save.

        `loss(outputs, targets)`, or `loss(model, inputs, targets)` if it runs the model itself, returns one loss per
        row; the second form is computed one example at a time. None: the cross-entropy, or the loss of an
        IntervalNetwork. What is returned is private.
        Raises: InvalidInputError if it is misused; the batch is not used then. After any other error the object is
        closed, and the run can be resumed.
        """
        try:
            return self._training.step(batch, loss)
        except BaseException:
            if self._training.closed:
                self._claim.withdraw()
                self._group.close()
            raise

    def finish(self) -> Run:
        """End the run, at its last step or before, write its records, and return it; the model is in eval mode.

        Epsilon counts all steps that were reserved, up to a block more than ran. Of a run that is finished already,
        what is in the folder is returned.
        """
        result = self._training.finish()
        try:
            if self._claim.complete:
                return finished_run(self._job, self._claim.files)
            return write_records(self._job, self._claim.files, self._metrics, result)
        finally:
            self._group.close()

    def close(self) -> None:
        """End this training without finishing the run, which `resume=True` continues; harmless if it has ended."""
        self._training.close()
        self._group.close()
