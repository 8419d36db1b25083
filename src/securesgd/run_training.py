"""Making a run: data and a network → DP-SGD with a ledger → a complete run folder."""

__all__ = ["train", "train_run"]

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.baselines.adlm.network import AdlmNetwork
from securesgd.baselines.adlm.preparation import adlm_training_arguments
from securesgd.build import (
    build_model,
    probe_outputs,
    redistribution_of,
    redistribution_release,
    structure_digest,
)
from securesgd.certificates.column_radii import require_all_features
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.clipping.slow_path import Loss
from securesgd.config import IN_MEMORY, RunConfig, saved_config
from securesgd.data.load import LoadedData, load_data
from securesgd.errors import InvalidInputError, SecureSGDError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.networks import NETWORKS
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import predicted_classes, share_right
from securesgd.own_config import difference_in_words, own_config
from securesgd.privacy import Ledger
from securesgd.report.model_card import write_model_card
from securesgd.report.plots import redistribution_figure
from securesgd.run import Run
from securesgd.run_data import keep_data_path
from securesgd.runtime import run_folder as names
from securesgd.runtime.machine import environment, torch_device
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.run_records import FORMAT, read_model_record
from securesgd.runtime.storage import file_digest, write_json, write_whole
from securesgd.runtime.tensors import load_tensors
from securesgd.theory.class_balance import class_balance
from securesgd.training.examples import as_examples, check_range, tensors_of
from securesgd.training.held_out import HeldOutMetrics
from securesgd.training.loop import StepReport, per_example_cross_entropy, remember_weights
from securesgd.training.loop import train as train_model
from securesgd.training.optimizer import OptimizerFactory, SchedulerFactory


def train(
    model: nn.Module,
    data: "LoadedData | Dataset[Any] | tuple[Tensor, Tensor] | str",
    *,
    out: str | Path,
    test: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
    network: str | None = None,
    loss: Loss = per_example_cross_entropy,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
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
    rebuild the module; otherwise `load_run` takes the module. `loss(outputs, targets)` returns a number per example.
    `optimizer` and `scheduler` make a torch.optim optimizer of the parameters, and a scheduler of it, in place of those
    of the settings. `on_step` gets a `StepReport` after each step and stops the run by returning False. `finish` ends a
    run that was interrupted, with the weights of its checkpoint and the epsilon that is paid. `input_range` is what the
    inputs of a NoisyNetwork or IntervalNetwork are within (None: any numbers); later commands take it from the folder.
    `settings` are those of `TrainingSettings` (epsilon, delta, batch_size, steps, …) and of `RobustnessSettings`
    (r_step, …).
    """
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"model is a {type(model).__name__}; valid: a torch.nn.Module")
    if on_step is not None and not callable(on_step):
        raise InvalidInputError(f"on_step is a {type(on_step).__name__}; valid: a function of a StepReport, or None")
    loaded = load_data(data) if isinstance(data, str) else data if isinstance(data, LoadedData) else None
    own = {"optimizer": "own" if optimizer else None, "schedule": "own" if scheduler else None}
    config = own_config(model, loaded, network, settings | {name: word for name, word in own.items() if word})
    if isinstance(model, IntervalNetwork):
        model.steps = config.training.steps
    examples = (loaded.train_inputs, loaded.train_targets) if loaded is not None else data
    test_set = tensors_of(test) if test is not None else None if loaded is None else tensors_of(loaded)
    job = _Job(
        config=config,
        model=model,
        examples=examples,
        test_set=test_set,
        loaded=loaded,
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        input_range=input_range,
    )

    def prepare(saved: RunConfig) -> _Job:
        if saved != config:
            raise InvalidInputError(
                f"{out} was started with other settings: {difference_in_words(saved, config)}; use the same"
            )
        return job

    return _run_job(Path(out), prepare, config, resume=resume, finish=finish, on_step=on_step)


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

    def prepare(config: RunConfig) -> "_Job":
        for name, path in config.import_paths.items():
            if given.get(name) != path:
                raise InvalidInputError(
                    f"the run in {folder} uses {path}, which is code; to resume it, give a configuration with this "
                    f"{name}"
                )
        loaded = read_before
        if loaded is None:
            loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
        return _Job(
            config=config,
            model=build_model(config, loaded.input_shape, loaded.classes).to(place),
            examples=(loaded.train_inputs, loaded.train_targets),
            test_set=tensors_of(loaded),
            loaded=loaded,
        )

    return _run_job(Path(folder), prepare, config, resume=resume, finish=finish, on_step=on_step)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is to be trained, on what."""

    config: RunConfig
    model: nn.Module
    examples: Any
    test_set: tuple[Tensor, Tensor] | None
    loaded: LoadedData | None
    loss: Loss = per_example_cross_entropy
    optimizer: OptimizerFactory | None = None
    scheduler: SchedulerFactory | None = None
    input_range: tuple[float, float] | None = (0.0, 1.0)

    @property
    def has_range(self) -> bool:
        """Whether certificates of the model are about inputs within a range."""
        return isinstance(self.model, NoisyNetwork | IntervalNetwork)


def _run_job(
    folder: Path,
    prepare: Callable[[RunConfig], _Job],
    config: RunConfig,
    *,
    resume: bool,
    finish: bool,
    on_step: Callable[[StepReport], Any] | None,
) -> Run:
    """Claim the folder, train, write the records. A new run that fails before its first release leaves nothing."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{str(folder)!r} is not a text of Unicode characters; choose another folder") from None
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    files = RunFolder(folder)
    is_new = not files.occupied
    if finish:
        files.claim(resume, finish=True)
    try:
        config = _claim(config, files, resume or finish)
        job = prepare(config)
        if files.complete:
            read_model_record(folder)  # raises if config.toml is not the one of the training
            job.model.load_state_dict(load_tensors(files.model).tensors)
            remember_weights(job.model, job.examples)
            run = Run(folder, config, job.model, job.loaded)
            run.require_own_model()
            run.privacy  # noqa: B018 - raises if the ledger is gone or not that of the weights
            return run
        return _train_job(job, files, on_step, finish=finish)
    except (Exception, KeyboardInterrupt):  # whatever it is, the same command shall be possible again
        if is_new:
            _withdraw(files, new_folders)
        raise


def _train_job(job: _Job, files: RunFolder, on_step: Callable[[StepReport], Any] | None, *, finish: bool) -> Run:
    """Train and write the records of a run whose folder is claimed."""
    config, model, folder = job.config, job.model, files.path
    if job.test_set is not None:
        _require_like_training(job.test_set[0], job.examples)
    if job.has_range and job.loaded is not None and job.loaded.preprocessing.get("kind") == "table":
        require_all_features(job.input_range)
    if job.has_range and job.input_range is not None:
        for examples in (job.examples, job.test_set):
            if examples is not None:
                check_range(as_examples(examples), job.input_range)
    if job.loaded is not None and job.loaded.by_share and config.training.adjacency == "add-or-remove-one":
        raise InvalidInputError(
            "the test examples are a share of all, so their number tells that of the training examples, which is not "
            "public with a sampling_rate or population; valid: test examples of their own (--set test=FILE, or a "
            "folder with train/ and test/)"
        )
    choices: dict[str, Any] = {"loss": job.loss, "optimizer": job.optimizer, "scheduler": job.scheduler}
    choices["one_off_release"] = redistribution_release(config, model)
    if isinstance(model, IntervalNetwork):
        if job.loss is not per_example_cross_entropy:
            raise InvalidInputError("loss is given; valid for an IntervalNetwork: its own, which has the bounds in it")
        choices["loss"] = model.loss
    if isinstance(model, AdlmNetwork):
        choices = adlm_training_arguments(model, config.training)
    held_out = (None, None) if job.loaded is None else (job.loaded.holdout_inputs, job.loaded.holdout_targets)
    metrics = HeldOutMetrics(folder / names.METRICS, model, *held_out)
    result = train_model(
        model,
        job.examples,
        config.training,
        folder,
        resume=True,  # the folder is ours: a new run has a configuration in it and nothing else
        finish=finish,
        on_step=metrics.watch(on_step),
        **choices,
    )
    if isinstance(model, NoisyNetwork):
        r = redistribution_of(config, model)
        r.save(folder / names.REDISTRIBUTION)
        title = f"{config.dataset}: {config.way} r, noise at the {config.robustness.place.replace('-', ' ')}"
        redistribution_figure(r.r, r.shape, title, folder / names.REDISTRIBUTION_PICTURE)
    metrics.finish(step=result.steps, epsilon=result.statement.accounted_epsilon, test=_test_metrics(model, job))
    machine = {"threads": torch.get_num_threads(), "device": str(next(model.parameters()).device)}
    write_json(folder / names.ENVIRONMENT, environment() | machine)
    keep_data_path(folder, config)
    record = _model_record(job, folder) | {"steps": result.steps, "statement": result.statement.json()}
    write_json(folder / names.MODEL, record)  # the last record: the run is finished
    write_model_card(folder)
    return Run(folder, config, model, job.loaded)


def _test_metrics(model: nn.Module, job: _Job) -> dict[str, Any]:
    """Return what metrics.jsonl says about the test set: accuracy, examples, and the balance of its classes."""
    if job.test_set is None:
        return {"test_accuracy": None, "test_images": 0, "test_balance": None}
    inputs, targets = job.test_set
    predictions = predicted_classes(model, inputs)
    try:
        class_names = None if job.loaded is None else job.loaded.class_names
        balance = class_balance(targets.tolist(), predictions.tolist()).json(class_names)
    except InvalidInputError:  # targets of a loss of the user's own need not be classes
        balance = None
    return {
        "test_accuracy": share_right(predictions, targets),
        "test_images": len(targets),
        "test_balance": balance,
    }


def _require_like_training(test_inputs: Tensor, examples: Any) -> None:
    """Raise InvalidInputError if test inputs are of another shape: better now than when training has ended."""
    shape, expected = test_inputs.shape[1:], as_examples(examples).batch(np.arange(1))[0].shape[1:]
    if shape != expected:
        raise InvalidInputError(f"test inputs have shape {list(shape)}; valid: {list(expected)}, as those of training")


def _claim(config: RunConfig, files: RunFolder, resume: bool) -> RunConfig:
    """Return the configuration to use: of a resumed run its own. Write `config.toml` into a new folder."""
    folder = files.path
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} is a file; give the path of a folder")
    if files.occupied and not resume:
        raise InvalidInputError(f"{folder} is not empty; resume it with --resume, or choose another folder")
    if files.occupied:
        return saved_config(folder)
    write_whole(folder / names.CONFIG, config.to_toml().encode())
    return config


def _withdraw(files: RunFolder, new_folders: list[Path]) -> None:
    """Remove a run that failed before its first release: its files, and its new folders, deepest first.

    A ledger that names a release stays, and everything with it: it counts, and the run can be resumed.
    """
    try:
        if files.ledger.exists():
            with Ledger.open(files.ledger) as opened:
                if opened.events:
                    return
        for path in (files.checkpoint, files.ledger, files.secret, files.path / names.CONFIG):
            path.unlink(missing_ok=True)
        for folder in new_folders:
            folder.rmdir()
    except (SecureSGDError, OSError):
        return  # the error that led here is the one to be told; --resume or another folder is the way on


def _model_record(job: _Job, folder: Path) -> dict[str, Any]:
    """Return what `model.json` says of network and data, without a number of examples that is not public."""
    config, loaded = job.config, job.loaded
    if loaded is None:
        inputs, _ = as_examples(job.examples).batch(np.arange(1))
        with torch.no_grad():
            classes = job.model(inputs.to(next(job.model.parameters()).device)).shape[1]
        shape, class_names = tuple(inputs.shape[1:]), [str(number) for number in range(classes)]
        source: dict[str, Any] = {"name": IN_MEMORY}
    else:
        shape, class_names, source = loaded.input_shape, list(loaded.class_names), loaded.source
        if config.training.adjacency == "add-or-remove-one":
            source = source | {"sizes": {"test": source["sizes"]["test"]}}
    return {
        "format": FORMAT,
        "config_sha256": file_digest(folder / names.CONFIG),
        "weights_sha256": file_digest(folder / names.WEIGHTS),
        "network": config.network,
        "structure_sha256": structure_digest(job.model),
        "weights": sum(weight.numel() for weight in job.model.parameters() if weight.requires_grad),
        **({} if config.network in NETWORKS else {"outputs": probe_outputs(job.model, shape)}),
        "method": config.method,
        "input_shape": list(shape),
        "classes": len(class_names),
        "class_names": class_names,
        "data": source,
        **({"input_range": job.input_range} if job.has_range else {}),
        **({} if loaded is None or not loaded.preprocessing else {"preprocessing": loaded.preprocessing}),
        **({} if job.test_set is None else {"test_sha256": examples_digest(*job.test_set)}),
    }
