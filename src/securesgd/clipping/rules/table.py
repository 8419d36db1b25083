"""Which rule computes the per-example gradients of which layer."""

__all__ = ["composite_for", "rule_for"]

from collections.abc import Callable

from torch import nn

from securesgd.clipping.rules.attention import attention_parts
from securesgd.clipping.rules.convolution import convolution_gradients
from securesgd.clipping.rules.embedding import embedding_gradients
from securesgd.clipping.rules.generic import generic_gradients
from securesgd.clipping.rules.interval import (
    interval_convolution_gradients,
    interval_linear_gradients,
    interval_margin_gradients,
)
from securesgd.clipping.rules.linear import linear_gradients
from securesgd.clipping.rules.normalisation import group_norm_gradients, layer_norm_gradients, scale_gradients
from securesgd.clipping.rules.parts import Composite, Rule
from securesgd.clipping.rules.recurrent import recurrent_parts
from securesgd.models.interval_network import IntervalConvolution, IntervalLinear, IntervalMargins
from securesgd.models.noise_layer import Scale

FAST_RULES: dict[type[nn.Module], tuple[Rule, int | None]] = {  # layer: rule, dimensions its input must have
    IntervalConvolution: (interval_convolution_gradients, 5),
    IntervalLinear: (interval_linear_gradients, 3),
    IntervalMargins: (interval_margin_gradients, 3),
    nn.Conv2d: (convolution_gradients, 4),
    nn.Embedding: (embedding_gradients, None),
    nn.GroupNorm: (group_norm_gradients, None),
    nn.LayerNorm: (layer_norm_gradients, None),
    nn.Linear: (linear_gradients, None),
    Scale: (scale_gradients, None),
}
COMPOSITES: dict[type[nn.Module], Callable[[nn.Module], Composite | None]] = {
    nn.GRU: recurrent_parts,
    nn.LSTM: recurrent_parts,
    nn.MultiheadAttention: attention_parts,
    nn.RNN: recurrent_parts,
}
_NAMES: dict[type[nn.Module], set[str]] = {Scale: {"values"}}


def rule_for(module: nn.Module) -> tuple[Rule, int | None]:
    """Return the rule for `module` and how many dimensions its input must have (None: any).

    A subclass may compute something else, so only the layers themselves take a fast rule; so does a parametrised
    layer (its class is generated) or one with parameters beyond its own. Everything else is `generic_gradients`.
    """
    names = _NAMES.get(type(module), {"weight", "bias"})
    own = set(module._parameters) <= names and not any(True for _ in module.children())
    if type(module) in FAST_RULES and own:
        return FAST_RULES[type(module)]
    return generic_gradients, None


def composite_for(module: nn.Module) -> Composite | None:
    """Return the linear maps that `module` is made of; None if it is not one of the layers known to be, or odd."""
    parts = COMPOSITES.get(type(module))
    return parts(module) if parts else None
