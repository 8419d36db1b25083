"""A network with Gaussian noise at its input or after its first linear layer: the thing that carries a certificate.

    x  →  W₁x + b₁  →  · scale  →  + N(0, std²)  →  rest of the network

The noise is fresh for every example, every pass and every draw. With `scale` = 1 and std_k = σ√(K r_k) this is the
paper's h₁ + N(0, σ²Kr); with std = 1 and a trainable scale v it is the same mechanism whitened, v_k = 1/(σ√(K r_k)), in
which r is learned like any other parameter. Either way a change of the input that moves scale/std · W₁x by ρ in l2 is
what the certificate speaks of. Noise at the input is the case W₁ = identity.
"""

__all__ = ["NoisyNetwork", "Place"]

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

from securesgd.errors import InvalidInputError, nearest
from securesgd.models.control import SensitivityControl
from securesgd.models.noise_layer import GaussianNoise, NoisyLayer, Scale, ScaleLearning
from securesgd.models.redistribution import Redistribution, redistribution_way
from securesgd.models.validate_network import random_inputs, require_sound, run_network
from securesgd.theory import Convolution, Sensitivity, sensitivity
from securesgd.theory.linear_maps import LinearMap, Matrix
from securesgd.theory.sensitivity import NORMS, Norm, absolute_sensitivity
from securesgd.validate import validate_positive

Place = Literal["first-layer", "input"]


class NoisyNetwork(nn.Module):
    """A network with noise, which it owns: how large it is, how it is shared out, and its control in training.

    `radius_per_std` is the input radius, in `norm`, that one standard deviation of the noise is worth: 1/Δ of the
    whitened layer. `project()` keeps it there while weights change. None leaves unit noise, to be set by `set_noise`.
    `redistribution` is how r, the share of each unit, is obtained: a name of `redistribution.WAYS` or an import path;
    `learned` starts from `start`, and moves as `learning` says: plainly if that is None. A way that reads data is
    carried out in training and starts uniform.

    Guarantee: the output depends on the input only through the noisy layer, which is linear in the whole input, so the
    certificate of the layer holds for the network. Checked on construction and again at every certification
    (`require_sound`) by gradients, by passes in which every use of the input is watched (`input_path.py`), and on
    inputs in and out of range.
    Assumes: what hides from torch and from those inputs does not happen (docs/reference/certificates.md); the rest of
    the network treats examples one by one and is deterministic in eval mode.
    Raises: InvalidInputError if the layer cannot carry a certificate, the input is used elsewhere too, or an argument
    is not valid.
    """

    sensitivity_iterate: Tensor
    input_path: str
    """`traced` if the last check has seen the whole way of the input to the layer, else why it could only compare."""

    def __init__(
        self,
        network: nn.Module,
        input_shape: tuple[int, ...],
        *,
        norm: Norm = "linf",
        radius_per_std: float | None = None,
        redistribution: str = "uniform",
        place: Place = "input",
        start: str = "uniform",
        seed: int = 0,
        learning: ScaleLearning | None = None,
    ) -> None:
        super().__init__()
        for name, value, valid in (("place", place, get_args(Place)), ("norm", norm, NORMS)):
            if value not in valid:
                raise InvalidInputError(f"unknown {name} {value!r}: {nearest(str(value), valid)}")
        way = redistribution_way(redistribution)
        if learning is not None and not way.learned:
            raise InvalidInputError(f"learning is for redistribution='learned', got {redistribution!r}")
        if not isinstance(network, nn.Module):
            raise InvalidInputError(f"network is a {type(network).__name__}; valid: a torch.nn.Module")
        try:
            self.input_shape, self.place = tuple(int(n) for n in input_shape), place
        except (TypeError, ValueError):
            raise InvalidInputError(f"input_shape is {input_shape!r}; valid: whole numbers like (1, 28, 28)") from None
        self.norm, self.redistribution, self.start, self.learning = norm, redistribution, start, learning
        self.radius_per_std = None if radius_per_std is None else validate_positive("radius_per_std", radius_per_std)
        layer = nn.Identity() if place == "input" else _first_layer(network, self.input_shape)
        probe = random_inputs(network, self.input_shape)
        shape = tuple(run_network(layer, probe.flatten(1) if isinstance(layer, nn.Linear) else probe).shape[1:])
        self.noisy = NoisyLayer(layer, GaussianNoise(torch.ones(shape).to(probe)))
        if place == "input":
            self.network: nn.Module = nn.Sequential(self.noisy, network)
        else:
            self.network = _replace_layer(network, layer, self.noisy)
        self.output_shape = shape
        # Where the estimate of Δ stands (`control.py`); a buffer, so that a checkpoint holds it and a resumed run
        # continues with the same bits.
        iterate = torch.randn(8, *self.input_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("sensitivity_iterate", iterate.to(probe))
        require_sound(self)
        self._control: SensitivityControl | None = None
        if self.radius_per_std is not None or redistribution != "uniform":
            self.set_redistribution(way.initial(shape, start, seed), learned=way.learned)
        if self.radius_per_std is not None:
            self._control = SensitivityControl(self, norm, 1 / self.radius_per_std)

    def project(self) -> None:
        """Scale the layer so that one standard deviation of noise is worth `radius_per_std` again.

        Training calls this after each step: post-processing of released weights, at no cost in privacy. Without
        `radius_per_std` only a learned r with `learning` moves.
        """
        scale = self.noisy.scale
        if scale is not None:
            scale.move()
        if self._control is not None:
            self._control()
        if scale is not None:
            scale.settle()

    def set_redistribution(self, r: Redistribution, *, learned: bool = False) -> None:
        """Share the noise out by r; its size is that of `radius_per_std` at the present weights, or 1 without it."""
        self.set_noise(r.std(1.0))
        sigma = 1.0 if self.radius_per_std is None else self.sensitivity(self.norm).upper * self.radius_per_std
        self.set_noise(r.std(sigma), learned=learned)

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
        self.noisy.scale = Scale(1 / values, self.learning) if learned else None

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
        computed = torch.cat([self.noisy.clean(x[None].to(std.device, std.dtype)) for x in inputs]).flatten(1)
        exact = self.layer_in_double(inputs)
        if self.noisy.scale is not None:
            exact = exact * self.noisy.scale.values.detach().double().cpu().flatten()
        return ((computed.double().cpu() - exact) / std.double().cpu().flatten()).norm(dim=1).numpy()

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


def _first_layer(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the first layer that computes something; raise unless it is Linear or Conv2d and gets the bare input."""
    seen: list[tuple[nn.Module, Tensor]] = []
    leaves = [module for module in network.modules() if not list(module.children())]
    hooks = [leaf.register_forward_pre_hook(lambda module, args: seen.append((module, args[0]))) for leaf in leaves]
    x = random_inputs(network, input_shape)
    try:
        run_network(network, x)
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
    if isinstance(first, nn.Conv2d):
        _write_padding_in_numbers(first)
    width = first.in_features if isinstance(first, nn.Linear) else math.prod(input_shape)
    if width != math.prod(input_shape) or not torch.equal(received.flatten(1), x.flatten(1)):
        # A normalisation in between would be outside the certificate: radii would be in other units than promised.
        raise InvalidInputError(
            "the first layer does not get the whole input as it is; move what comes before it (a normalisation, say) "
            "into its weights, or put the noise at the input (place='input')"
        )
    return first


def _write_padding_in_numbers(layer: nn.Conv2d) -> None:
    """Replace padding="same" by the numbers it stands for: the layer computes the same, and W₁ can be read from it.

    Raises:
        InvalidInputError: the padding is not of zeros, or is not the same on both sides.
    """
    if layer.padding_mode != "zeros":
        raise InvalidInputError(f"the first layer {layer} has padding_mode={layer.padding_mode!r}; valid: 'zeros'")
    if layer.padding != "same":
        return
    total = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    if any(n % 2 for n in total):
        raise InvalidInputError(
            f"the first layer {layer} pads one side by one pixel more than the other, as padding='same' does for an "
            "even kernel size; valid: an odd kernel size, or padding in numbers"
        )
    layer.padding = (total[0] // 2, total[1] // 2)


def _replace_layer(network: nn.Module, layer: nn.Module, substitute: nn.Module) -> nn.Module:
    """Return the network with `layer` replaced, in place unless the network is the layer."""
    if network is layer:
        return substitute
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child is layer:
                setattr(parent, name, substitute)
    return network
