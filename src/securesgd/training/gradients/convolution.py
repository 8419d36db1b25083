"""Per-example gradients of `nn.Conv2d`: kept, measured by pixel Gram matrices, or measured in pieces, by cost."""

__all__ = ["convolution_gradients"]

from typing import cast

from torch import Tensor, nn

from securesgd.training.gradients.forms import (
    CANCELLATION,
    KEEPING,
    Deferred,
    ExampleGradient,
    Kept,
    LayerCall,
    sum_again,
)
from securesgd.training.gradients.geometry import Geometry
from securesgd.training.gradients.patches import kept_gradients, measured_gradients, product_cost
from securesgd.training.gradients.pixel_gram import gram_cost, gram_squares

CHUNK_ROWS = 16  # images unfolded at once: their patches stay in the shared cache
CHUNK_NUMBERS = 2**22  # of gradients made again for the sum: 16 MB of float32


def convolution_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `Conv2d` layer's wanted parameters."""
    geometry, x = Geometry.of(cast(nn.Conv2d, call.module), call.input)
    g = call.output_gradient
    found: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        found["bias"] = Kept.of(g.sum(dim=(2, 3)).view(call.examples, call.copies, -1).sum(dim=1))
    if "weight" in call.wanted:
        found["weight"] = _weight_gradient(call, geometry, x)
    return found


def _weight_gradient(call: LayerCall, geometry: Geometry, x: Tensor) -> ExampleGradient:
    g, copies, size = call.output_gradient, call.copies, call.module.get_parameter("weight").numel()
    chunk = max(1, CHUNK_ROWS // copies)
    product, gram = product_cost(x, g, geometry, copies), gram_cost(x, g, geometry, copies)
    if "weight" in call.keep or (call.may_keep("weight") and KEEPING * size <= min(gram, product)):
        scratch = None if "weight" in call.keep else call.scratch
        return kept_gradients(x, g, geometry, copies, chunk, scratch)
    squares = (
        _measured_by_gram(call, geometry, x) if gram < product else measured_gradients(x, g, geometry, copies, chunk)
    )

    def again(part: slice) -> Kept:
        rows = slice(part.start * copies, part.stop * copies)
        return kept_gradients(x[rows], g[rows], geometry, copies, chunk, call.scratch)

    fitting = min(chunk, max(2, CHUNK_NUMBERS // size))
    return Deferred(squares, lambda factors: sum_again(again, squares, factors, fitting))


def _measured_by_gram(call: LayerCall, geometry: Geometry, x: Tensor) -> Tensor:
    g, copies = call.output_gradient, call.copies
    squares, scale = gram_squares(x, g, geometry, copies)
    squares = squares.double()
    for example in (squares < CANCELLATION * scale).nonzero().flatten().tolist():
        rows = slice(example * copies, (example + 1) * copies)
        squares[example] = measured_gradients(x[rows], g[rows], geometry, copies, 1)[0]
    return squares
