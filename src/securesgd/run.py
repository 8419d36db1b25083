"""The path on one page: data → network with noisy first layer and its r → DP-SGD with a ledger → a run folder."""

__all__ = [
    "TrainedRun",
    "build_model",
    "finished_run",
    "load_run",
    "saved_config",
    "sensitivity_control",
    "set_redistribution",
    "train_run",
]

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.baselines.adlm.network import AdlmNetwork, seen_shape
from securesgd.baselines.adlm.preparation import adlm_choices
from securesgd.config import RunConfig
from securesgd.data.load import LoadedData, load
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.methods import method
from securesgd.models.control import SensitivityControl
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import accuracy
from securesgd.models.redistribution import Redistribution, from_gradients, prior, random, uniform
from securesgd.privacy import GaussianRelease, Ledger, PrivacyStatement, UnprotectedRelease, replayed_statement
from securesgd.report.plots import redistribution_figure
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.machine import environment
from securesgd.runtime.storage import is_leftover, parse_json, read_bytes, read_json, read_toml, write_json, write_whole
from securesgd.runtime.tensors import load_tensors
from securesgd.training.accounted_run import Interlude
from securesgd.training.examples import Examples
from securesgd.training.loop import StepReport, train

_FROM_GRADIENTS = ("public", "private", "as-published")
_SCORE_BATCH = 500
_WATCHED = 1000
_FORMAT = 1
"""Of model.json."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run folder in memory."""

    folder: Path
    config: RunConfig
    model: nn.Module
    data: LoadedData
    statement: PrivacyStatement
    test_accuracy: float


def train_run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    on_step: Callable[[StepReport, float | None], None] | None = None,
) -> TrainedRun:
    """Train as configured and leave a complete run folder.

    Guarantee: that of `securesgd.training.train`; everything written to the folder is covered by its ledger, except
    `metrics.jsonl`, which is about the test set.
    Raises: InvalidInputError if the folder is in use (and not resumed) or anything does not fit; OSError with the name
    of the file that could not be written. A new run that fails before its first release leaves nothing behind, so that
    the same call can be made again; a later one can be resumed.

    `on_step` gets each step's report and, now and then, the accuracy on the held-out examples if there are any.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{str(folder)!r} is not a text of Unicode characters; choose another folder") from None
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    is_ours = not _is_occupied(folder)
    try:
        config = _claimed(config, folder, resume)
        if (folder / "environment.json").exists():  # the last file a run writes: there is nothing left to do
            return finished_run(folder)
        return _trained(config, folder, on_step)
    except Exception:  # whatever it is, the same command shall be possible again
        if is_ours:
            _withdraw(folder, new)
        raise


def _trained(config: RunConfig, folder: Path, on_step: Callable[[StepReport, float | None], None] | None) -> TrainedRun:
    """Load, build, train and write the records of a run whose folder is claimed."""
    data = load(config.dataset, holdout=config.holdout, seed=config.seed)
    model = build_model(config, data.input_shape, data.classes)
    if isinstance(model, AdlmNetwork):
        choices = adlm_choices(model, config.training)
    else:
        noisy = method(config.method).noisy
        interlude = _interlude(config) if noisy and config.way in _FROM_GRADIENTS else None
        choices = {"project": sensitivity_control(config, model), "interlude": interlude}
    result = train(
        model,
        (data.train_inputs, data.train_targets),
        config.training,
        folder,
        resume=True,  # the folder is ours: a new run has a configuration in it and nothing else
        on_step=None if on_step is None else _watched(model, data, on_step),
        **choices,
    )
    if isinstance(model, NoisyNetwork):
        r = _final_redistribution(config, model)
        r.save(folder / "redistribution.json")
        title = f"{config.dataset}: {config.way} r, noise at the {config.robustness.place.replace('-', ' ')}"
        redistribution_figure(r.r, r.shape, title, folder / "redistribution.png")
    score = accuracy(model, data.test_inputs, data.test_targets)
    record = {"step": result.steps, "epsilon": _number(result.statement.accounted_epsilon), "test_accuracy": score}
    write_whole(
        folder / "metrics.jsonl", (json.dumps(record | {"test_images": len(data.test_targets)}) + "\n").encode()
    )
    write_json(folder / "model.json", _model_record(config, data, folder) | {"statement": result.statement.json()})
    write_json(folder / "environment.json", environment() | {"threads": torch.get_num_threads()})
    return TrainedRun(
        folder=folder, config=config, model=model, data=data, statement=result.statement, test_accuracy=score
    )


def _watched(
    model: nn.Module, data: LoadedData, on_step: Callable[[StepReport, float | None], None]
) -> Callable[[StepReport], None]:
    """Return a step callback that adds the held-out accuracy, twenty times per run."""

    def watch(report: StepReport) -> None:
        due = data.holdout_inputs is not None and report.step % max(1, report.steps // 20) == 0
        score = None
        if due and data.holdout_inputs is not None and data.holdout_targets is not None:
            score = accuracy(model, data.holdout_inputs[:_WATCHED], data.holdout_targets[:_WATCHED], draws=3)
        on_step(report, score)

    return watch


def load_run(folder: Path) -> tuple[RunConfig, nn.Module]:
    """Return configuration and model of a finished run. Raises: DamagedFileError if it is unfinished or broken."""
    config = saved_config(folder)
    if not (folder / "model.safetensors").exists() or not (folder / "model.json").exists():
        raise DamagedFileError(f"{folder} is not finished; go on with `securesgd train --resume --out {folder}`")
    record = read_json(folder / "model.json")
    try:
        version, shape = record["format"], tuple(int(size) for size in record["input_shape"])
        classes, digest = int(record["classes"]), record.get("config_sha256")
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{folder / 'model.json'} is damaged: {error}") from None
    if version != _FORMAT:
        raise DamagedFileError(f"{folder / 'model.json'} has format {version!r}; this version reads {_FORMAT}")
    if digest not in (None, _digest(folder / "config.toml")):
        raise DamagedFileError(f"{folder / 'config.toml'} is not the one this run was trained with; put that back")
    tensors = load_tensors(folder / "model.safetensors").tensors
    try:
        if _parameters(config, shape, classes) > sum(tensor.numel() for tensor in tensors.values()):
            raise InvalidInputError("it describes a larger network than model.safetensors has weights for")
        model = build_model(config, shape, classes)
    except InvalidInputError as error:
        raise DamagedFileError(f"{folder / 'model.json'} is damaged: {error}") from None
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise DamagedFileError(f"{folder / 'model.safetensors'} does not fit config.toml: {reason}") from None
    return config, model.eval()


def finished_run(folder: Path) -> TrainedRun:
    """Return a finished run as its folder has it, without measuring anything again. Raises: as `load_run`."""
    config, model = load_run(folder)
    data = load(config.dataset, holdout=config.holdout, seed=config.seed)
    lines = read_bytes(folder / "metrics.jsonl").splitlines()
    try:
        record = parse_json(lines[-1])
        score = float(record["test_accuracy"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DamagedFileError(f"{folder / 'metrics.jsonl'} is damaged: {error}") from None
    statement = replayed_statement(folder / "ledger.jsonl")
    return TrainedRun(folder=folder, config=config, model=model, data=data, statement=statement, test_accuracy=score)


def build_model(config: RunConfig, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of a configuration, freshly initialised from its seed, with its noise if it has any."""
    adlm = config.adlm
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        plain = _plain_network(config, input_shape, classes)
    if adlm is not None:
        return AdlmNetwork(plain, input_shape, adlm)
    if not method(config.method).noisy:
        return plain
    model = NoisyNetwork(plain, input_shape, place=config.robustness.place)  # type: ignore[arg-type]
    set_redistribution(
        config, model, _first_redistribution(config, model.output_shape), learned=config.way == "learned"
    )
    return model


def _plain_network(config: RunConfig, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    adlm = config.adlm
    seen = input_shape if adlm is None else seen_shape(input_shape, adlm)
    return network(config.network, seen, classes, hidden=adlm and adlm.hidden)  # type: ignore[arg-type]


def _parameters(config: RunConfig, input_shape: tuple[int, ...], classes: int) -> int:
    """Return the number of weights of the network without its noise, which is not built: a file may claim any size."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in _plain_network(config, input_shape, classes).parameters())


def set_redistribution(config: RunConfig, model: NoisyNetwork, r: Redistribution, *, learned: bool = False) -> None:
    """Give the layer noise shared out by r, of the size the configuration asks for at the present weights."""
    norm, wanted = config.robustness.norm, config.robustness.radius_per_std(method(config.method).mechanism)
    model.set_noise(r.std(1.0))
    sigma = model.sensitivity(norm).upper * wanted  # type: ignore[arg-type]
    model.set_noise(r.std(sigma), learned=learned)


def _first_redistribution(config: RunConfig, shape: tuple[int, ...]) -> Redistribution:
    way = config.robustness.start if config.way == "learned" else config.way
    if way == "prior":
        return prior(shape)
    if way == "random":
        return random(shape, config.seed)
    return uniform(shape)


def sensitivity_control(config: RunConfig, model: nn.Module) -> SensitivityControl | None:
    """Return what keeps Δ of the noisy layer at the wanted size after each step; None for a model without noise."""
    if not isinstance(model, NoisyNetwork):
        return None
    wanted = config.robustness.radius_per_std(method(config.method).mechanism)
    return SensitivityControl(model, config.robustness.norm, 1 / wanted)  # type: ignore[arg-type]


def _interlude(config: RunConfig) -> Interlude:
    """Return the release of r from gradients: on private data for a price, on public data free, or as published."""
    settings = config.robustness
    event: GaussianRelease | UnprotectedRelease | None = None
    if config.way == "private":
        event = GaussianRelease(noise_multiplier=settings.r_noise_multiplier, label="redistribution vector r")
    elif config.way == "as-published":
        event = UnprotectedRelease(
            label="redistribution vector r", reason="r was computed on the private data without noise, as published"
        )

    def action(model: nn.Module, examples: Examples, stream: KeyStream) -> None:
        assert isinstance(model, NoisyNetwork)
        if config.way == "public":
            public = load(str(config.public_dataset))
            batches = _batches(public.train_inputs, public.train_targets)
        else:
            batches = (examples.batch(np.arange(i, min(i + _SCORE_BATCH, len(examples))))
                       for i in range(0, len(examples), _SCORE_BATCH))  # fmt: skip
        r = from_gradients(
            model,
            batches,
            way=config.way,
            noise_multiplier=settings.r_noise_multiplier if config.way == "private" else 0.0,
            stream=stream,
            direction=settings.direction,  # type: ignore[arg-type]
            beta=settings.beta,
            per=_per(config, model),  # type: ignore[arg-type]
        )
        set_redistribution(config, model, r)

    return Interlude(step=int(settings.r_step * config.training.steps), event=event, action=action)


def _per(config: RunConfig, model: NoisyNetwork) -> str:
    return config.robustness.per or (
        "channel" if config.robustness.place == "first-layer" and len(model.output_shape) == 3 else "unit"
    )


def _final_redistribution(config: RunConfig, model: NoisyNetwork) -> Redistribution:
    """Return r as the trained layer has it."""
    variance = 1 / model.whitening**2
    used = {"learned": ("start",)} | dict.fromkeys(_FROM_GRADIENTS, ("direction", "beta"))
    details = {name: getattr(config.robustness, name) for name in used.get(config.way, ())}
    r = tuple(variance / variance.sum())
    return Redistribution(way=config.way, shape=model.output_shape, per="unit", r=r, details=details)


def _batches(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(inputs), _SCORE_BATCH):
        yield inputs[start : start + _SCORE_BATCH], targets[start : start + _SCORE_BATCH]


def _claimed(config: RunConfig, folder: Path, resume: bool) -> RunConfig:
    """Return the configuration to use: of a resumed run its own. Writes `config.toml` into a new folder."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} is a file; give the path of a folder")
    occupied = _is_occupied(folder)
    if occupied and not resume:
        raise InvalidInputError(f"{folder} is not empty; go on with --resume, or choose another folder")
    if occupied:
        return saved_config(folder)
    write_whole(folder / "config.toml", config.to_toml().encode())
    return config


def _is_occupied(folder: Path) -> bool:
    """Return whether something is there that is not an unfinished write of ours."""
    return folder.exists() and (not folder.is_dir() or not all(is_leftover(entry) for entry in folder.iterdir()))


def _withdraw(folder: Path, new: list[Path]) -> None:
    """Remove a run that failed before its first release: its files, and of its folders those in `new`, deepest first.

    A ledger that names a release stays, and everything with it: it counts, and the run can be resumed.
    """
    ledger = folder / "ledger.jsonl"
    try:
        if ledger.exists():
            with Ledger.open(ledger) as opened:
                if opened.events:
                    return
        for name in ("checkpoint.safetensors", "ledger.jsonl", "secret.json", "config.toml"):
            (folder / name).unlink(missing_ok=True)
        for place in new:
            place.rmdir()
    except (SecureSGDError, OSError):
        return  # the error that led here is the one to be told; --resume or another folder is the way on


def saved_config(folder: Path) -> RunConfig:
    """Return the configuration of a run folder. Raises: DamagedFileError if it has none."""
    if not (folder / "config.toml").exists():
        raise DamagedFileError(f"{folder} is not a run folder: it has no readable config.toml")
    try:
        return RunConfig.from_dict(read_toml(folder / "config.toml"))
    except InvalidInputError as error:
        raise DamagedFileError(f"{folder / 'config.toml'} is damaged: {error}") from None


def _model_record(config: RunConfig, data: LoadedData, folder: Path) -> dict[str, object]:
    """Return what `model.json` says of network and data, without a number of examples that is not public."""
    source = data.source
    if config.training.adjacency == "add-or-remove-one":
        source = source | {"sizes": {"test": source["sizes"]["test"]}}
    return {
        "format": _FORMAT,
        "config_sha256": _digest(folder / "config.toml"),
        "network": config.network,
        "method": config.method,
        "input_shape": list(data.input_shape),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "data": source,
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else "inf"
