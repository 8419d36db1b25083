"""Making a run: data and a network → DP-SGD with a ledger → a complete run folder."""

__all__ = ["train", "train_run"]

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.build import build_model
from securesgd.clipping.losses import Loss
from securesgd.config import RunConfig
from securesgd.data.load import LoadedData, load_data
from securesgd.errors import InvalidInputError
from securesgd.run import Run
from securesgd.run_job import FolderClaim, RunJob, own_job, train_job
from securesgd.runtime.machine import torch_device
from securesgd.runtime.processes import process_group
from securesgd.training.examples import tensors_of
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler
from securesgd.training.result import StepReport
from securesgd.training.step_loss import per_example_cross_entropy


def train(
    model: nn.Module,
    data: "LoadedData | Dataset[Any] | tuple[Tensor, Tensor] | str",
    *,
    out: str | Path,
    test: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
    network: str | None = None,
    loss: Loss = per_example_cross_entropy,
    optimizer: OwnOptimizer | None = None,
    scheduler: OwnScheduler | None = None,
    on_step: Callable[[StepReport], Any] | None = None,
    resume: bool = False,
    finish: bool = False,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    **settings: Any,
) -> Run:
    """Train any module by DP-SGD in place, leave a complete run folder in `out`, and return the run.

    Guarantee: that of `training.loop.train`: the weights are (epsilon, delta)-differentially private for `data`; what
    is written to the folder is covered by its ledger, except `metrics.jsonl`, which is about the test set and the
    held-out examples.
    Assumes: as there; in particular the initial weights do not depend on `data`.
    Raises: InvalidInputError for settings, data or a model that do not fit, or a folder in use (`resume` continues it).
    TrainingInterrupted, a KeyboardInterrupt, after Ctrl-C, with a checkpoint of the last whole step.

    `data` is a pair of tensors, a torch Dataset, a data set by name or path, or what `load_data` returned; `test` is
    for the test accuracy only. Give `network` as an import path, package.module:function, if the command line is to
    rebuild the module; otherwise `load_run` takes the module. `loss(outputs, targets)` returns a number per example;
    `loss(model, inputs, targets)` may run the model several times, at the cost of one example at a time.
    `optimizer` and `scheduler` make a torch.optim optimizer of the parameters, and a scheduler of it, in place of those
    of the settings; or they are new ones. `on_step` gets a `StepReport` after each step and stops the run by returning
    False. `finish` ends a run that was interrupted, with the weights of its checkpoint and the epsilon that is paid.
    `input_range` is what the inputs of a NoisyNetwork or IntervalNetwork are within (None: any numbers); later commands
    take it from the folder.
    `settings` are those of `TrainingSettings` (epsilon, delta, batch_size, steps, …) and of `RobustnessSettings`
    (r_step, …). Under torchrun all processes train together, and the first alone writes the folder.
    """
    if on_step is not None and not callable(on_step):
        raise InvalidInputError(f"on_step is a {type(on_step).__name__}; valid: a function of a StepReport, or None")
    job = own_job(
        model,
        data,
        settings=settings,
        test=test,
        network=network,
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        input_range=input_range,
    )

    def prepare(saved: RunConfig) -> RunJob:
        return job.require_config(saved, out)

    return _run_job(Path(out), prepare, job.config, resume=resume, finish=finish, on_step=on_step)


def train_run(
    config: RunConfig,
    folder: str | Path,
    *,
    loaded: LoadedData | None = None,
    resume: bool = False,
    finish: bool = False,
    on_step: Callable[[StepReport], Any] | None = None,
    device: str | None = None,
) -> Run:
    """Train as configured, leave a complete run folder and return the run; `train` is for modules of your own.

    Guarantee: as of `train`.
    Raises: InvalidInputError if the folder is in use (and not resumed) or anything does not fit; OSError with the name
    of the file that could not be written. A new run that fails before its first release leaves nothing behind, so that
    the same call can be made again; a later one can be resumed.

    `loaded` are the data that the configuration names, if they were read before, as `fitted_config` does. `on_step`
    gets each step's report, now and then with the accuracy on the held-out examples if there are any. `finish` ends a
    run that was interrupted, as in `train`. `device` is where the network is trained: cpu, cuda, cuda:1, …; it is no
    part of the configuration, since sample and noise of a step are the same on each.
    """
    read_before, place = loaded, torch_device(device)
    given = config.import_paths

    def prepare(config: RunConfig) -> "RunJob":
        for name, path in config.import_paths.items():
            if given.get(name) != path:
                raise InvalidInputError(
                    f"the run in {folder} uses {path}, which is code; to resume it, give a configuration with this "
                    f"{name}"
                )
        loaded = read_before
        if loaded is None:
            loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
        return RunJob(
            config=config,
            model=build_model(config, loaded.input_shape, loaded.classes).to(place),
            examples=(loaded.train_inputs, loaded.train_targets),
            test_set=tensors_of(loaded),
            loaded=loaded,
        )

    return _run_job(Path(folder), prepare, config, resume=resume, finish=finish, on_step=on_step)


def _run_job(
    folder: Path,
    prepare: Callable[[RunConfig], RunJob],
    config: RunConfig,
    *,
    resume: bool,
    finish: bool,
    on_step: Callable[[StepReport], Any] | None,
) -> Run:
    """Claim the folder, train, write the records. A new run that fails before its first release leaves nothing."""
    with process_group() as processes:
        claim = FolderClaim(folder, config, resume=resume, finish=finish)
        try:
            job = processes.together(lambda: prepare(claim.config))
            return train_job(job, claim, on_step, finish=finish)
        except (Exception, KeyboardInterrupt):  # whatever it is, the same command shall be possible again
            claim.withdraw()
            raise
