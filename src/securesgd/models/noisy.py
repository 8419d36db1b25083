"""A network with Gaussian noise after its first linear layer: the thing that carries a certificate.

    x  →  W₁x + b₁  →  · scale  →  + N(0, std²)  →  rest of the network

The noise is fresh for every example, every pass and every draw. With `scale` = 1 and std_k = σ√(K r_k) this is the
paper's h₁ + N(0, σ²Kr); with std = 1 and a trainable scale v it is the same mechanism whitened, v_k = 1/(σ√(K r_k)), in
which r is learned like any other parameter. Either way a change of the input that moves scale/std · W₁x by ρ in l2 is
what the certificate speaks of.
"""

__all__ = ["GaussianNoise", "NoisyLayer", "NoisyNetwork", "require_sound"]

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from securesgd.errors import InvalidInputError, nearest
from securesgd.models.input_path import require_one_product, require_same_on, trace_input
from securesgd.models.scale import Scale
from securesgd.theory import Convolution, Sensitivity, sensitivity
from securesgd.theory.linear_maps import LinearMap, Matrix
from securesgd.theory.sensitivity import Norm, absolute_sensitivity

Place = Literal["first-layer", "input"]
_PROBES = 4  # random inputs on which the layer is compared with its linear map


class GaussianNoise(nn.Module):
    """Adds N(0, std²), drawn afresh at every call from `generator` (None: torch's own)."""

    std: Tensor

    def __init__(self, std: Tensor) -> None:
        super().__init__()
        if not bool((torch.isfinite(std) & (std > 0)).all()):
            raise InvalidInputError("the noise of every unit must be finite and > 0")
        self.register_buffer("std", std.clone())
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus noise, in the memory layout of x: in another one, every layer after it would be slower."""
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        shape = x.permute(0, 2, 3, 1).shape if last else x.shape
        noise = torch.randn(shape, generator=self.generator, device=x.device, dtype=x.dtype)
        return torch.addcmul(x, noise.permute(0, 3, 1, 2) if last else noise, self.std)


class NoisyLayer(nn.Module):
    """The first layer with its noise. `given` replaces the layer's noisy output, for draws from a computed W₁x + b₁."""

    def __init__(self, layer: nn.Module, noise: GaussianNoise, scale: Scale | None = None) -> None:
        super().__init__()
        self.layer, self.scale, self.noise = layer, scale, noise
        self.given: Tensor | None = None

    def clean(self, x: Tensor) -> Tensor:
        """Return the layer's output before noise: the part that is the same for every draw."""
        h = self.layer(x.flatten(1) if isinstance(self.layer, nn.Linear) else x)
        return h if self.scale is None else self.scale(h)

    def forward(self, x: Tensor) -> Tensor:
        """Return the noisy output."""
        return self.noise(self.clean(x)) if self.given is None else self.given


class NoisyNetwork(nn.Module):
    """A network whose first linear layer is noisy, with what a certificate needs to know about it.

    Guarantee: the output depends on the input only through the noisy layer, which is linear in the whole input, so the
    certificate of the layer holds for the network. Checked on construction and again at every certification
    (`require_sound`) by gradients, by passes in which every use of the input is watched (`only_path.py`), and on inputs
    in and out of range.
    Assumes: what hides from torch and from those inputs does not happen (`docs/certificates.md`); the rest of the
    network treats examples one by one and is deterministic in eval mode.
    Raises: InvalidInputError if the first layer cannot carry a certificate, or the input is used elsewhere too.
    """

    sensitivity_iterate: Tensor
    input_path: str
    """`traced` if the last check has seen the whole way of the input to the layer, else why it could only compare."""

    def __init__(self, network: nn.Module, input_shape: tuple[int, ...], *, place: Place = "first-layer") -> None:
        super().__init__()
        if place not in get_args(Place):
            raise InvalidInputError(f"unknown place {place!r} for the noise: {nearest(place, get_args(Place))}")
        self.input_shape, self.place = tuple(int(n) for n in input_shape), place
        layer = nn.Identity() if place == "input" else _first_layer(network, self.input_shape)
        probe = _probe(network, self.input_shape)
        shape = tuple(_run(layer, probe.flatten(1) if isinstance(layer, nn.Linear) else probe).shape[1:])
        self.noisy = NoisyLayer(layer, GaussianNoise(torch.ones(shape).to(probe)))
        if place == "input":
            self.network: nn.Module = nn.Sequential(self.noisy, network)
        else:
            self.network = _replaced(network, layer, self.noisy)
        self.output_shape = shape
        # Where the estimate of Δ stands (`control.py`); a buffer, so that a checkpoint holds it and a resumed run goes
        # on with the same bits.
        start = torch.randn(8, *self.input_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("sensitivity_iterate", start.to(probe))
        require_sound(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of one noisy pass."""
        return self.network(x)

    @property
    def units(self) -> int:
        """K, the number of outputs of the noisy layer."""
        return math.prod(self.output_shape)

    def set_noise(self, std: np.ndarray, *, learned: bool = False) -> None:
        """Give each unit its noise, std_k = σ√(K r_k); `learned` makes the scale trainable and the noise unit."""
        like = next(self.parameters(), self.noisy.noise.std)
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        values = torch.as_tensor(np.asarray(std), dtype=kind, device=like.device).reshape(self.output_shape)
        self.noisy.noise = GaussianNoise(torch.ones_like(values) if learned else values)
        self.noisy.scale = Scale(1 / values) if learned else None

    @property
    def whitening(self) -> np.ndarray:
        """scale/std of every unit, as a vector: how many standard deviations one unit of W₁x is worth."""
        std = self.noisy.noise.std.double()
        scale = torch.ones_like(std) if self.noisy.scale is None else self.noisy.scale.values.detach().abs().double()
        return (scale / std).cpu().numpy().ravel()

    def linear_map(self) -> LinearMap:
        """Return W₁ as it is now, over the whole input."""
        layer = self.noisy.layer
        if isinstance(layer, nn.Conv2d):
            padding: Any = layer.padding if layer.padding != "valid" else (0, 0)
            kernel = layer.weight.detach().double().cpu().numpy()
            return Convolution(kernel, self.input_shape, layer.stride, padding, layer.dilation, layer.groups)  # type: ignore[arg-type]
        if isinstance(layer, nn.Linear):
            return Matrix(sp.csr_array(layer.weight.detach().double().cpu().numpy()))
        return Matrix(sp.csr_array(sp.eye_array(self.units)))

    def sensitivity(self, norm: Norm, known: Sensitivity | None = None) -> Sensitivity:
        """Return Δ of the whitened layer as it is computed, in standard deviations per unit of input.

        Guarantee: whatever the order of its sums, the layer moves by at most Δ·‖x' − x‖ + `rounding(x)` between x and
        any x', so the radius is (ρ − rounding)/Δ.
        `known` is a Δ kept from an earlier call: its proof is checked instead of searched for anew.
        """
        # The theory takes N(0, σ²Kr); unit noise after whitening w is r_k ∝ 1/w_k² with σ² = mean of 1/w².
        variance, layer = 1 / self.whitening**2, self.linear_map()
        sigma = float(np.sqrt(variance.mean()))
        bound = sensitivity(layer, norm, variance / variance.sum(), known=known)
        rounding = self._unit_of_rounding * absolute_sensitivity(layer, norm, self.whitening)
        return replace(
            bound,
            upper=(bound.upper / sigma + rounding) * (1 + 1e-9),
            lower=bound.lower / sigma * (1 - 1e-9),
        )

    @property
    def _unit_of_rounding(self) -> float:
        """γ: what the layer computes of W₁x + b₁ is off by at most γ(|W₁||x| + |b₁|), whatever the order of its sums.

        Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1: γ_n = n u/(1 − n u), where n counts
        the roundings a term passes: the input's conversion, its product, the additions (bias included), the scale.
        """
        layer = self.noisy.layer
        terms = layer.weight[0].numel() if isinstance(layer, nn.Linear | nn.Conv2d) else 0
        total = (terms + 3) * float(torch.finfo(self.noisy.noise.std.dtype).eps) / 2
        return total / (1 - total) if total < 1 else math.inf

    @torch.no_grad()
    def rounding(self, inputs: Tensor) -> np.ndarray:
        """Return, per input, how far rounding moves the whitened layer between it and any other, besides Δ's share.

        Guarantee: 2γ‖D⁻¹(|W₁||x| + |b₁|)‖₂, rounded up, with what underflow may add; one half is the error at x, the
        other that part of the error at x' which does not grow with its distance from x (that part is in Δ).
        """
        std = self.noisy.noise.std
        magnitude = self.layer_in_double(inputs, absolute=True).numpy()
        relative = self._unit_of_rounding * np.sqrt(np.sum((self.whitening * magnitude) ** 2, axis=1))
        tiny = float(torch.finfo(std.dtype).tiny) * (math.prod(self.input_shape) + 3)
        underflow = tiny * (np.linalg.norm(self.whitening) + float((1 / std.double()).norm()))
        return np.asarray(2 * (1 + 1e-9) * (relative + underflow))

    @torch.no_grad()
    def rounding_seen(self, inputs: Tensor) -> np.ndarray:
        """Return, per input, how far the layer as it is computed is from the layer in double precision, whitened."""
        std = self.noisy.noise.std
        found = torch.cat([self.noisy.clean(x[None].to(std.device, std.dtype)) for x in inputs]).flatten(1)
        exact = self.layer_in_double(inputs)
        if self.noisy.scale is not None:
            exact = exact * self.noisy.scale.values.detach().double().cpu().flatten()
        return ((found.double().cpu() - exact) / std.double().cpu().flatten()).norm(dim=1).numpy()

    @torch.no_grad()
    def layer_in_double(self, inputs: Tensor, *, absolute: bool = False) -> Tensor:
        """Return W₁x + b₁, or |W₁||x| + |b₁|, in double precision and without the scale: [inputs, units].

        One input at a time, so that no bit depends on the others.
        """
        sign = torch.abs if absolute else torch.clone
        layer, x = self.noisy.layer, sign(inputs.detach().double().cpu())
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            return x.flatten(1)
        own = copy.deepcopy(layer).double().cpu()
        for parameter in own.parameters():
            parameter.copy_(sign(parameter))
        return torch.cat(
            [own(part.flatten(1) if isinstance(own, nn.Linear) else part) for part in torch.split(x, 1)]
        ).flatten(1)

    @contextmanager
    def from_layer(self, noisy_output: Tensor) -> Iterator[None]:
        """Within the context, forward passes start from this output of the noisy layer, whatever the input."""
        self.noisy.given = noisy_output
        try:
            yield
        finally:
            self.noisy.given = None


def _run(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        try:
            return module(x)
        except RuntimeError as error:
            shape, reason = list(x.shape[1:]), str(error).splitlines()[0]
            raise InvalidInputError(f"the network does not take inputs of shape {shape}: {reason}") from None


def _probe(module: nn.Module, shape: tuple[int, ...], batch: int = 2) -> Tensor:
    """Return random inputs that suit the module's device and type. Any values do; the global state is left alone."""
    parameter = next(module.parameters(), torch.zeros(1))
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    return x.to(parameter.device, parameter.dtype)


def _first_layer(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the first layer that computes something; raise unless it is Linear or Conv2d and gets the bare input."""
    seen: list[tuple[nn.Module, Tensor]] = []
    leaves = [module for module in network.modules() if not list(module.children())]
    hooks = [leaf.register_forward_pre_hook(lambda module, args: seen.append((module, args[0]))) for leaf in leaves]
    x = _probe(network, input_shape)
    try:
        _run(network, x)
    finally:
        for hook in hooks:
            hook.remove()
    reshaping = (nn.Identity, nn.Flatten, nn.Unflatten)
    first, received = next(((m, h) for m, h in seen if not isinstance(m, reshaping)), (None, x))
    if type(first) not in (nn.Linear, nn.Conv2d):
        raise InvalidInputError(
            f"the first layer is {type(first).__name__}, which cannot carry a certificate; "
            "valid: Linear or Conv2d first, or noise at the input (place='input')"
        )
    assert isinstance(first, nn.Linear | nn.Conv2d)
    if isinstance(first, nn.Conv2d) and (first.padding_mode != "zeros" or first.padding == "same"):
        raise InvalidInputError(f"the first layer {first} must have padding in numbers, with padding_mode='zeros'")
    width = first.in_features if isinstance(first, nn.Linear) else math.prod(input_shape)
    if width != math.prod(input_shape) or not torch.equal(received.flatten(1), x.flatten(1)):
        # A normalisation in between would be outside the certificate: radii would be in other units than promised.
        raise InvalidInputError(
            "the first layer does not get the whole input as it is; move what comes before it (a normalisation, say) "
            "into its weights, or put the noise at the input (place='input')"
        )
    return first


def _replaced(network: nn.Module, layer: nn.Module, substitute: nn.Module) -> nn.Module:
    """Return the network with `layer` replaced, in place unless the network is the layer."""
    if network is layer:
        return substitute
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child is layer:
                setattr(parent, name, substitute)
    return network


def require_sound(model: NoisyNetwork) -> None:
    """Pass if the noisy layer is the linear map it seems, is called once, and is the input's only way to the output.

    Raises: InvalidInputError if not. Sets `model.input_path`.
    """
    _require_own_layers(model)
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        x = _probe(model, model.input_shape, batch=_PROBES)
        _run(model, x)
        require_same_on(model, x, x.flip(0), 1 - x, 3 * x - 1, 255 * x)
        _require_no_gradient(model, x)
        require_one_product(model, x)
        _require_linear(model, x)
        model.input_path = trace_input(model, x)
    finally:
        for module, training in was_training:
            module.training = training


def _require_own_layers(model: NoisyNetwork) -> None:
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


def _require_linear(model: NoisyNetwork, x: Tensor) -> None:
    """Pass if the layer is W₁x + b₁ with the W₁ that Δ is of: to 1e-9 in double precision, to rounding as it is."""
    moved = (model.layer_in_double(x) - model.layer_in_double(torch.zeros_like(x))).numpy()
    expected = model.linear_map().apply(x.flatten(1).double().cpu().numpy().T).T
    magnitude = model.layer_in_double(x, absolute=True).numpy()
    is_own_map = bool((np.abs(moved - expected) <= 1e-9 * magnitude).all())
    if not is_own_map or not bool((model.rounding_seen(x) <= model.rounding(x)).all()):
        raise InvalidInputError(
            "the first layer does not compute its own weights times the input; it cannot be certified"
        )


def _require_no_gradient(model: NoisyNetwork, x: Tensor) -> None:
    """Pass if, with the noisy layer's output given, the output has no gradient in the input."""
    with torch.enable_grad(), model.from_layer(_probe(model, model.output_shape, batch=len(x))):
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
