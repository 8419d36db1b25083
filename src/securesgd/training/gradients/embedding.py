"""Per-example gradients of `nn.Embedding`: only the rows an example looked up are touched."""

__all__ = ["embedding_gradients"]

from typing import cast

import torch
from torch import Tensor, nn

from securesgd.training.gradients.forms import Deferred, ExampleGradient, Kept, LayerCall, row_factors


def embedding_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradient of an `Embedding` layer's weight.

    The gradients of one token looked up several times by one example are added before they are squared.
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
        return {"weight": Kept.of(kept)}

    def summed(factors: Tensor) -> Tensor:
        scaled = (g * row_factors(factors, call.copies, g.dim())).reshape(-1, width)
        return scaled.new_zeros(vocabulary, width).index_add_(0, tokens.reshape(-1), scaled)

    return {"weight": Deferred(_squares(words, values, vocabulary), summed)}


def _squares(words: Tensor, values: Tensor, vocabulary: int) -> Tensor:
    examples = torch.arange(len(words), device=words.device).unsqueeze(1)
    keys, position = torch.unique(words + examples * vocabulary, return_inverse=True)
    rows = values.new_zeros(len(keys), values.shape[-1])
    rows.index_add_(0, position.reshape(-1), values.reshape(-1, values.shape[-1]))
    squares = values.new_zeros(len(words))
    return squares.index_add_(0, keys // vocabulary, rows.square().sum(dim=1))
