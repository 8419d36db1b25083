"""From a configuration to a network: a built-in one or the user's, with its noise, and the release of r in training."""

__all__ = [
    "NetworkSource",
    "build_model",
    "build_trained_model",
    "probe_outputs",
    "redistribution_of",
    "redistribution_release",
    "require_same_outputs",
    "structure_digest",
]

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.baselines.adlm.network import AdlmNetwork, cropped_shape
from securesgd.config import RunConfig
from securesgd.data.public_images import public_examples
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.methods import method
from securesgd.models.gradient_scores import Per, redistribution_from_gradients
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.networks import NETWORKS, network, network_from_function
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.redistribution import WAYS, Redistribution, Way
from securesgd.models.validate_network import random_inputs, run_network
from securesgd.privacy import GaussianRelease, UnprotectedRelease
from securesgd.runtime.import_path import load_function
from securesgd.runtime.key_stream import KeyStream
from securesgd.training.examples import Examples, as_examples, require_other_examples
from securesgd.training.one_off_release import OneOffRelease

NetworkSource = str | nn.Module | Callable[..., nn.Module]
"""A user's network: an import path, a function that builds it, or the module itself."""
_SCORE_BATCH = 500


def build_model(config: RunConfig, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of a configuration, freshly initialised from its seed, with its noise if it has any."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        plain = _bare_network(config, input_shape, classes, config.network)
        if config.interval is not None:  # draws the weights anew
            return IntervalNetwork(plain, input_shape, config.interval, steps=config.training.steps)
    if config.adlm is not None:
        return AdlmNetwork(_sequential(plain), input_shape, config.adlm)
    chosen, robustness = method(config.method), config.robustness
    if not chosen.noisy:
        return plain
    return NoisyNetwork(
        plain,
        input_shape,
        norm=robustness.norm,  # type: ignore[arg-type]
        radius_per_std=robustness.radius_per_std(chosen.mechanism),
        redistribution=config.way,
        place=robustness.place,  # type: ignore[arg-type]
        start=robustness.start,
        seed=config.seed,
        learning=robustness.scale_learning(config.training.steps),
    )


def build_trained_model(
    config: RunConfig,
    input_shape: tuple[int, ...],
    classes: int,
    weights: dict[str, Tensor],
    *,
    source: NetworkSource | None = None,
    structure: str | None = None,
) -> nn.Module:
    """Return the network of a configuration with these weights, in eval mode.

    A network that is not built in comes from `source`: the import path in the configuration is never followed by
    itself, because importing is running code. A module is copied, not changed.
    Raises: InvalidInputError if a source is needed, is given for a built-in network, or has another structure than the
    digest `structure`; DamagedFileError if the weights do not fit.
    """
    if config.network not in NETWORKS and source is None:
        raise InvalidInputError(
            f"this run has a network of its own ({config.network}); give it: load_run(path, network=…) or "
            "--network package.module:function"
        )
    if config.network in NETWORKS and source not in (None, config.network):
        raise InvalidInputError(
            f"network is {source if isinstance(source, str) else type(source).__name__}, but the run has the built-in "
            f"network {config.network}; leave it out"
        )
    try:
        if config.network in NETWORKS:
            if _parameters(config, input_shape, classes) > sum(tensor.numel() for tensor in weights.values()):
                raise InvalidInputError("it describes a larger network than model.safetensors has weights for")
            source = config.network
        with torch.random.fork_rng():
            plain = _bare_network(config, input_shape, classes, source)
        model = _with_noise(config, plain, input_shape)
    except InvalidInputError as error:
        if config.network not in NETWORKS:
            raise
        raise DamagedFileError(f"model.json is damaged: {error}") from None
    if structure is not None and structure != structure_digest(model):
        raise InvalidInputError(
            f"the network has another structure (sha256 {structure_digest(model)[:8]}…) than the one that was trained "
            f"({structure[:8]}…); valid: the network of {config.network}"
        )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise DamagedFileError(f"model.safetensors does not fit config.toml: {reason}") from None
    return model.eval()


def structure_digest(model: nn.Module) -> str:
    """Return a digest of a model's structure: its layers in words, and the names, shapes and types of its tensors.

    What the code of a module computes besides cannot be compared.
    """
    tensors = sorted(f"{name} {list(tensor.shape)} {tensor.dtype}" for name, tensor in model.state_dict().items())
    return hashlib.sha256(repr((repr(model), tensors)).encode()).hexdigest()


@torch.no_grad()
def probe_outputs(model: nn.Module, input_shape: tuple[int, ...]) -> list[list[float]] | None:
    """Return the outputs of a model in eval mode, without its noise, at three inputs that are always the same.

    None if it takes other inputs than such numbers, or its outputs are not finite or not the same each time.
    """
    x = random_inputs(model, input_shape, batch=3)
    try:
        with model.from_layer(model.noisy.clean(x)) if isinstance(model, NoisyNetwork) else nullcontext():
            first, second = model(x), model(x)
        usable = first.dim() == 2 and torch.equal(first, second) and bool(torch.isfinite(first).all())
        return first.double().tolist() if usable else None
    except Exception:  # whatever a network of the user raises on inputs that are not its own
        return None


def require_same_outputs(model: nn.Module, input_shape: tuple[int, ...], expected: list[list[float]] | None) -> None:
    """Return if a model has the outputs that `probe_outputs` gave when it was trained, or none were recorded.

    Raises: InvalidInputError if not: it has the structure of the trained network, but other code.
    """
    outputs = None if expected is None else probe_outputs(model, input_shape)
    if expected is None or outputs is None:
        return
    scale = 1e-3 * float(np.abs(outputs).max())
    if np.shape(expected) != np.shape(outputs) or not np.allclose(expected, outputs, rtol=1e-3, atol=scale):
        raise InvalidInputError(
            "the network has the structure of the one that was trained, but computes something else with its weights; "
            "valid: the same code"
        )


def redistribution_of(config: RunConfig, model: NoisyNetwork) -> Redistribution:
    """Return r as the layer of a model has it now."""
    variance = 1 / model.whitening**2
    made = {name: getattr(config.robustness, name) for name in _way(config).details}
    made |= {} if config.public_dataset is None else {"public_dataset": config.public_dataset}
    details = {name: value for name, value in made.items() if value is not None}
    r = tuple(variance / variance.sum())
    return Redistribution(way=config.way, shape=model.output_shape, per="unit", r=r, details=details)


def redistribution_release(
    config: RunConfig, model: nn.Module, private: Examples | None = None
) -> OneOffRelease | None:
    """Return the release of r from gradients, if the way needs one: on private data it costs, on public data not.

    Raises: InvalidInputError if the public data are the `private` ones, which are not needed for its cost alone.
    """
    settings, way = config.robustness, _way(config)
    if not isinstance(model, NoisyNetwork) or way.reads == "nothing":
        return None
    event: GaussianRelease | UnprotectedRelease | None = None
    noise = settings.r_noise_multiplier if way.reads == "private data" and way.protected else 0.0
    if noise:
        event = GaussianRelease(noise_multiplier=noise, label="redistribution vector r")
    elif way.reads == "private data":
        event = UnprotectedRelease(
            label="redistribution vector r", reason="r was computed on the private data without noise, as published"
        )

    public: Examples | None = None
    if way.reads == "public data":
        outputs = run_network(model, random_inputs(model, model.input_shape))
        images, labels = public_examples(str(config.public_dataset), model.input_shape, int(outputs.shape[-1]))
        if private is not None:
            require_other_examples(private, images, labels)
        public = as_examples((images, labels))

    def action(model: nn.Module, examples: Examples, stream: KeyStream) -> None:
        assert isinstance(model, NoisyNetwork)
        r = redistribution_from_gradients(
            model,
            _batches(examples if public is None else public),
            way=config.way,
            noise_multiplier=noise,
            stream=stream,
            direction=settings.direction,  # type: ignore[arg-type]
            beta=settings.beta,
            per=_per(config, model),
        )
        model.set_redistribution(r)

    return OneOffRelease(step=int(settings.r_step * config.training.steps), event=event, action=action)


def _way(config: RunConfig) -> Way:
    """Return the row of the way; one from outside is not imported again: it reads no data and is not learned."""
    return WAYS.get(config.way, Way())


def _with_noise(config: RunConfig, plain: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the network with noise of the right form, whose values are in the weights still to be loaded."""
    if config.adlm is not None:
        return AdlmNetwork(_sequential(plain), input_shape, config.adlm)
    if config.interval is not None:
        with torch.random.fork_rng():
            return IntervalNetwork(plain, input_shape, config.interval, steps=config.training.steps)
    if not method(config.method).noisy:
        return plain
    robustness = config.robustness
    model = NoisyNetwork(plain, input_shape, norm=robustness.norm, place=robustness.place)  # type: ignore[arg-type]
    model.redistribution, model.start = config.way, robustness.start
    model.learning = robustness.scale_learning(config.training.steps)
    model.radius_per_std = robustness.radius_per_std(method(config.method).mechanism)
    model.set_noise(np.ones(model.units), learned=_way(config).learned)
    return model


def _bare_network(
    config: RunConfig, input_shape: tuple[int, ...], classes: int, source: NetworkSource | None
) -> nn.Module:
    """Return a network without noise, from its name, an import path, a function or as it is."""
    if isinstance(source, str) and source in NETWORKS:
        adlm = config.adlm
        shape = input_shape if adlm is None else cropped_shape(input_shape, adlm)
        return network(source, shape, classes, hidden=adlm and adlm.hidden)  # type: ignore[arg-type]
    if isinstance(source, NoisyNetwork | IntervalNetwork):
        raise InvalidInputError(f"network is a {type(source).__name__}; valid: the network in it")
    if isinstance(source, nn.Module):
        return copy.deepcopy(source)
    build = load_function(source, "network") if isinstance(source, str) else source
    if build is None:
        raise InvalidInputError(f"network {config.network!r} is not built in and was not given")
    return network_from_function(build, input_shape, classes, str(source))


def _sequential(plain: nn.Module) -> nn.Sequential:
    if not isinstance(plain, nn.Sequential):
        raise InvalidInputError(f"AdLM needs a built-in network, got {type(plain).__name__}")
    return plain


def _parameters(config: RunConfig, input_shape: tuple[int, ...], classes: int) -> int:
    """Return the number of weights of the network without its noise, which is not built: a file may claim any size."""
    with torch.device("meta"):
        plain = _bare_network(config, input_shape, classes, config.network)
        return sum(weight.numel() for weight in plain.parameters())


def _per(config: RunConfig, model: NoisyNetwork) -> Per:
    is_convolution = config.robustness.place == "first-layer" and len(model.output_shape) == 3
    return config.robustness.per or ("channel" if is_convolution else "unit")  # type: ignore[return-value]


def _batches(examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(examples), _SCORE_BATCH):
        yield examples.batch(np.arange(start, min(start + _SCORE_BATCH, len(examples))))
