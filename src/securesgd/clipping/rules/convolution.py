"""Per-example gradients of `nn.Conv2d`: kept, measured by pixel Gram matrices, or measured in pieces, by cost."""

__all__ = ["convolution_gradients"]

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from securesgd.clipping.rules.forms import (
    CANCELLATION,
    GROUP,
    KEEPING,
    Deferred,
    ExampleGradient,
    Kept,
    LayerCall,
    joint_examples,
    needs_own_sum,
    nonzero_rows,
    round_down,
    sum_again,
    sum_products,
)
from securesgd.clipping.rules.geometry import Geometry
from securesgd.clipping.rules.patches import joint_gradients, kept_gradients, measured_gradients, product_cost
from securesgd.clipping.rules.pixel_gram import gram_cost, gram_squares

CHUNK_ROWS = 16  # images unfolded at once: their patches stay in the shared cache
CHUNK_PATCHES = 2**18  # numbers in patches of small images unfolded at once, if they are more than so many images
DOUBLE = 3.0  # cost of float64 Gram matrices in float32 ones (measured)
CHUNK_NUMBERS = 2**22  # of gradients computed again for the sum: 16 MB of float32


def convolution_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `Conv2d` layer's wanted parameters."""
    geometry, x = Geometry.from_layer(cast(nn.Conv2d, call.module), call.input)
    g = call.output_gradient
    gradients: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(g.sum(dim=(2, 3)).view(call.examples, call.copies, -1).sum(dim=1))
    if "weight" in call.wanted:
        gradients["weight"] = _weight_gradient(call, geometry, x)
    return gradients


def _weight_gradient(call: LayerCall, geometry: Geometry, x: Tensor) -> ExampleGradient:
    g, copies, size = call.output_gradient, call.copies, call.module.get_parameter("weight").numel()
    taps = geometry.kernel[0] * geometry.kernel[1]
    patches = taps * x.shape[1] // geometry.groups * max(1, g.shape[2] * g.shape[3])
    chunk = max(1, max(CHUNK_ROWS, CHUNK_PATCHES // patches) // copies)
    product, gram = product_cost(x, g, geometry, copies), gram_cost(x, g, geometry, copies)
    if "weight" in call.keep or (call.may_keep("weight") and KEEPING * size <= min(gram, product)):
        scratch = None if "weight" in call.keep else call.scratch
        return kept_gradients(x, g, geometry, copies, chunk, scratch)
    joint = joint_examples(copies * g.shape[2] * g.shape[3], g.dtype)
    if geometry.groups == 1 and joint > 1 and copies == 1 and DOUBLE * gram < product:
        return _joint_gradient(call, geometry, x, joint)
    squares = (
        _measured_by_gram(call, geometry, x) if gram < product else measured_gradients(x, g, geometry, copies, chunk)
    )

    def again(part: slice) -> Kept:
        rows = slice(part.start * copies, part.stop * copies)
        return kept_gradients(x[rows], g[rows], geometry, copies, chunk, call.scratch)

    fitting = min(chunk, max(2, CHUNK_NUMBERS // size))
    return Deferred(squares, lambda factors: sum_again(again, squares, factors, fitting))


def _joint_gradient(call: LayerCall, geometry: Geometry, x: Tensor, joint: int) -> Deferred:
    """Return the form that adds over positions and a few examples in one product: fast where positions are few.

    Norms come from Gram matrices in float64: what float32 numbers lose there is below 1e-9 of |g||x|. Examples whose
    terms are longer than `joint_examples` allows, or huge, or whose squares may have vanished, are made one by one.
    """
    g, size = call.output_gradient, call.module.get_parameter("weight").numel()
    squares, scale = gram_squares(x.double(), g.double(), geometry, 1)
    squares = squares.clamp_min(0.0)
    spread = scale * (g.shape[2] * g.shape[3])  # (|g||x|)²
    alone = needs_own_sum(squares, spread, x, g)

    def only(part: slice) -> Callable[[slice], Kept]:
        return lambda _: kept_gradients(x[part], g[part], geometry, 1, 1)

    def summed(factors: Tensor) -> Tensor:
        together = factors.masked_fill(alone, 0.0)
        images, scaled = nonzero_rows(x, together), nonzero_rows(g, together)
        scaled = scaled * round_down(together, g.dtype).view(-1, 1, 1, 1)

        def products(part: slice) -> Kept:
            rows = slice(part.start * joint, part.stop * joint)
            return joint_gradients(images[rows], scaled[rows], geometry, joint, call.scratch)

        total = sum_products(products, -(-len(g) // joint), GROUP // joint, max(2, CHUNK_NUMBERS // size))
        for example in (alone & (factors > 0)).nonzero().squeeze(1).tolist():
            part = slice(example, example + 1)
            total = total.double() + sum_again(only(part), squares[part], factors[part], 1)
        return total

    return Deferred(squares, summed)


def _measured_by_gram(call: LayerCall, geometry: Geometry, x: Tensor) -> Tensor:
    g, copies = call.output_gradient, call.copies
    squares, scale = gram_squares(x, g, geometry, copies)
    squares = squares.double()
    for example in (squares < CANCELLATION * scale).nonzero().flatten().tolist():
        rows = slice(example * copies, (example + 1) * copies)
        squares[example] = measured_gradients(x[rows], g[rows], geometry, copies, 1)[0]
    return squares
