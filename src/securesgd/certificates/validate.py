"""Validation of what is to be certified: a noisy network in eval mode that treats examples one by one, and inputs."""

__all__ = [
    "require_eval_mode",
    "require_finite_weights",
    "require_inputs",
    "require_same_function",
    "validate_indices",
    "validate_model",
]

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.models.input_path import require_same_everywhere, require_steady
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork
from securesgd.models.validate_network import require_sound
from securesgd.runtime.machine import require_full_precision

_PROBES = 16


def validate_model(
    model: nn.Module, inputs: Tensor, input_range: tuple[float, float] | None
) -> tuple[NoisyNetwork, SplitNetwork]:
    """Return the model, and split for many draws, after checking that a certificate of it would be true.

    The checks of construction are made anew: layers, weights and flags may have changed since.
    Assumes: what sixteen random draws do not show of the rest of the network does not happen.
    Raises: InvalidInputError for a model without noise, in training mode, with batch statistics, with randomness of its
    own, that uses its input elsewhere, or with weights that are not finite or not in single or double precision; for
    inputs of the wrong shape or type, not finite or out of range.
    """
    if not isinstance(model, NoisyNetwork):
        raise InvalidInputError(
            f"{type(model).__name__} has no noise in its first layer, so there is nothing to certify; "
            "wrap it in NoisyNetwork, or train with secure-sgd, secure-sgd-agm, pixeldp or hgm-pixeldp"
        )
    require_eval_mode(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise InvalidInputError(f"{name} uses statistics of the batch, so examples are not treated one by one")
    require_finite_weights(model)
    _require_precision(model)
    require_inputs(inputs, model.input_shape, input_range)
    with torch.inference_mode(False):
        require_sound(model)
        require_steady(model, inputs[:1].clone().to(model.noisy.noise.std))
    network = SplitNetwork(model)
    _require_sound_rest(model, network, inputs)
    return model, network


def require_eval_mode(model: nn.Module) -> None:
    """Return if the model predicts as it is. Raises: InvalidInputError naming a part that is in training mode."""
    # linear, scaled, noisy: the same in either mode
    noisy = set(model.noisy.modules()) if isinstance(model, NoisyNetwork) else set()
    training = [
        name or "the model" for name, module in model.named_modules() if module.training and module not in noisy
    ]
    if training:
        raise InvalidInputError(f"{training[0]} is in training mode; call model.eval() first")


def require_finite_weights(model: nn.Module) -> None:
    """Return if all weights and buffers are finite. Raises: InvalidInputError naming one that is not."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInputError(f"{name} of the model is not finite")


def validate_indices(indices: ArrayLike | None, count: int, *, unique: bool = True) -> NDArray[np.int64]:
    """Return the examples' indices in their data set, 0, 1, … if none are given."""
    if indices is None:
        return np.arange(count)
    chosen = np.asarray(indices)
    if chosen.shape != (count,) or not np.issubdtype(chosen.dtype, np.integer):
        raise InvalidInputError(f"indices must be {count} whole numbers, one per input, got shape {chosen.shape}")
    if count and (chosen.min() < 0 or chosen.max() >= 2**31):
        raise InvalidInputError(f"indices must be in 0..2³¹ − 1, got {chosen.min()} to {chosen.max()}")
    if unique and len(np.unique(chosen)) < count:
        raise InvalidInputError("indices must be different from each other")
    return chosen.astype(np.int64)


def require_same_function(model: NoisyNetwork, inputs: Tensor, reach: float) -> NDArray[np.float64]:
    """Return the rounding of the layer at each input, after comparing what is certified with what the model computes.

    Guarantee: at each input the layer gets it as it is, there and at points up to `reach` away; and it computes
    W₁x + b₁ within the error that the certificate allows for.
    Raises: InvalidInputError if not.
    """
    require_same_everywhere(model, inputs, reach)
    allowed, seen = model.rounding(inputs), model.rounding_seen(inputs)
    if not bool((seen <= allowed).all()):
        worst = int(np.argmax(seen - allowed))
        raise InvalidInputError(
            f"the first layer is off by {seen[worst]:.3g} standard deviations at input {worst}, more than its type's "
            f"rounding explains ({allowed[worst]:.3g}); valid: sums in the precision of the weights"
        )
    return allowed


def _require_precision(model: NoisyNetwork) -> None:
    """Pass if all is in single or double precision, the noisy layer in one of them, and torch does not lower it."""
    kinds = (torch.float32, torch.float64)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype not in kinds:
            raise InvalidInputError(f"{name} of the model is of type {tensor.dtype}; valid: torch.float32 or float64")
    kind = model.noisy.noise.std.dtype
    for name, parameter in model.noisy.named_parameters():
        if parameter.dtype != kind:
            raise InvalidInputError(f"{name} of the noisy layer is of type {parameter.dtype}, its noise of type {kind}")
    require_full_precision(model.noisy.noise.std.device.type)


def require_inputs(inputs: Tensor, shape: tuple[int, ...], input_range: tuple[float, float] | None) -> None:
    """Return if the inputs are examples of this shape in the range. Raises: InvalidInputError if not."""
    if tuple(inputs.shape[1:]) != shape or len(inputs) == 0:
        raise InvalidInputError(
            f"inputs have shape {list(inputs.shape)}; valid: one or more examples of shape {list(shape)}"
        )
    if inputs.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(
            f"inputs are of type {inputs.dtype}; valid: torch.float32 or float64, as the model was trained on"
        )
    flat = inputs.flatten(1)
    bad = (~torch.isfinite(flat)).any(1).nonzero()
    if len(bad):
        raise InvalidInputError(f"input {int(bad[0])} is not finite")
    if input_range is not None:
        low, high = input_range
        outside = ((flat < low) | (flat > high)).any(1).nonzero()
        if len(outside):
            row = flat[int(outside[0])]
            raise InvalidInputError(
                f"input {int(outside[0])} has values from {float(row.min()):g} to {float(row.max()):g}, outside "
                f"{low:g}..{high:g}; give input_range if that is what the model was trained on"
            )


@torch.inference_mode()
def _require_sound_rest(model: NoisyNetwork, network: SplitNetwork, inputs: Tensor) -> None:
    """Pass if the rest of the network is deterministic, treats rows one by one, and is the model's own function."""
    x = inputs[:1]
    normals = torch.randn(_PROBES, *network.noise_shape, generator=torch.Generator().manual_seed(0))
    h = network.clean(x) + network.spread(normals.to(network.dtype))
    outputs = network.outputs(h)
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise InvalidInputError(
            f"the model's output has shape {list(outputs.shape)}; valid: [examples, 2 classes or more]"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise InvalidInputError("the model's output is not finite on noisy inputs")
    if not torch.equal(outputs, network.outputs(h)):
        raise InvalidInputError("the model has randomness besides the noise of its first layer; the rest must be fixed")
    size = float(outputs.abs().max())
    alone = torch.cat([network.outputs(row) for row in torch.split(h.flip(0), _PROBES // 4)]).flip(0)
    if not torch.allclose(outputs, alone, rtol=1e-3, atol=1e-3 * size):
        raise InvalidInputError("the model's output for an example depends on the others in its batch")
    device = model.noisy.noise.std.device
    noisy = model.noisy.clean(x.to(device, network.dtype)) + model.noisy.noise.std * normals.to(device, network.dtype)
    passes = []
    for row in torch.split(noisy, 1):  # alone, as the smoothed classifier is defined
        with model.from_layer(row):
            passes.append(model(x.to(device, network.dtype)))
    whole = torch.cat(passes)
    if not torch.allclose(outputs, whole, rtol=1e-3, atol=1e-3 * size):
        raise InvalidInputError("the model does not compute the same from W₁x + W₁n as from W₁(x + n)")
