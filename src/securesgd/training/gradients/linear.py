"""Per-example gradients of `nn.Linear`, on vectors and on sequences.

With inputs a_t and output gradients g_t the weight gradient of one example is sum_t g_t a_tᵀ. Its squared norm is
|g|²|a|² for a single vector, and sum_{t,s} (g_t·g_s)(a_t·a_s) for a sequence: no gradient needs to exist.
"""

__all__ = ["linear_gradients", "product_squares"]

import torch
from torch import Tensor

from securesgd.training.gradients.forms import CANCELLATION, Deferred, ExampleGradient, Kept, LayerCall

CHUNK_ELEMENTS = 2**19  # float32: 2 MB, so that a chunk of Gram matrices or gradients stays in cache


def linear_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `Linear` layer's wanted parameters."""
    a = call.input.reshape(call.examples, -1, call.input.shape[-1])
    g = call.output_gradient.reshape(call.examples, -1, call.output_gradient.shape[-1])
    found: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        found["bias"] = Kept.of(g.sum(dim=1))
    if "weight" in call.wanted:
        found["weight"] = _weight_gradient(call, a, g)
    return found


def _weight_gradient(call: LayerCall, a: Tensor, g: Tensor) -> ExampleGradient:
    length, size = a.shape[1], a.shape[2] * g.shape[2]
    gram_cost = length * length * (a.shape[2] + g.shape[2])
    kept_cost = 0.4 * length * size + 4 * size  # the product also replaces the later sum; writing it is what costs
    if "weight" in call.keep or (length > 1 and call.may_keep("weight") and kept_cost < gram_cost):
        return Kept.of(torch.bmm(g.transpose(1, 2), a))
    if length == 1:
        squares = a.square().sum(dim=(1, 2)) * g.square().sum(dim=(1, 2))
    elif gram_cost < length * size:
        squares = _gram_squares(a, g)
    else:
        squares = product_squares(a, g)
    return Deferred(squares, lambda factors: (g * factors[:, None, None]).flatten(0, 1).T @ a.flatten(0, 1))


def _gram_squares(a: Tensor, g: Tensor) -> Tensor:
    squares = g.new_empty(len(g))
    step = max(1, CHUNK_ELEMENTS // a.shape[1] ** 2)
    for start in range(0, len(g), step):
        x, y = a[start : start + step], g[start : start + step]
        grams = torch.bmm(x, x.transpose(1, 2)), torch.bmm(y, y.transpose(1, 2))
        squares[start : start + step] = (grams[0] * grams[1]).sum(dim=(1, 2))
    scale = a.square().sum(dim=(1, 2)) * g.square().sum(dim=(1, 2)) / a.shape[1]
    cancelled = (squares < CANCELLATION * scale).nonzero().squeeze(1)
    if len(cancelled):
        squares[cancelled] = product_squares(a[cancelled], g[cancelled])
    return squares


def product_squares(a: Tensor, g: Tensor) -> Tensor:
    """Return |sum_t g_t a_tᵀ|² of each example from the gradients themselves, a few at a time."""
    squares = g.new_empty(len(g))
    step = max(1, CHUNK_ELEMENTS // (a.shape[2] * g.shape[2]))
    for start in range(0, len(g), step):
        product = torch.bmm(g[start : start + step].transpose(1, 2), a[start : start + step])
        squares[start : start + step] = product.square().sum(dim=(1, 2))
    return squares
