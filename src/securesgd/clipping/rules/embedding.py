"""Per-example gradients of `nn.Embedding`: only the rows an example looked up are touched."""

__all__ = ["embedding_gradients"]

from typing import cast

import torch
from torch import Tensor, nn

from securesgd.clipping.rules.forms import (
    Deferred,
    ExampleGradient,
    Kept,
    LayerCall,
    nonzero_rows,
    squared_lengths,
)


def embedding_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradient of an `Embedding` layer's weight.

    The gradients of one token looked up several times by one example are added before they are squared; the same rows
    are added up later, in float64.
    """
    layer = cast(nn.Embedding, call.module)
    tokens, g = call.input, call.output_gradient
    if layer.padding_idx is not None:  # its row gets no gradient
        g = g.masked_fill((tokens == layer.padding_idx).unsqueeze(-1), 0)
    vocabulary, width = layer.weight.shape
    words = tokens.reshape(call.examples, -1)
    values = g.reshape(call.examples, -1, width)
    if "weight" in call.keep:
        kept = values.new_zeros(call.examples, vocabulary, width)
        kept.scatter_add_(1, words.unsqueeze(-1).expand_as(values), values)
        return {"weight": Kept.from_gradients(kept)}

    examples = torch.arange(len(words), device=words.device).unsqueeze(1)
    keys, position = torch.unique(words + examples * vocabulary, return_inverse=True)
    rows = values.new_zeros(len(keys), width).index_add_(0, position.reshape(-1), values.reshape(-1, width))
    owner, token = keys // vocabulary, keys % vocabulary
    squares = torch.zeros(len(words), dtype=torch.float64, device=g.device)
    squares.index_add_(0, owner, squared_lengths(rows))

    def summed(factors: Tensor) -> Tensor:
        shares = nonzero_rows(rows, factors[owner]).double() * factors[owner].unsqueeze(1)
        return shares.new_zeros(vocabulary, width).index_add_(0, token, shares)

    return {"weight": Deferred(squares, summed)}
