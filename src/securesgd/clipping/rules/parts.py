"""Parts of a module that are recorded on their own: linear maps inside a layer, and parameters of a container.

torch runs a layer such as attention as one function, in which no hook sees the input and output of a map.
`Composite.forward` computes the same from the same parameters and passes each map to `record`, after which it is a
layer like any other: its input and the gradient of its output give its per-example gradients.

A parameter that a container of layers uses itself (a position embedding, a class token) is handed out as one copy for
each row of the batch. The gradient of a copy is that of its row, provided that each row uses its own copy alone, which
the engine checks as it checks the rows of any layer.
"""

__all__ = ["Composite", "Part", "Record", "Rule", "one_copy_per_row", "row_parameter_gradients"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from securesgd.clipping.rules.forms import ExampleGradient, Kept, LayerCall

Rule = Callable[[LayerCall], dict[str, ExampleGradient]]
Record = Callable[[str, Tensor, Tensor], Tensor]
"""record(part, input, output) returns the output, to be used instead."""


@dataclass(frozen=True, slots=True)
class Part:
    """One map of a layer: the rule for its gradients, and the layer's names of its parameters."""

    rule: Rule
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Composite:
    """The maps of a layer by name, and `forward(layer, record, *args, **kwargs)`, which equals the layer's own."""

    parts: dict[str, Part]
    forward: Callable[..., Any]


def one_copy_per_row(parameter: Tensor, rows: int) -> Tensor:
    """Return a copy for each row, [rows, …]: of what follows a first dimension of 1, or else of the whole."""
    one = parameter if parameter.dim() and len(parameter) == 1 else parameter.unsqueeze(0)
    return one.expand(rows, *one.shape[1:])


def row_parameter_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of the parameter, from those of its copies."""
    (name,) = call.wanted
    copies = call.output_gradient.reshape(call.examples, call.copies, -1).sum(dim=1)
    return {name: Kept.from_gradients(copies.view(call.examples, *call.module.get_parameter(name).shape))}
