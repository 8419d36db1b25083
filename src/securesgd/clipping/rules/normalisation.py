"""Per-example gradients of `GroupNorm`, `LayerNorm` and `Scale`, which treat examples one by one."""

__all__ = ["group_norm_gradients", "layer_norm_gradients", "scale_gradients"]

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping.rules.forms import ExampleGradient, FastPathError, Kept, LayerCall
from securesgd.models.noise_layer import Scale


def group_norm_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `GroupNorm` layer's wanted parameters."""
    layer = cast(nn.GroupNorm, call.module)
    rows, channels = call.input.shape[:2]
    g = call.output_gradient.reshape(rows, channels, -1)
    gradients: dict[str, ExampleGradient] = {}
    if "weight" in call.wanted:
        normal = functional.group_norm(call.input, layer.num_groups, eps=layer.eps).reshape(rows, channels, -1)
        gradients["weight"] = Kept.from_gradients(_over_copies((g * normal).sum(dim=2), call))
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(_over_copies(g.sum(dim=2), call))
    return gradients


def layer_norm_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `LayerNorm` layer's wanted parameters."""
    layer = cast(nn.LayerNorm, call.module)
    if call.input.dim() <= len(layer.normalized_shape):
        raise FastPathError("it normalises over the batch dimension")
    shape = (len(call.input), -1, *layer.normalized_shape)
    g = call.output_gradient
    gradients: dict[str, ExampleGradient] = {}
    if "weight" in call.wanted:
        normal = functional.layer_norm(call.input, layer.normalized_shape, eps=layer.eps)
        gradients["weight"] = Kept.from_gradients(_over_copies((g * normal).reshape(shape).sum(dim=1), call))
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(_over_copies(g.reshape(shape).sum(dim=1), call))
    return gradients


def _over_copies(per_row: Tensor, call: LayerCall) -> Tensor:
    return per_row.reshape(call.examples, call.copies, *per_row.shape[1:]).sum(dim=1)


def scale_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of the factors."""
    values = cast(Scale, call.module).values
    if values.dim() != call.input.dim() - 1:
        raise FastPathError("its factors do not have the dimensions of an example")
    gradients = call.input * call.output_gradient
    shared = [d for d, size in enumerate(values.shape, start=1) if size == 1 and gradients.shape[d] > 1]
    if shared:  # one factor for several units
        gradients = gradients.sum(dim=shared, keepdim=True)
    if call.copies > 1:
        gradients = gradients.reshape(call.examples, call.copies, *gradients.shape[1:]).sum(dim=1)
    return {"values": Kept.from_gradients(gradients)}
