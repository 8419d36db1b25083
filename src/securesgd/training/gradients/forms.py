"""What one layer reports about its per-example gradients: kept in memory, or measured now and summed later.

Both forms answer the only two questions the clipping engine asks: how long is the gradient of each example,
and what is the sum over examples of factor × gradient. A layer picks whichever is cheaper.
"""

__all__ = ["Deferred", "ExampleGradient", "Kept", "LayerCall", "Scratch", "Unfit", "row_factors"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

KEPT_BYTES = 128 * 2**20  # per parameter: above this, per-example gradients are measured in pieces and dropped
CANCELLATION = 0.02
"""A squared norm from float32 Gram matrices has a relative error of about 6e-8 / ratio, where ratio compares it with
its size without cancellation between positions (measured from 1 down to 1e-7). Below this ratio it is computed again
from the gradient itself, so that norms keep 1e-5."""


class Unfit(Exception):  # noqa: N818  (a signal to take the slow path, not an error)
    """The book-keeping pass cannot prove its result for this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """All per-example gradients of one parameter, in the layout its fast kernel produced.

    `raw` has shape [parts, examples, ...]; together the parts of an example hold each entry of its gradient once.
    `restore` turns such a stack into one of shape [examples, *parameter.shape].
    """

    raw: Tensor
    restore: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, gradients: Tensor) -> "Kept":
        """Return the form for gradients already in the layout of the parameter, shape [examples, ...]."""
        return cls(gradients.unsqueeze(0), lambda raw: raw.squeeze(0))

    def squared_norms(self) -> Tensor:
        """Return the squared l2 norm of each example's gradient, shape [examples]."""
        return torch.linalg.vector_norm(self._flat(), dim=2).square().sum(dim=0)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return sum_i factors[i] · gradient_i in the layout of the parameter."""
        flat = factors.unsqueeze(0) @ self._flat()
        return self.restore(flat.view(len(flat), 1, *self.raw.shape[2:])).squeeze(0)

    def _flat(self) -> Tensor:
        return self.raw.flatten(2) if self.raw.dim() > 2 else self.raw.unsqueeze(2)

    def gradients(self) -> Tensor:
        """Return the gradients, shape [examples, *parameter.shape]."""
        return self.restore(self.raw)


@dataclass(frozen=True, slots=True)
class Deferred:
    """Only the squared norms of one parameter's gradients, and a way to compute their weighted sum later."""

    squares: Tensor
    summed: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        """Return the squared l2 norm of each example's gradient, shape [examples]."""
        return self.squares

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return sum_i factors[i] · gradient_i in the layout of the parameter."""
        return self.summed(factors)


ExampleGradient = Kept | Deferred


class Scratch:
    """Memory for one layer's kept gradients, used again in the next step: fresh pages cost more than the product."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of this shape; what an earlier call returned is overwritten by its use."""
        size = math.prod(shape)
        old = self._memory
        if old is None or old.numel() < size or old.dtype != like.dtype or old.device != like.device:
            self._memory = old = like.new_empty(size)
        return old[:size].view(shape)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer, seen from the backward pass: everything its per-example gradients depend on.

    The rows of `inputs` and `output_gradient` are example-major: row i · copies + m is copy m of example i.
    The gradient of an example is the sum over its rows (the average over copies is already in
    `output_gradient`).
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    output: Tensor | None
    output_gradient: Tensor
    examples: int
    copies: int
    wanted: frozenset[str]  # the layer's own names of its trainable parameters
    keep: frozenset[str]  # those whose gradients are added to another call's and so must be kept
    scratch: Scratch

    @property
    def input(self) -> Tensor:
        """Return the only input."""
        tensor: Tensor = self.inputs[0]
        return tensor

    def may_keep(self, name: str) -> bool:
        """Return whether keeping the gradients of parameter `name` stays within the memory allowance."""
        parameter = self.module.get_parameter(name)
        return name in self.keep or self.examples * parameter.numel() * parameter.element_size() <= KEPT_BYTES


def row_factors(factors: Tensor, copies: int, dims: int) -> Tensor:
    """Return the factor of each row, shaped to multiply a tensor with `dims` dimensions."""
    rows = factors if copies == 1 else factors.repeat_interleave(copies)
    return rows.view(-1, *[1] * (dims - 1))
