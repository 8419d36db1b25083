"""Per-example gradients of `Scale`: the factor of a unit has the gradient input × output gradient."""

__all__ = ["scale_gradients"]

from typing import cast

from securesgd.models.scale import Scale
from securesgd.training.gradients.forms import ExampleGradient, Kept, LayerCall, Unfit


def scale_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of the factors."""
    values = cast(Scale, call.module).values
    if values.dim() != call.input.dim() - 1:
        raise Unfit("its factors do not have the dimensions of an example")
    gradients = call.input * call.output_gradient
    shared = [d for d, size in enumerate(values.shape, start=1) if size == 1 and gradients.shape[d] > 1]
    if shared:  # one factor for several units
        gradients = gradients.sum(dim=shared, keepdim=True)
    if call.copies > 1:
        gradients = gradients.reshape(call.examples, call.copies, *gradients.shape[1:]).sum(dim=1)
    return {"values": Kept.of(gradients)}
