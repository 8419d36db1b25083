"""A network with Gaussian noise after its first linear layer: the thing that carries a certificate.

    x  →  W₁x + b₁  →  · scale  →  + N(0, std²)  →  rest of the network

The noise is fresh for every example, every pass and every draw. With `scale` = 1 and std_k = σ√(K r_k) this is the
paper's h₁ + N(0, σ²Kr); with std = 1 and a trainable scale v it is the same mechanism whitened, v_k = 1/(σ√(K r_k)), in
which r is learned like any other parameter. Either way a change of the input that moves scale/std · W₁x by ρ in l2 is
what the certificate speaks of.
"""

__all__ = ["GaussianNoise", "NoisyLayer", "NoisyNetwork"]

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError, nearest
from securesgd.models.scale import Scale
from securesgd.theory import Convolution, Sensitivity, sensitivity
from securesgd.theory.linear_maps import LinearMap, Matrix
from securesgd.theory.sensitivity import Norm

Place = Literal["first-layer", "input"]


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
    certificate of the layer holds for the network. Checked on construction by gradients and on sixteen random inputs.
    Assumes: what those inputs do not show does not happen (a branch on a rare input, say); the rest of the network
    treats examples one by one and is deterministic in eval mode.
    Raises: InvalidInputError if the first layer cannot carry a certificate, or the input is used elsewhere too.
    """

    sensitivity_iterate: Tensor

    def __init__(self, network: nn.Module, input_shape: tuple[int, ...], *, place: Place = "first-layer") -> None:
        super().__init__()
        if place not in get_args(Place):
            raise InvalidInputError(f"unknown place {place!r} for the noise: {nearest(place, get_args(Place))}")
        self.input_shape, self.place = tuple(int(n) for n in input_shape), place
        layer = nn.Identity() if place == "input" else _first_layer(network, self.input_shape)
        probe = _probe(network, self.input_shape)
        shape = tuple(_run(layer, probe.flatten(1) if isinstance(layer, nn.Linear) else probe).shape[1:])
        self.noisy = NoisyLayer(layer, GaussianNoise(torch.ones(shape)))
        if place == "input":
            self.network: nn.Module = nn.Sequential(self.noisy, network)
        else:
            self.network = _replaced(network, layer, self.noisy)
        self.output_shape = shape
        # Where the estimate of Δ stands (`control.py`); a buffer, so that a checkpoint holds it and a resumed run goes
        # on with the same bits.
        start = torch.randn(8, *self.input_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("sensitivity_iterate", start.to(probe))
        _require_sound(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of one noisy pass."""
        return self.network(x)

    @property
    def units(self) -> int:
        """K, the number of outputs of the noisy layer."""
        return math.prod(self.output_shape)

    def set_noise(self, std: np.ndarray, *, learned: bool = False) -> None:
        """Give each unit its noise, std_k = σ√(K r_k); `learned` makes the scale trainable and the noise unit."""
        device = next((p.device for p in self.parameters()), None)
        values = torch.as_tensor(np.asarray(std), dtype=torch.float32, device=device).reshape(self.output_shape)
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

    def sensitivity(self, norm: Norm) -> Sensitivity:
        """Return Δ of the whitened layer in standard deviations per unit of input: the radius is ρ/Δ."""
        # The theory takes N(0, σ²Kr); unit noise after whitening w is r_k ∝ 1/w_k² with σ² = mean of 1/w².
        variance = 1 / self.whitening**2
        sigma = float(np.sqrt(variance.mean()))
        bound = sensitivity(self.linear_map(), norm, variance / variance.sum())
        return Sensitivity(
            norm=bound.norm,
            upper=bound.upper / sigma * (1 + 1e-9),
            lower=bound.lower / sigma * (1 - 1e-9),
            method=bound.method,
            seconds=bound.seconds,
            direction=bound.direction,
        )

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


def _require_sound(model: NoisyNetwork) -> None:
    """Pass if the noisy layer is the linear map it seems, is called once, and is the input's only way to the output."""
    layer = model.noisy.layer
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise InvalidInputError(
            "the first layer has forward hooks (an old-style weight_norm, say), which may change what it computes; "
            "remove them, or put the noise at the input (place='input')"
        )
    calls: list[int] = []
    hook = model.noisy.register_forward_hook(lambda *_: calls.append(1))
    was_training = model.training
    model.eval()
    try:
        x = _probe(model, model.input_shape, batch=16)
        _run(model, x)
        if len(calls) != 1:
            raise InvalidInputError(
                f"the first layer is called {len(calls)} times in one pass, each with noise of its own; "
                "the certificate is for one call: put the noise at the input (place='input')"
            )
        _require_only_path(model, x)
        _require_linear(model, x)
    finally:
        hook.remove()
        model.train(was_training)


def _require_linear(model: NoisyNetwork, x: Tensor) -> None:
    with torch.no_grad():
        flat = x.flatten(1) if isinstance(model.noisy.layer, nn.Linear) else x
        moved = (model.noisy.layer(flat) - model.noisy.layer(torch.zeros_like(flat))).flatten(1).double().cpu().numpy()
    expected = model.linear_map().apply(x.flatten(1).double().cpu().numpy().T).T
    if not np.allclose(moved, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()):
        raise InvalidInputError(
            "the first layer does not compute its own weights times the input; it cannot be certified"
        )


def _require_only_path(model: NoisyNetwork, x: Tensor) -> None:
    """Pass if, with the noisy layer's output given, the output is the same for other inputs and has no gradient."""
    with torch.enable_grad(), model.from_layer(_probe(model, model.output_shape, batch=len(x))):
        inputs = x.clone().requires_grad_()
        output = model(inputs)
        around = None
        if output.requires_grad:
            (around,) = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
        others = [model(other).detach() for other in (x.flip(0), 1 - x, 3 * x - 1, torch.zeros_like(x))]
    if around is not None or not all(torch.equal(output.detach(), other) for other in others):
        raise InvalidInputError(
            "the network uses its input besides the first layer (a connection around it), so noise there proves "
            "nothing; put the noise at the input (place='input')"
        )
