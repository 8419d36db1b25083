"""Whether a noisy network is what its certificate says: a linear layer of its own, noise, and no other way around them.

`input_path.py` has the part that watches and compares how the input is used.
"""

__all__ = ["random_inputs", "require_sound", "run_network"]

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from securesgd.errors import InvalidInputError
from securesgd.models.input_path import require_one_product, require_same_on, trace_input
from securesgd.models.noise_layer import GaussianNoise, NoisyLayer, Scale

if TYPE_CHECKING:
    from securesgd.models.noisy import NoisyNetwork

_PROBES = 4  # random inputs on which the layer is compared with its linear map


def run_network(module: nn.Module, x: Tensor) -> Tensor:
    """Return the output without gradients. Raises: InvalidInputError if the module does not take such inputs."""
    with torch.no_grad():
        try:
            return module(x)
        except RuntimeError as error:
            shape, reason = list(x.shape[1:]), str(error).splitlines()[0]
            raise InvalidInputError(f"the network does not take inputs of shape {shape}: {reason}") from None


def random_inputs(module: nn.Module, shape: tuple[int, ...], batch: int = 2) -> Tensor:
    """Return random inputs that suit the module's device and type. Any values do; the global state is left alone."""
    parameter = next(module.parameters(), torch.zeros(1))
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    return x.to(parameter.device, parameter.dtype)


def require_sound(model: "NoisyNetwork") -> None:
    """Pass if the noisy layer is the linear map it seems, is called once, and is the input's only way to the output.

    Raises: InvalidInputError if not. Sets `model.input_path`.
    """
    _require_own_layers(model)
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        x = random_inputs(model, model.input_shape, batch=_PROBES)
        run_network(model, x)
        require_same_on(model, x, x.flip(0), 1 - x, 3 * x - 1, 255 * x)
        _require_no_gradient(model, x)
        require_one_product(model, x)
        _require_linear(model, x)
        model.input_path = trace_input(model, x)
    finally:
        for module, training in was_training:
            module.training = training


def _require_own_layers(model: "NoisyNetwork") -> None:
    """Pass if nothing was put in place of the layer, its noise or its scale, and no hook changes what they compute."""
    noisy = model.noisy
    expected = (
        (noisy, (NoisyLayer,)), (noisy.noise, (GaussianNoise,)), (noisy.scale, (Scale, type(None))),
        (noisy.layer, (nn.Identity,) if model.place == "input" else (nn.Linear, nn.Conv2d)),
    )  # fmt: skip
    for part, kinds in expected:
        if type(part) not in kinds or (isinstance(part, nn.Module) and _replaces_methods(part)):
            raise InvalidInputError(
                f"the noisy layer has a {type(part).__name__} with a forward of its own in it; it cannot be certified"
            )
        if isinstance(part, nn.Module) and (part._forward_hooks or part._forward_pre_hooks):
            raise InvalidInputError(
                "the first layer has forward hooks (an old-style weight_norm, say), which may change what it computes; "
                "remove them, or put the noise at the input (place='input')"
            )
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise InvalidInputError(
            "there are forward hooks for all modules (register_module_forward_hook), which may change what the first "
            "layer computes; remove them"
        )
    for name, tensor in [*noisy.named_parameters(), *noisy.named_buffers()]:
        if type(tensor) not in (Tensor, nn.Parameter):
            raise InvalidInputError(
                f"{name} of the noisy layer is a {type(tensor).__name__}, which may compute in its way; valid: Tensor"
            )


def _replaces_methods(module: nn.Module) -> bool:
    """Return whether an object has something in place of a method of its class (`forward`, `_conv_forward`, …)."""
    shadows = [name for name in vars(module) if callable(getattr(type(module), name, None))]
    return bool(shadows) or vars(module).get("_compiled_call_impl") is not None


def _require_linear(model: "NoisyNetwork", x: Tensor) -> None:
    """Pass if the layer is W₁x + b₁ with the W₁ that Δ is of: to 1e-9 in double precision, to rounding as it is."""
    moved = (model.layer_in_double(x) - model.layer_in_double(torch.zeros_like(x))).numpy()
    expected = model.linear_map().apply(x.flatten(1).double().cpu().numpy().T).T
    magnitude = model.layer_in_double(x, absolute=True).numpy()
    is_own_map = bool((np.abs(moved - expected) <= 1e-9 * magnitude).all())
    if not is_own_map or not bool((model.rounding_seen(x) <= model.rounding(x)).all()):
        raise InvalidInputError(
            "the first layer does not compute its own weights times the input; it cannot be certified"
        )


def _require_no_gradient(model: "NoisyNetwork", x: Tensor) -> None:
    """Pass if, with the noisy layer's output given, the output has no gradient in the input."""
    with torch.enable_grad(), model.from_layer(random_inputs(model, model.output_shape, batch=len(x))):
        inputs = x.clone().requires_grad_()
        output = model(inputs)
        around = None
        if output.requires_grad:
            (around,) = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
    if around is not None:
        raise InvalidInputError(
            "the network uses its input besides the first layer (a connection around it), so noise there proves "
            "nothing; put the noise at the input (place='input')"
        )
