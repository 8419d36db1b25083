"""Per-example gradients of `nn.Conv2d`: kept, measured by pixel Gram matrices, or measured in pieces, by cost."""

__all__ = ["convolution_gradients"]

from typing import cast

import torch
from torch import Tensor, nn

from securesgd.training.gradients.forms import (
    CANCELLATION,
    Deferred,
    ExampleGradient,
    Kept,
    LayerCall,
    row_factors,
)
from securesgd.training.gradients.geometry import Geometry
from securesgd.training.gradients.patches import kept_gradients, measured_gradients, product_cost
from securesgd.training.gradients.pixel_gram import gram_cost, gram_squares

CHUNK_ROWS = 16  # images unfolded at once: their patches stay in the shared cache
REPLACED = 0.6  # share of a product's cost that keeping it saves: the weight gradient is not computed again


def convolution_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `Conv2d` layer's wanted parameters."""
    layer = cast(nn.Conv2d, call.module)
    geometry, x = Geometry.of(layer, call.input)
    g = call.output_gradient
    found: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        found["bias"] = Kept.of(g.sum(dim=(2, 3)).view(call.examples, call.copies, -1).sum(dim=1))
    if "weight" in call.wanted:
        found["weight"] = _weight_gradient(call, layer, geometry, x)
    return found


def _weight_gradient(call: LayerCall, layer: nn.Conv2d, geometry: Geometry, x: Tensor) -> ExampleGradient:
    g, chunk = call.output_gradient, max(1, CHUNK_ROWS // call.copies)
    product, gram = product_cost(x, g, geometry, call.copies), gram_cost(x, g, geometry, call.copies)
    if "weight" in call.keep or (call.may_keep("weight") and (1 - REPLACED) * product <= gram):
        scratch = None if "weight" in call.keep else call.scratch
        return kept_gradients(x, g, geometry, call.copies, chunk, scratch)
    squares = (
        _measured_by_gram(call, geometry, x)
        if gram < product
        else measured_gradients(x, g, geometry, call.copies, chunk)
    )
    return Deferred(squares, lambda factors: _weighted_sum(layer, geometry, x, g, factors, call.copies))


def _measured_by_gram(call: LayerCall, geometry: Geometry, x: Tensor) -> Tensor:
    g, copies = call.output_gradient, call.copies
    squares, scale = gram_squares(x, g, geometry, copies)
    for example in (squares < CANCELLATION * scale).nonzero().flatten().tolist():
        rows = slice(example * copies, (example + 1) * copies)
        squares[example] = measured_gradients(x[rows], g[rows], geometry, copies, 1)[0]
    return squares


def _weighted_sum(layer: nn.Conv2d, geometry: Geometry, x: Tensor, g: Tensor, factors: Tensor, copies: int) -> Tensor:
    """Return the ordinary weight gradient for output gradients scaled by the factor of their example."""
    padding = geometry.before
    if geometry.before != geometry.after:
        x, padding = geometry.padded(x.permute(0, 2, 3, 1), rows=True).permute(0, 3, 1, 2), (0, 0)
    scaled = g * row_factors(factors, copies, g.dim())
    weight = layer.weight.detach()
    _, gradient, _ = torch.ops.aten.convolution_backward(
        scaled, x, weight, None, layer.stride, padding, layer.dilation, False, (0, 0), layer.groups,
        (False, True, False),
    )  # fmt: skip
    return cast(Tensor, gradient)
