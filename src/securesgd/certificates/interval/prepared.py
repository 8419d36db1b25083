"""A network ready for bounds: its weights in the type that bounds are computed in, with their absolute values."""

__all__ = ["Prepared", "PreparedGraph", "prepare"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from securesgd.certificates.interval.arithmetic import UNIT64, Arithmetic, arithmetic_of, gamma
from securesgd.errors import InvalidInputError
from securesgd.models.layer_graph import LayerGraph, Operation, layer_graph


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A linear layer or convolution: W, |W| and the bias, which is zeros if there is none.

    A denormal weight counts as larger in |W|, so that error·|W||h| holds also where it is read as zero.
    """

    weight: Tensor
    absolute: Tensor
    bias: Tensor
    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """(h, W, b or None) to W h + b."""
    adjoint: Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]
    """(rows, W, shape of h) to rows W."""
    error: float
    """The layer computes W h + b up to error·(|W||h| + |b|), float64 bounds included; infinite if nothing is known."""
    underflow: float
    """Plus this."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedGraph:
    """The operations of a network with what their bounds need, computed in `dtype`."""

    graph: LayerGraph
    arithmetic: Arithmetic
    dtype: torch.dtype
    device: torch.device
    layers: dict[int, Prepared]
    slack: float
    """What float64 loses in one operation of a bound, relative to the absolute values summed."""

    @property
    def classes(self) -> int:
        """The number of scores."""
        return self.graph.operations[-1].shape[0]

    @property
    def width(self) -> int:
        """The number of elements of the largest value."""
        return max(math.prod(operation.shape) for operation in self.graph.operations)

    def constants(self, operation: Operation) -> tuple[Tensor, Tensor]:
        """Return scale and shift of an affine operation."""
        scale, shift = (
            torch.as_tensor(value, dtype=self.dtype, device=self.device).detach()
            for value in (operation.scale, operation.shift)
        )
        return scale, shift


@torch.no_grad()
def prepare(network: nn.Module, input_shape: tuple[int, ...]) -> tuple[PreparedGraph, PreparedGraph]:
    """Return the network ready for proofs, in float64, and for guesses, in float32.

    Raises: InvalidInputError if a layer has no sound bound, or there are fewer than two scores.
    """
    graph, arithmetic = layer_graph(network, input_shape), arithmetic_of(network)
    if graph.operations[-1].shape[0] < 2:
        raise InvalidInputError("the network has one score; valid: two or more, one per class")
    device = next(network.parameters()).device
    most = max(math.prod(operation.shape) for operation in graph.operations)
    most = max([most, *(_terms(operation) for operation in graph.layers())])
    slack = gamma(8 * (most + len(graph.operations)) + 64, UNIT64)

    def of_type(dtype: torch.dtype) -> PreparedGraph:
        layers = {
            place: _prepared(operation, dtype, arithmetic, slack)
            for place, operation in enumerate(graph.operations)
            if operation.module is not None
        }
        return PreparedGraph(graph, arithmetic, dtype, device, layers, slack)

    return of_type(torch.float64), of_type(torch.float32)


def _terms(operation: Operation) -> int:
    """Return how many numbers are added in an output of the layer, its bias included."""
    assert operation.module is not None
    return operation.module.weight[0].numel() + 1


def _prepared(operation: Operation, dtype: torch.dtype, arithmetic: Arithmetic, slack: float) -> Prepared:
    layer, terms = operation.module, _terms(operation)
    assert layer is not None
    weight = layer.weight.detach().to(dtype)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().to(dtype)
    apply, adjoint = (_conv(layer)) if isinstance(layer, nn.Conv2d) else (F.linear, _linear_adjoint)
    return Prepared(
        weight=weight,
        absolute=weight.abs()
        + ((weight != 0) & (weight.abs() < arithmetic.tiny)) * (arithmetic.tiny / arithmetic.unit),
        bias=bias,
        apply=apply,
        adjoint=adjoint,
        error=gamma(terms + 2, arithmetic.unit) + slack,
        # A product loses |w|·tiny + tiny, an addition twice tiny; four times that for what came before and for bounds.
        underflow=4 * arithmetic.tiny * terms * (float(layer.weight.detach().abs().max()) + 4),
    )


def _linear_adjoint(rows: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    return rows @ weight


def _conv(
    layer: nn.Conv2d,
) -> tuple[Callable[[Tensor, Tensor, Tensor | None], Tensor], Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]]:
    def apply(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(h, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def adjoint(rows: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
        if layer.groups == 1 and not isinstance(layer.padding, str):  # the fastest way on a processor
            columns = weight.flatten(1).T @ rows.flatten(2)
            window = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
            return F.fold(columns, shape[1:], layer.kernel_size, **window)
        with torch.enable_grad():
            h = rows.new_zeros(len(rows), *shape, requires_grad=True)
            return torch.autograd.grad(apply(h, weight, None), h, rows)[0]

    return apply, adjoint
