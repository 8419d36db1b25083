"""A network of fixed wavelets, standardised and normalised channels and one linear layer, read for its bounds."""

__all__ = ["LinearHeadNetwork", "read_linear_head"]

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from securesgd.certificates.interval.arithmetic import Arithmetic, arithmetic_of
from securesgd.certificates.lipschitz.transform_bounds import ScatteringBound, TransformBound, WaveletBound
from securesgd.errors import InvalidInputError
from securesgd.models.feature_weights import ChannelWeights
from securesgd.models.front_end import FrontEnd
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.scattering import CHANNELS, Scattering
from securesgd.models.standardise import Standardise
from securesgd.models.wavelets import WAVELET_CHANNELS, Wavelets
from securesgd.validate import Array

_VALID = (
    "valid: networks like wavelet-linear, or scatter-linear for one colour: a FrontEnd of Scattering or Wavelets, "
    "Standardise, GroupNorm without weights and possibly ChannelWeights, then Flatten and Linear"
)
_LARGEST_FILTER, _LARGEST_WEIGHT = 1e6, 1e12  # of fixed numbers


@dataclass(frozen=True, slots=True, eq=False)
class LinearHeadNetwork:
    """What the bounds need of such a network, in float64; channels are those of the transform.

    scores = bias + weight · (normalised groups of inverse_std · (transform(x) − mean)); weights of channels are in
    `weight`, which is [classes, channels, places].
    """

    network: nn.Module
    linear: nn.Linear
    transform: nn.Module
    """In float64; the same numbers in its buffers."""
    bound: TransformBound
    mean: Array
    inverse_std: Array
    groups: int
    eps: float
    weight: Array
    own_lengths: Array
    """Of the rows of the head as stored: weights of channels may be so small that features underflow before it."""
    bias: Array
    arithmetic: Arithmetic
    input_shape: tuple[int, int, int]

    @property
    def group_size(self) -> int:
        """The numbers of a group."""
        return self.weight[0].size // self.groups

    @torch.no_grad()
    def standardised(self, inputs: Tensor) -> Array:
        """Return the standardised features of inputs, [examples, channels, places], computed in float64."""
        features = self.transform(inputs.to(self.linear.weight.device).double()).flatten(2).cpu().numpy()
        return np.asarray((features - self.mean[:, None]) * self.inverse_std[:, None])

    @torch.no_grad()
    def scores(self, inputs: Tensor) -> Array:
        """Return the scores that the network as deployed computes."""
        return np.asarray(self.network(inputs.to(self.linear.weight)).double().cpu().numpy())


def read_linear_head(network: nn.Module) -> LinearHeadNetwork:
    """Return the parts of a network of fixed wavelets and a linear head.

    Raises: InvalidInputError naming the layer that has no rule here, or what may change what a layer computes: hooks,
    replaced methods, numbers that are not finite or of another type.
    """
    if isinstance(network, NoisyNetwork):
        raise InvalidInputError("the network has noise, of which these bounds know nothing; valid: certify(network, …)")
    _require_kind(network, (nn.Sequential,), "the network")
    front_end, flatten, head = _layers(network, "the network", (FrontEnd,), (nn.Flatten,), (nn.Linear,))
    transform, standardise, normalise, *sizes = _layers(
        front_end,
        "its front end",
        (Scattering, Wavelets),
        (Standardise,),
        (nn.GroupNorm,),
        (ChannelWeights,),
        optional=1,
    )
    if (flatten.start_dim, flatten.end_dim) != (1, -1):
        raise InvalidInputError(f"Flatten is from {flatten.start_dim} to {flatten.end_dim}; valid: from 1 to -1")
    if normalise.weight is not None or normalise.bias is not None or not normalise.eps > 0:
        raise InvalidInputError(f"GroupNorm has weights, or its eps is {normalise.eps}; valid: none, and eps > 0")
    arithmetic = arithmetic_of(network)
    _require_plain(network, arithmetic.dtype)
    colours, height, width = _input_shape(transform, normalise.num_channels)
    channels, places = normalise.num_channels, (height // 4) * (width // 4)
    by_channel = [standardise.mean, standardise.inverse_std, *(layer.weights for layer in sizes)]
    if any(tensor.shape != (channels, 1, 1) for tensor in by_channel) or head.in_features != channels * places:
        raise InvalidInputError(f"the layers do not fit the {channels} channels of {places} places of the transform")
    if head.out_features < 2:
        raise InvalidInputError(f"the network has {head.out_features} score; valid: at least 2")
    _require_sizes(transform, _LARGEST_FILTER)
    for layer in sizes:
        _require_sizes(layer, _LARGEST_WEIGHT)
    mean, inverse_std, *factors = (_numbers(tensor).ravel() for tensor in by_channel)
    weight = _numbers(head.weight).reshape(-1, channels, places)
    return LinearHeadNetwork(
        network=network,
        linear=head,
        transform=copy.deepcopy(transform).double(),
        bound=ScatteringBound(transform) if isinstance(transform, Scattering) else WaveletBound(transform),
        mean=mean,
        inverse_std=inverse_std,
        groups=normalise.num_groups,
        eps=float(normalise.eps),
        weight=weight * factors[0][:, None] if factors else weight,
        own_lengths=np.linalg.norm(weight.reshape(len(weight), -1), axis=1),
        bias=np.zeros(len(weight)) if head.bias is None else _numbers(head.bias),
        arithmetic=arithmetic,
        input_shape=(colours, height, width),
    )


def _numbers(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().double().cpu().numpy())


def _layers(sequence: Any, name: str, *kinds: tuple[type, ...], optional: int = 0) -> list[Any]:
    """Return the layers of a sequence if each is of exactly its kind; the last `optional` may be missing."""
    layers = list(sequence)
    for place, layer in enumerate(layers):
        _require_kind(layer, kinds[place] if place < len(kinds) else (), f"layer {place} of {name}")
    if len(layers) < len(kinds) - optional:
        raise InvalidInputError(f"{name} ends after {len(layers)} layers; {_VALID}")
    return layers


def _require_kind(module: Any, kinds: tuple[type, ...], name: str) -> None:
    if type(module) not in kinds:
        raise InvalidInputError(f"{name} is {type(module).__name__}, which has no bound in l2 there; {_VALID}")


def _require_plain(network: nn.Module, dtype: torch.dtype) -> None:
    """Pass if nothing is put in place of what a layer computes, and all numbers are finite and of one type."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise InvalidInputError("there are forward hooks for all modules, which may change what a layer computes")
    for name, module in network.named_modules():
        where = name or "the network"
        if module._forward_hooks or module._forward_pre_hooks:
            raise InvalidInputError(f"{where} has forward hooks, which may change what it computes")
        replaced = [key for key in vars(module) if callable(getattr(type(module), key, None))]
        if replaced or vars(module).get("_compiled_call_impl") is not None:
            raise InvalidInputError(f"{where} has something in place of a method of its own; valid: none")
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype != dtype or not bool(tensor.isfinite().all()):
            raise InvalidInputError(f"{name} holds a number that is not finite, or is no plain tensor of {dtype}")


def _require_sizes(layer: nn.Module, largest: float) -> None:
    """Pass if no fixed number of a layer is so large that what is computed with it could overflow, or had underflowed.

    Numbers before it may be off by the smallest normal number, which it makes larger.
    """
    for name, tensor in layer.named_buffers():
        if float(tensor.abs().max()) > largest:
            raise InvalidInputError(
                f"{name} of {type(layer).__name__} holds {float(tensor.abs().max()):.3g}; valid: up to {largest:g}"
            )


def _input_shape(transform: nn.Module, channels: int) -> tuple[int, int, int]:
    """Return the shape of an image, and refuse filters whose numbers are not those of a transform."""
    if isinstance(transform, Wavelets):
        shape = transform.shape
        if channels != WAVELET_CHANNELS * (1 + shape[0]) or transform.filters.shape != (
            2 * WAVELET_CHANNELS - 1,
            1,
            8,
            8,
        ):
            raise InvalidInputError(f"GroupNorm is for {channels} channels, which those of Wavelets{shape} are not")
        return shape
    assert isinstance(transform, Scattering)
    # A filter is real: the same number for the real part of a coefficient and for the imaginary one.
    if any(not torch.equal(part[..., ::2], part[..., 1::2]) for part in (transform.fine, transform.coarse)):
        raise InvalidInputError("a filter of Scattering has two numbers for one frequency; valid: its own filters")
    if channels % CHANNELS:
        raise InvalidInputError(
            f"GroupNorm is for {channels} channels; valid: a multiple of the {CHANNELS} of Scattering"
        )
    return channels // CHANNELS, transform.height, transform.width
