"""A noisy network split after its first linear layer, so that many draws of noise cost little.

    per example   W₁x + b₁                       once
    per draw      what the noise adds to it      once for all examples that share the draw
    per both      the rest of the network

Noise at the input goes through a first layer too: W₁(x + n) = W₁x + W₁n, so W₁n is shared as well. This is the
network's own function up to the rounding of sums; where that is not small beside the noise, it is not done.

A rest that decides by values (a branch in Python) decides for a whole batch at once, so it gets one draw at a time.
"""

__all__ = ["SplitNetwork"]

import contextlib
import copy

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.models.input_path import TRACED, decides_by_values
from securesgd.models.noisy import NoisyNetwork

_ROUNDING_SHARE = 1e-3  # of a standard deviation; with ordinary weights it is about 1e-5


class SplitNetwork:
    """The three parts of a noisy network, on a copy of it: the model itself is left as it is.

    Assumes: the model is in eval mode. Later changes of its weights are not seen.
    """

    @torch.inference_mode(False)  # the copy is probed with gradients
    def __init__(self, model: NoisyNetwork) -> None:
        try:
            own = copy.deepcopy(model)
            # Convolutions and pooling of many small images are up to three times as fast with channels last.
            own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        except RuntimeError:  # a module that cannot be copied (an old-style weight_norm, say) is used as it is
            own = model
        self._noisy, self._rest = own.noisy, own
        self._linear: nn.Module | None = None
        if own.place == "input" and own is not model:
            # Without such a first layer, or with a connection around it, noise is added where the model has it.
            with contextlib.suppress(InvalidInputError):
                self._split_deeper(own)
        self.input_shape, self.shape = own.input_shape, self._rest.output_shape
        self.noise_shape = tuple(self._noisy.noise.std.shape)
        self.device, self.dtype = self._noisy.noise.std.device, self._noisy.noise.std.dtype
        self._nothing = torch.zeros(1, *self.input_shape, device=self.device, dtype=self.dtype)
        probe = torch.randn(2, *self.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            self._one_by_one = decides_by_values(self._pass, probe.to(self.device, self.dtype))

    def clean(self, x: Tensor) -> Tensor:
        """Return the layer's output before noise, [examples, *shape]."""
        h = self._noisy.clean(x.to(self.device, self.dtype))
        return _channels_last(h if self._linear is None else self._rest.noisy.clean(h))

    def spread(self, normals: Tensor) -> Tensor:
        """Return what draws of standard normals, [draws, *noise_shape], add to the layer's output: [draws, *shape]."""
        noise = self._noisy.noise.std * normals.to(self.device)
        if self._linear is not None:
            noise = self._linear(noise.flatten(1) if isinstance(self._linear, nn.Linear) else noise)
        return _channels_last(noise)

    def outputs(self, h: Tensor) -> Tensor:
        """Return the logits of the rest of the network, from outputs of the layer with their noise added."""
        return torch.cat([self._pass(row) for row in torch.split(h, 1)]) if self._one_by_one else self._pass(h)

    def _pass(self, h: Tensor) -> Tensor:
        with self._rest.from_layer(_channels_last(h)):
            return self._rest(self._nothing.expand(len(h), *self.input_shape))

    def _split_deeper(self, own: NoisyNetwork) -> None:
        """Split after the first layer behind noise at the input.

        Raises: InvalidInputError if there is no such layer, if the path to it could not be traced (noisy inputs are far
        from all that was compared), or if the sum of two roundings is not nearly the rounding of the sum.
        """
        assert isinstance(own.network, nn.Sequential)
        rest = NoisyNetwork(copy.deepcopy(own.network[1]), own.input_shape, place="first-layer").eval()
        if rest.input_path != TRACED:
            raise InvalidInputError(f"the path of the input to the first layer cannot be traced: {rest.input_path}")
        _require_small_rounding(rest, own.noisy.noise.std)
        linear = copy.deepcopy(rest.noisy.layer)
        linear.register_parameter("bias", None)
        self._rest, self._linear = rest, linear


@torch.no_grad()
def _require_small_rounding(rest: NoisyNetwork, std: Tensor) -> None:
    """Pass if one rounding of the layer, at inputs up to 1, is small beside the noise that reaches each unit."""
    squares = copy.deepcopy(rest.noisy.layer).double()
    squares.register_parameter("bias", None)
    squares.weight.square_()  # type: ignore[operator]
    variance = std.double()[None] ** 2
    spread = squares(variance.flatten(1) if isinstance(squares, nn.Linear) else variance).sqrt().flatten(1).cpu()
    unit = torch.finfo(std.dtype).eps / 2
    error = unit * rest.layer_in_double(torch.ones(1, *rest.input_shape), absolute=True)
    if bool((error > _ROUNDING_SHARE * spread)[spread > 0].any()):
        raise InvalidInputError("the rounding of the first layer is not small beside the noise")


def _channels_last(h: Tensor) -> Tensor:
    return h.contiguous(memory_format=torch.channels_last) if h.dim() == 4 else h
