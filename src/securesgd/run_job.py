"""A run to be made: the claim of its folder, the arguments of its training, and the records of a finished one."""

__all__ = ["FolderClaim", "RunJob", "finished_run", "own_job", "train_job", "write_records"]

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
    probe_outputs,
    redistribution_of,
    redistribution_release,
    structure_digest,
)
from securesgd.certificates.column_radii import require_all_features
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.clipping.losses import Loss
from securesgd.config import IN_MEMORY, RunConfig, saved_config
from securesgd.data.load import LoadedData, load_data
from securesgd.data.public_images import public_examples
from securesgd.errors import InvalidInputError, SecureSGDError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.networks import NETWORKS
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import predicted_classes, share_right
from securesgd.models.validate_network import random_inputs, run_network
from securesgd.own_config import difference_in_words, own_config
from securesgd.privacy import Ledger
from securesgd.report.model_card import write_model_card
from securesgd.report.plots import redistribution_figure
from securesgd.run import Run
from securesgd.run_data import keep_data_path
from securesgd.runtime import run_folder as names
from securesgd.runtime.machine import environment
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.run_records import FORMAT, read_model_record
from securesgd.runtime.storage import file_digest, write_json, write_whole
from securesgd.runtime.tensors import load_tensors
from securesgd.theory.class_balance import class_balance
from securesgd.training.consistency import joint_loss
from securesgd.training.examples import as_examples, check_range, data_digest, require_other_examples, tensors_of
from securesgd.training.held_out import HeldOutMetrics
from securesgd.training.loop import train as train_model
from securesgd.training.optimizer import OwnOptimizer, OwnScheduler
from securesgd.training.public_start import learn_from_public
from securesgd.training.result import StepReport, TrainingResult
from securesgd.training.step_loss import loss_of_step, per_example_cross_entropy
from securesgd.training.trained_weights import open_training, remember_weights, require_first_training


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """What is to be trained, on what."""

    config: RunConfig
    model: nn.Module
    examples: Any
    test_set: tuple[Tensor, Tensor] | None
    loaded: LoadedData | None
    loss: Loss = per_example_cross_entropy
    optimizer: OwnOptimizer | None = None
    scheduler: OwnScheduler | None = None
    input_range: tuple[float, float] | None = (0.0, 1.0)

    @property
    def has_range(self) -> bool:
        """Whether certificates of the model are about inputs within a range."""
        return isinstance(self.model, NoisyNetwork | IntervalNetwork)

    @property
    def origin(self) -> str:
        """Where the first weights come from, if from public data, in words: a resumed run must say the same."""
        config = self.config
        return f"{config.public_steps} public steps on {config.public_dataset}" if config.public_steps else ""

    def training_arguments(self) -> dict[str, Any]:
        """Return loss, optimizer, scheduler and one-off release for the training loop.

        Raises: InvalidInputError if the data do not fit the model, the range of its inputs or the adjacency.
        """
        config, model = self.config, self.model
        if self.test_set is not None:
            _require_like_training(self.test_set[0], self.examples)
        if self.has_range and self.loaded is not None and self.loaded.preprocessing.get("kind") == "table":
            require_all_features(self.input_range)
        if self.has_range and self.input_range is not None:
            for examples in (self.examples, self.test_set):
                if examples is not None:
                    check_range(as_examples(examples), self.input_range)
        if self.loaded is not None and self.loaded.by_share and config.training.adjacency == "add-or-remove-one":
            raise InvalidInputError(
                "the test examples are a share of all, so their number tells that of the training examples, which is "
                "not public with a sampling_rate or population; valid: test examples of their own (--set test=FILE, or "
                "a folder with train/ and test/)"
            )
        joint_loss(self.loss, config.training)  # refused before public steps are taken
        if isinstance(model, AdlmNetwork):
            return adlm_training_arguments(model, config.training)
        return {
            "loss": loss_of_step(model, None if self.loss is per_example_cross_entropy else self.loss),
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "one_off_release": redistribution_release(config, model, as_examples(self.examples)),
        }

    def learn_from_public(self, folder: Path) -> None:
        """Give the model its first weights, if they are to come from public data.

        Raises: InvalidInputError if the model is in training or was trained on these data before (afterwards, nobody
        would know its weights), or if the public data are the private ones.
        """
        if not self.config.public_steps:
            return
        config, examples = self.config, as_examples(self.examples)
        if config.training.private and config.training.noise_seed is None:
            require_first_training(self.model, data_digest(examples))
        inputs, _ = examples.batch(np.arange(1))
        shape = tuple(inputs.shape[1:])
        with open_training(self.model, folder):
            classes = run_network(self.model, random_inputs(self.model, shape)).shape[-1]
            images, labels = public_examples(str(config.public_dataset), shape, classes)
            require_other_examples(examples, images, labels)
            learn_from_public(self.model, images, labels, steps=config.public_steps, seed=config.seed)

    def require_config(self, saved: RunConfig, folder: str | Path) -> "RunJob":
        """Return this job if it has the configuration of the run in `folder`. Raises: InvalidInputError if not."""
        if saved != self.config:
            raise InvalidInputError(
                f"{folder} was started with other settings: {difference_in_words(saved, self.config)}; use the same"
            )
        return self

    def metrics(self, files: RunFolder) -> HeldOutMetrics:
        """Return the writer of metrics.jsonl."""
        held_out = (None, None) if self.loaded is None else (self.loaded.holdout_inputs, self.loaded.holdout_targets)
        return HeldOutMetrics(files.path / names.METRICS, self.model, *held_out)


class FolderClaim:
    """The folder of a run, claimed for it: a new one has `config.toml` in it, one to be resumed has its own already.

    Under torchrun the first process alone looks at the folder and writes to it.
    Raises: InvalidInputError if the folder is in use and not resumed, or there is nothing to finish.
    """

    def __init__(self, folder: Path, config: RunConfig, *, resume: bool, finish: bool = False) -> None:
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            raise InvalidInputError(
                f"{str(folder)!r} is not a text of Unicode characters; choose another folder"
            ) from None
        self.files = RunFolder(folder)
        self._new_folders: list[Path] | None = None

        def claim() -> tuple[RunConfig, bool]:
            if not self.files.occupied:
                self._new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
            if finish:
                self.files.claim(resume, finish=True)
            return _claim(config, self.files, resume or finish), self.files.complete

        try:
            self.config, self.complete = Processes().on_first(claim)
        except (Exception, KeyboardInterrupt):
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Remove a new run that failed before its first release, so that the same call can be made again."""
        if self._new_folders is not None:
            _withdraw(self.files, self._new_folders)


def own_job(
    model: nn.Module,
    data: "LoadedData | Dataset[Any] | tuple[Tensor, Tensor] | str",
    *,
    settings: dict[str, Any],
    test: "Dataset[Any] | tuple[Tensor, Tensor] | None" = None,
    network: str | None = None,
    loss: Loss = per_example_cross_entropy,
    optimizer: OwnOptimizer | None = None,
    scheduler: OwnScheduler | None = None,
    input_range: tuple[float, float] | None = (0.0, 1.0),
) -> RunJob:
    """Return the job of a user's own module. Raises: InvalidInputError for a setting that does not exist."""
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"model is a {type(model).__name__}; valid: a torch.nn.Module")
    loaded = load_data(data) if isinstance(data, str) else data if isinstance(data, LoadedData) else None
    own = {"optimizer": "own" if optimizer else None, "schedule": "own" if scheduler else None}
    config = own_config(model, loaded, network, settings | {name: word for name, word in own.items() if word})
    if isinstance(model, IntervalNetwork):
        model.steps = config.training.steps
    examples = (loaded.train_inputs, loaded.train_targets) if loaded is not None else data
    test_set = tensors_of(test) if test is not None else None if loaded is None else tensors_of(loaded)
    return RunJob(
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


def train_job(job: RunJob, claim: FolderClaim, on_step: Callable[[StepReport], Any] | None, *, finish: bool) -> Run:
    """Train and write the records of a run whose folder is claimed; of a complete one, load what is there."""
    if claim.complete:
        return finished_run(job, claim.files)
    arguments = job.training_arguments()
    Processes().on_first(lambda: None if claim.files.started else job.learn_from_public(claim.files.path))
    metrics = job.metrics(claim.files)
    result = train_model(
        job.model,
        job.examples,
        job.config.training,
        claim.files.path,
        resume=True,  # the folder is ours: a new run has a configuration in it and nothing else
        finish=finish,
        on_step=metrics.watch(on_step),
        origin=job.origin,
        **arguments,
    )
    return write_records(job, claim.files, metrics, result)


def finished_run(job: RunJob, files: RunFolder) -> Run:
    """Return a complete run, its weights loaded into the model of the job."""
    processes, folder = Processes(), files.path

    def load() -> dict[str, Tensor]:
        read_model_record(folder)  # raises if config.toml is not the one of the training
        return load_tensors(files.model).tensors

    job.model.load_state_dict(processes.on_first(load))
    remember_weights(job.model, job.examples)
    run = Run(folder, job.config, job.model, job.loaded)

    def check() -> None:
        run.require_own_model()
        run.privacy  # noqa: B018 - raises if the ledger is gone or not that of the weights

    processes.on_first(check)
    return run


def write_records(job: RunJob, files: RunFolder, metrics: HeldOutMetrics, result: TrainingResult) -> Run:
    """Write what a run folder has besides ledger and weights, and return the run; model.json last."""
    config, model, folder = job.config, job.model, files.path

    def write() -> None:
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

    Processes().on_first(write)
    return Run(folder, config, model, job.loaded)


def _test_metrics(model: nn.Module, job: RunJob) -> dict[str, Any]:
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
        for path in (files.asked, files.checkpoint, files.ledger, files.secret, files.path / names.CONFIG):
            path.unlink(missing_ok=True)
        for folder in new_folders:
            folder.rmdir()
    except (SecureSGDError, OSError):
        return  # the error that led here is the one to be told; --resume or another folder is the way on


def _model_record(job: RunJob, folder: Path) -> dict[str, Any]:
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
