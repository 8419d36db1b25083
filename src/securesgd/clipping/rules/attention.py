"""`nn.MultiheadAttention` as linear maps: in-projection, out-projection, and attention between them.

Self-attention has one in-projection of queries, keys and values together; otherwise, each has rows of the weight.
"""

__all__ = ["attention_parts"]

import math
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from securesgd.clipping.rules.forms import ExampleGradient, FastPathError, LayerCall
from securesgd.clipping.rules.linear import linear_gradients
from securesgd.clipping.rules.parts import Composite, Part, Record

_PROJECTIONS = ("query", "key", "value")
_IN, _OUT = ("in_proj_weight", "in_proj_bias"), ("out_proj.weight", "out_proj.bias")
_OTHER = {"q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k", "bias_v"}


def attention_parts(module: nn.Module) -> Composite | None:
    """Return the maps of an attention layer; None if it has others than the usual two."""
    layer = cast(nn.MultiheadAttention, module)
    out = layer.out_proj
    known = set(layer._parameters) <= {*_IN, *_OTHER} and set(out._parameters) <= {"weight", "bias"}
    usual = not layer.add_zero_attn and all(layer._parameters.get(name) is None for name in _OTHER)
    if not known or not usual or type(out) is not NonDynamicallyQuantizableLinear:
        return None
    parts = {name: Part(partial(_slice_gradients, place=i), _IN) for i, name in enumerate(_PROJECTIONS)}
    parts["in_proj"] = Part(partial(linear_gradients, weight=_IN[0], bias=_IN[1]), _IN)
    parts["out_proj"] = Part(partial(linear_gradients, weight=_OUT[0], bias=_OUT[1]), _OUT)
    return Composite(parts, _attention)


def _slice_gradients(call: LayerCall, place: int) -> dict[str, ExampleGradient]:
    """Return the gradients of the whole in-projection from one third of its rows: the others get zeros."""
    g = call.output_gradient
    padded = [g if i == place else torch.zeros_like(g) for i in range(3)]
    return linear_gradients(replace(call, output_gradient=torch.cat(padded, dim=-1)), weight=_IN[0], bias=_IN[1])


def _attention(
    layer: nn.MultiheadAttention,
    record: Record,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return what `layer.forward` returns; random numbers are drawn in the same order."""
    if any(x.dim() != 3 or x.is_nested for x in (query, key, value)):
        raise FastPathError("its inputs are not batches of sequences")
    if is_causal and attn_mask is None:
        raise FastPathError("is_causal without attn_mask")
    is_self = query is key and key is value
    if not layer.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weight, bias, rate = layer.in_proj_weight, layer.in_proj_bias, layer.dropout if layer.training else 0.0
    if is_self:
        projected = record("in_proj", query, linear(query, weight, bias)).chunk(3, dim=-1)
    else:
        rows = [slice(i * layer.embed_dim, (i + 1) * layer.embed_dim) for i in range(3)]
        projected = tuple(
            record(name, x, linear(x, weight[part], None if bias is None else bias[part]))
            for name, x, part in zip(_PROJECTIONS, (query, key, value), rows, strict=True)
        )
    q, k, v = (x.view(*x.shape[:2], layer.num_heads, layer.head_dim).transpose(1, 2) for x in projected)
    weights: Tensor | None = None
    if need_weights:
        mask = _mask(layer, attn_mask, key_padding_mask, q)
        scores = (q * math.sqrt(1 / layer.head_dim)) @ k.transpose(2, 3)
        weights = (scores if mask is None else scores + mask).softmax(dim=-1)
        weights = dropout(weights, rate) if rate > 0 else weights
        heads = weights @ v
    else:
        causal = is_causal and key_padding_mask is None  # then torch goes by the hint, not by the mask
        mask = None if causal else _mask(layer, attn_mask, key_padding_mask, q)
        heads = scaled_dot_product_attention(q, k, v, mask, rate, causal)
    joined = heads.transpose(1, 2).flatten(2)
    output = record("out_proj", joined, linear(joined, layer.out_proj.weight, layer.out_proj.bias))
    if weights is not None and average_attn_weights:
        weights = weights.mean(dim=1)
    return output if layer.batch_first else output.transpose(0, 1), weights


def _mask(layer: nn.MultiheadAttention, between: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Return what is added to the scores, broadcastable to [rows, heads, queries, keys]."""
    masks = []
    if between is not None:
        masks.append(between if between.dim() == 2 else between.view(len(q), layer.num_heads, *between.shape[1:]))
    if padding is not None:
        masks.append(padding[:, None, None, :])
    added = [
        torch.zeros_like(m, dtype=q.dtype).masked_fill_(m, -math.inf) if m.dtype == torch.bool else m.to(q.dtype)
        for m in masks
    ]
    return sum(added[1:], added[0]) if added else None
