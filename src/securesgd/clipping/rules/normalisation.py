"""Per-example gradients of `GroupNorm`, `LayerNorm` and `Scale`, which treat examples one by one."""

__all__ = ["group_norm_gradients", "group_statistics", "layer_norm_gradients", "scale_gradients"]

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping.rules.forms import ExampleGradient, FastPathError, Kept, LayerCall
from securesgd.models.noise_layer import Scale


def group_norm_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of a `GroupNorm` layer's wanted parameters."""
    layer, x, g = cast(nn.GroupNorm, call.module), call.input, call.output_gradient
    gradients: dict[str, ExampleGradient] = {}
    sums = _over_pixels(g)
    if "weight" in call.wanted and call.statistics is not None:
        # sum_p g_p (x_p - mean) / std, as torch's own backward pass has it
        mean, reciprocal = (s.repeat_interleave(x.shape[1] // layer.num_groups, dim=1) for s in call.statistics)
        weight = torch.addcmul(_over_pixels(g * x), sums, mean, value=-1).mul_(reciprocal)
        gradients["weight"] = Kept.from_gradients(_over_copies(weight, call))
    elif "weight" in call.wanted:
        normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
        gradients["weight"] = Kept.from_gradients(_over_copies(_over_pixels(g * normal), call))
    if "bias" in call.wanted:
        gradients["bias"] = Kept.from_gradients(_over_copies(sums, call))
    return gradients


def group_statistics(output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return mean and 1 / std of each image and group, [rows, groups], that autograd keeps of a `GroupNorm`'s output.

    None for another output, and where hooks on saved tensors are in force: a checkpoint gives each tensor once.
    """
    node = output.grad_fn
    if node is None or node.name() != "NativeGroupNormBackward0":
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    mean, reciprocal = node._saved_result1, node._saved_result2  # type: ignore[attr-defined]
    return mean.detach(), reciprocal.detach()


def _over_pixels(images: Tensor) -> Tensor:
    """Return the sum over all pixels of each map, shape [images, maps]."""
    return images.sum(dim=tuple(range(2, images.dim()))) if images.dim() > 2 else images


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
    scale = cast(Scale, call.module)
    values = scale.values
    if values.dim() != call.input.dim() - 1:
        raise FastPathError("its factors do not have the dimensions of an example")
    gradients = call.input * call.output_gradient
    shared = [d for d, size in enumerate(values.shape, start=1) if size == 1 and gradients.shape[d] > 1]
    if shared:  # one factor for several units
        gradients = gradients.sum(dim=shared, keepdim=True)
    if call.copies > 1:
        gradients = gradients.reshape(call.examples, call.copies, *gradients.shape[1:]).sum(dim=1)
    return {"values": Kept.from_gradients(scale.log_gradient(gradients))}
