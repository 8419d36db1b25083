"""The operations that interval bounds know, and a network as a list of them."""

__all__ = ["Kind", "LayerGraph", "Operation"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Kind = Literal["input", "linear", "convolution", "activation", "max-pool", "average-pool", "reshape", "sum", "affine"]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One step of a network. `inputs` are places of earlier operations, `shape` that of an output without the batch."""

    kind: Kind
    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    module: nn.Linear | nn.Conv2d | None = None
    """Of linear and convolution."""
    function: Callable[[Tensor], Tensor] | None = None
    """Of an activation (monotone, not decreasing), a pool, a reshape, or an affine map that rounds as written."""
    exact: bool = True
    """Of an activation: whether it is computed without rounding, as a maximum is."""
    curve: str = ""
    """Of an activation: its name in `ACTIVATIONS`."""
    scale: Tensor | float = 1.0
    shift: Tensor | float = 0.0

    def run(self, *inputs: Tensor) -> Tensor:
        """Return the output as the network computes it."""
        if self.kind == "sum":
            return inputs[0] + inputs[1]
        (x,) = inputs
        if self.kind in ("linear", "convolution"):
            assert self.module is not None
            return self.module(x)
        if self.kind == "affine" and self.function is None:
            return x * self.scale + self.shift
        assert self.function is not None
        return self.function(x)


@dataclass(frozen=True, slots=True, eq=False)
class LayerGraph:
    """The operations in the order they run; the first is the input and the last the output."""

    operations: tuple[Operation, ...]

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the output of the network at x."""
        values = [x]
        for operation in self.operations[1:]:
            values.append(operation.run(*(values[i] for i in operation.inputs)))
        return values[-1]

    def layers(self) -> list[Operation]:
        """Return the linear layers and convolutions."""
        return [operation for operation in self.operations if operation.module is not None]
