"""Per-example gradients of layers that take boxes (`models.interval_network`), where W is used twice: as W and as |W|.

With S = sign(W), inputs a and output gradients g of the signed streams (input and centre) and of the radius,

    gradient of one example = Σ_signed g aᵀ + S ∘ Σ_radius g aᵀ.

Convolutions and the last layer form it. Dense layers measure it without forming it, all in float64:
Σ_pp' (g_p·g_p')(a_p·a_p') within each kind of stream, and 2 (g_p ∘ g_q)ᵀ S (a_p ∘ a_q) between them.
"""

__all__ = ["interval_convolution_gradients", "interval_linear_gradients", "interval_margin_gradients"]

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from securesgd.clipping.rules.convolution import CHUNK_NUMBERS, CHUNK_ROWS
from securesgd.clipping.rules.forms import (
    GROUP,
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
from securesgd.clipping.rules.patches import kept_gradients
from securesgd.models.interval_network import IntervalMargins


def interval_linear_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of an `IntervalLinear` layer's wanted parameters."""
    (a, b), (g, h) = _streams(call.input, call), _streams(call.output_gradient, call)
    gradients: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(g.sum(dim=1))
    if "weight" in call.wanted:
        gradients["weight"] = _dense_gradient(call, a, b, g, h)
    return gradients


def interval_convolution_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of an `IntervalConvolution` layer's wanted parameters."""
    (a, b), (g, h) = _streams(call.input, call), _streams(call.output_gradient, call)
    geometry, _ = Geometry.from_layer(cast(Any, call.module), call.input)
    gradients: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(g.sum(dim=(1, 3, 4)))
    if "weight" not in call.wanted:
        return gradients
    sign = call.module.get_parameter("weight").detach().sign()

    def make(part: slice) -> Kept:
        signed, radius = (
            kept_gradients(x[part].flatten(0, 1), y[part].flatten(0, 1), geometry, x.shape[1], CHUNK_ROWS)
            for x, y in ((a, g), (b, h))
        )
        return Kept(signed.raw.addcmul_(_in_layout_of(signed, sign), radius.raw), signed.restore)

    gradients["weight"] = _kept_or_again(call, make)
    return gradients


def interval_margin_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of an `IntervalMargins` layer's wanted parameters.

    Line 1 + y of the output holds z_j − z_y of the centre plus |W_j − W_y| ρ. With G its gradient at [y, j], class c
    gets Σ_y G[y, c] − Σ_j G[c, j] of the centre, and Σ_j (G + Gᵀ)[c, j] sign(W_c − W_j) of ρ.
    """
    (a, b), g = _streams(call.input, call), call.output_gradient
    g = g.reshape(call.examples, call.copies, *g.shape[1:])
    clean, pairs = g[:, :, 0], g[:, :, 1:]
    centre = pairs.sum(dim=2) - pairs.sum(dim=3)
    signed = torch.stack([clean, centre], dim=2).flatten(1, 2)  # in the order of the signed inputs
    gradients: dict[str, ExampleGradient] = {}
    if "bias" in call.wanted:  # that of the margins cancels: z_j − z_y has b_j − b_y
        gradients["bias"] = Kept.from_gradients(signed.sum(dim=1))
    if "weight" not in call.wanted:
        return gradients
    sign = cast(IntervalMargins, call.module).differences().detach().sign().transpose(0, 1)  # of W_c − W_j at [c, j]

    def make(part: slice) -> Kept:
        both = pairs[part] + pairs[part].transpose(2, 3)  # [examples, copies, c, j]
        spread = torch.einsum("nkcj,cjf->nkcf", both, sign)
        products = torch.bmm(signed[part].transpose(1, 2), a[part])
        return Kept.from_gradients(products + (spread * b[part].unsqueeze(2)).sum(dim=1))

    gradients["weight"] = _kept_or_again(call, make)
    return gradients


def _streams(tensor: Tensor, call: LayerCall) -> tuple[Tensor, Tensor]:
    """Return [examples, streams, …] of the signed streams of all copies, and of the radii."""
    by_example = tensor.reshape(call.examples, call.copies, *tensor.shape[1:])
    return by_example[:, :, :2].flatten(1, 2), by_example[:, :, 2]


def _kept_or_again(call: LayerCall, make: Callable[[slice], Kept]) -> ExampleGradient:
    """Return the gradients if there is memory for them; else their squares, and a sum that makes them again."""
    if call.may_keep("weight"):
        return make(slice(0, call.examples))
    chunk = max(1, CHUNK_NUMBERS // call.module.get_parameter("weight").numel())
    parts = [slice(start, min(start + chunk, call.examples)) for start in range(0, call.examples, chunk)]
    squares = torch.cat([make(part).squared_norms() for part in parts])
    return Deferred(squares, lambda factors: sum_again(make, squares, factors, chunk))


def _dense_gradient(call: LayerCall, a: Tensor, b: Tensor, g: Tensor, h: Tensor) -> ExampleGradient:
    weight = call.module.get_parameter("weight").detach()
    sign = weight.sign()

    def make(part: slice) -> Kept:
        product = torch.bmm(g[part].transpose(1, 2), a[part])
        return Kept.from_gradients(product.addcmul_(sign, torch.bmm(h[part].transpose(1, 2), b[part])))

    joint = joint_examples(a.shape[1] + b.shape[1] + 1, g.dtype)
    if "weight" in call.keep or joint == 1 or not bool(sign.all()):  # |w| has no slope at 0: no formula for that
        return _kept_or_again(call, make)
    squares, spread = _dense_squares(a.double(), b.double(), g.double(), h.double(), sign.double())
    alone = needs_own_sum(squares, spread, torch.cat([a, b], dim=1), torch.cat([g, h], dim=1))

    def summed(factors: Tensor) -> Tensor:
        together = factors.masked_fill(alone, 0.0)
        weights = round_down(together, g.dtype).view(-1, 1, 1)
        inputs = [nonzero_rows(x, together) for x in (a, b)]
        scaled = [nonzero_rows(x, together) * weights for x in (g, h)]

        def products(part: slice) -> Kept:
            signed, radius = (
                torch.bmm(_side_by_side(y, part, joint).transpose(1, 2), _side_by_side(x, part, joint))
                for x, y in zip(inputs, scaled, strict=True)
            )
            return Kept.from_gradients(signed.addcmul_(sign, radius))

        chunk = max(2, CHUNK_NUMBERS // weight.numel())
        total = sum_products(products, -(-len(g) // joint), GROUP // joint, chunk)
        for example in (alone & (factors > 0)).nonzero().squeeze(1).tolist():
            part = slice(example, example + 1)
            own = sum_again(lambda _, part=part: make(part), squares[part], factors[part], 1)  # type: ignore[misc]
            total = total.double() + own
        return total

    return Deferred(squares, summed)


def _side_by_side(rows: Tensor, part: slice, joint: int) -> Tensor:
    """Return parts of `joint` examples as one each, [parts, joint · streams, features]; the last is filled with 0."""
    chosen = rows[part.start * joint : part.stop * joint]
    missing = (part.stop - part.start) * joint - len(chosen)
    if missing:
        chosen = torch.cat([chosen, chosen.new_zeros(missing, *chosen.shape[1:])])
    return chosen.reshape(-1, joint * rows.shape[1], rows.shape[2])


def _dense_squares(a: Tensor, b: Tensor, g: Tensor, h: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared norms, and those without cancellation: (|g||a| over all streams)²."""
    squares = torch.zeros(len(g), dtype=torch.float64, device=g.device)
    for x, y in ((a, g), (b, h)):
        squares += (torch.bmm(x, x.transpose(1, 2)) * torch.bmm(y, y.transpose(1, 2))).sum(dim=(1, 2))
    for p in range(a.shape[1]):
        for q in range(b.shape[1]):
            squares += 2 * (((g[:, p] * h[:, q]) @ sign) * (a[:, p] * b[:, q])).sum(dim=1)
    spread = (a.square().sum(dim=(1, 2)) + b.square().sum(dim=(1, 2))) * (
        g.square().sum(dim=(1, 2)) + h.square().sum(dim=(1, 2))
    )
    return squares.clamp_min(0.0), spread


def _in_layout_of(kept: Kept, parameter: Tensor) -> Tensor:
    """Return `parameter` as the kept gradients have it: [parts, 1, …]."""
    shape = (len(kept.raw), 1, *kept.raw.shape[2:])
    places = torch.arange(parameter.numel(), device=parameter.device).view(shape)
    laid_out = parameter.new_empty(parameter.numel())
    laid_out[kept.restore(places).flatten()] = parameter.flatten()
    return laid_out.view(shape)
