"""Per-example gradients of `nn.Linear` and of linear maps inside other layers, on vectors and on sequences.

With inputs a_t and output gradients g_t the weight gradient of one example is sum_t g_t a_tᵀ. Its squared norm is
|g|²|a|² for a single vector, and sum_{t,s} (g_t·g_s)(a_t·a_s) for a sequence: no gradient needs to exist.
"""

__all__ = ["linear_gradients", "product_squares"]

import torch
from torch import Tensor

from securesgd.clipping.rules.forms import (
    CANCELLATION,
    KEEPING,
    Deferred,
    ExampleGradient,
    Kept,
    LayerCall,
    example_groups,
    nonzero_rows,
    round_down,
    squared_lengths,
    sum_again,
)

CHUNK_ELEMENTS = 2**19  # float32: 2 MB, so that a chunk of Gram matrices or gradients stays in cache
HUGE = 2.0**40  # norm of an input above which a power of two is moved: what vanishes below 2^-126 stays below 2^-86


def linear_gradients(call: LayerCall, weight: str = "weight", bias: str = "bias") -> dict[str, ExampleGradient]:
    """Return the per-example gradients of the wanted parameters of a linear map, which the layer calls by these names.

    The gradient of an example is the sum over its copies and positions.
    """
    a = call.input.reshape(call.examples, -1, call.input.shape[-1])
    g = call.output_gradient.reshape(call.examples, -1, call.output_gradient.shape[-1])
    gradients: dict[str, ExampleGradient] = {}
    if bias in call.wanted:
        gradients[bias] = Kept.from_gradients(g.sum(dim=1))
    if weight in call.wanted:
        gradients[weight] = _weight_gradient(call, weight, a, g)
    return gradients


def _weight_gradient(call: LayerCall, name: str, a: Tensor, g: Tensor) -> ExampleGradient:
    length, size = a.shape[1], a.shape[2] * g.shape[2]
    if name in call.keep:
        return Kept.from_gradients(torch.bmm(g.transpose(1, 2), a))
    if length == 1:
        return _vector_gradient(a.squeeze(1), g.squeeze(1))
    gram_cost = length * length * (a.shape[2] + g.shape[2])
    if call.may_keep(name) and KEEPING * size < gram_cost:
        return Kept.from_gradients(torch.bmm(g.transpose(1, 2), a))
    squares = _gram_squares(a, g) if gram_cost < length * size else product_squares(a, g)

    def again(part: slice) -> Kept:
        return Kept.from_gradients(torch.bmm(g[part].transpose(1, 2), a[part]))

    chunk = max(1, CHUNK_ELEMENTS // size)
    return Deferred(squares, lambda factors: sum_again(again, squares, factors, chunk))


def _vector_gradient(a: Tensor, g: Tensor) -> Deferred:
    """Return the form for single vectors: the gradient g aᵀ of an example has the norm |g||a|, and no sum inside.

    The sum over examples is one product of matrices with the rows factor · g and a. Where a is huge, factor · g could
    be so small that it loses digits, and a would make that loss large: a power of two goes from a to the factor.
    """
    lengths = _lengths(a)
    squares = (lengths * _lengths(g)).square()

    def summed(factors: Tensor) -> Tensor:
        inputs = nonzero_rows(a, factors)
        weights = factors
        if bool((lengths > HUGE).any()):
            power = torch.where(lengths > HUGE, torch.frexp(lengths).exponent - 1, 0).clamp(0, 1023).double().exp2()
            inputs, weights = (inputs / power.unsqueeze(1)).to(a.dtype), factors * power
        scaled = nonzero_rows(g, factors) * round_down(weights, g.dtype).unsqueeze(1)
        total: Tensor | None = None
        for group in example_groups(len(factors)):
            part = scaled[group].T @ inputs[group]
            total = part if total is None else total.double().add_(part)
        assert total is not None
        return total

    return Deferred(squares, summed)


def _lengths(vectors: Tensor) -> Tensor:
    """Return the l2 norm of each row, float64, exact to 1e-7 over the whole range of the type of `vectors`."""
    if vectors.dtype != torch.float64:
        return torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    largest = vectors.abs().amax(dim=1)  # squares of float64 may vanish or overflow
    unit = vectors / largest.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
    return torch.linalg.vector_norm(unit, dim=1) * largest


def _gram_squares(a: Tensor, g: Tensor) -> Tensor:
    squares = g.new_empty(len(g), dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // a.shape[1] ** 2)
    for start in range(0, len(g), step):
        x, y = a[start : start + step], g[start : start + step]
        grams = torch.bmm(x, x.transpose(1, 2)), torch.bmm(y, y.transpose(1, 2))
        squares[start : start + step] = (grams[0] * grams[1]).sum(dim=(1, 2))
    scale = a.square().sum(dim=(1, 2)) * g.square().sum(dim=(1, 2)) / a.shape[1]
    for example in (squares < CANCELLATION * scale).nonzero().squeeze(1).tolist():
        # one by one: the shape of a product must not depend on the data of other examples
        squares[example] = product_squares(a[example : example + 1], g[example : example + 1])[0]
    return squares


def product_squares(a: Tensor, g: Tensor) -> Tensor:
    """Return |sum_t g_t a_tᵀ|² of each example from the gradients themselves, a few at a time."""
    squares = g.new_empty(len(g), dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // (a.shape[2] * g.shape[2]))
    for start in range(0, len(g), step):
        product = torch.bmm(g[start : start + step].transpose(1, 2), a[start : start + step])
        squares[start : start + step] = squared_lengths(product.flatten(1))
    return squares
