"""One forward and one backward pass that yield the clipped sum of a batch: the fast path of the clipping engine.

The backward pass stops at the outputs of the layers: weight gradients are not part of it. As the gradient of each
output arrives (`hooks`), the rule of its layer measures the per-example norms. Once the clip factors are known, each
parameter's weighted sum is computed from what its rule kept, or from gradients computed again a few at a time.
"""

__all__ = ["FastPath"]

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import CheckpointError

from securesgd.clipping.hooks import Call, LayerHooks, parameter_uses
from securesgd.clipping.precision import in_full
from securesgd.clipping.rules.forms import ExampleGradient, FastPathError, Kept, LayerCall, Scratch
from securesgd.clipping.units import Unit
from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import Precision

_IN_BFLOAT16 = 0.05  # of a gradient by autograd in bfloat16 (8 bits), relative to that of the sum's terms


@dataclass(slots=True)
class FastPath:
    """The pass over one micro-batch. `examples` · `copies` rows go through the model at once."""

    units: list[Unit]
    trainable: dict[int, str]  # id of a parameter to its name in the model
    examples: int
    copies: int
    scratch: defaultdict[str, Scratch]  # by unit; outlives the pass
    synthetic: bool = False  # the rows are not data
    tables: frozenset[str] | None = frozenset()  # see `LayerHooks`
    used: list[Call] = field(default_factory=list)
    _hooks: LayerHooks | None = None
    _uses: Counter[str] = field(default_factory=Counter)
    _received: int = 0
    _mixed: str | None = None
    _foreign_rows: Tensor | None = None  # while probing: the rows that must have no gradient
    _gradients: list[tuple[str, ExampleGradient]] = field(default_factory=list)
    _shared: dict[str, Tensor] = field(default_factory=dict)

    def forward(self, model: Callable[[Tensor], Tensor], rows: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the losses of all rows; hooks record the calls of all units.

        Raises:
            FastPathError: the recorded calls do not hold the whole gradient.
        """
        self._hooks = LayerHooks(self.units, len(rows), self._receive, self.tables)
        with self._hooks:
            losses = loss(model(rows))
        if losses.requires_grad:
            self.used = parameter_uses(losses, self._hooks.calls, self.trainable)
        self._uses = Counter(name for call in self.used for name in call.unit.parameters.values())
        return losses

    def names(self, rows: Tensor) -> set[str]:
        """Return under which names the used units count as separate, once they were seen to be.

        Copies for the rows have another shape than what they are copies of, so that other inputs may use them
        differently: each shape of inputs is seen on its own.
        """
        own = {call.unit.name for call in self.used if not call.unit.by_row}
        shapes = {call.unit.name: list(rows.shape[1:]) for call in self.used if call.unit.by_row}
        return own | {f"{name} for inputs of shape {shape}" for name, shape in shapes.items()}

    def check_separate(self, losses: Tensor, rows: Tensor) -> None:
        """Return if no loss in a random half of the examples has a gradient at the other half's rows, and the reverse.

        These are two more backward passes; the engine needs them once per unit, not once per step.

        Raises:
            InvalidInputError: a loss depends on another example's input.
            FastPathError: a layer's rows do not belong to the examples in order.
        """
        if not self.used:
            return
        chance = torch.Generator().manual_seed(secrets.randbits(63))
        first = torch.randperm(self.examples, generator=chance) < self.examples // 2
        for half in (first, ~first):
            own = half.repeat_interleave(self.copies).to(losses.device)
            self._foreign_rows = ~own
            of_rows, *_ = self._backward(losses, own.to(losses.dtype), rows, retain_graph=True)
            self._foreign_rows = None
            if rows.requires_grad and of_rows is not None and _any(of_rows[~own]):
                raise InvalidInputError(
                    "the loss of one example depends on other examples of its batch: clipping cannot bound the "
                    "influence of one example; use layers and a loss that treat examples one by one"
                )
            if self._mixed is not None:
                raise FastPathError(f"rows of module {self._mixed!r} do not belong to the examples in order")

    @torch.no_grad()
    def check_sums(
        self, weights: Tensor, expected: dict[str, Tensor], squares: Tensor, precision: Precision = "float32"
    ) -> None:
        """Return if sum_i weights[i] · gradient_i is what an ordinary backward pass gave for it, up to rounding.

        The weights are random, so that gradients which belong to other examples, or are not those of the model (a hook
        changed them, a layer's forward was replaced), do not add up to it.

        Raises:
            FastPathError: it is not.
        """
        scale = float((weights.to(squares) * squares.sqrt()).sum())
        sums: dict[str, Tensor] = {}
        for name, gradient in self._gradients:
            part = gradient.weighted_sum(weights)
            sums[name] = sums[name] + part if name in sums else part
        for name in sums.keys() | expected.keys():
            a, b = sums.get(name), expected.get(name)
            gap = (a if b is None else b if a is None else a - b).norm().item()  # type: ignore[union-attr]
            tolerance = 1e-9 if next(iter(expected.values())).dtype == torch.float64 else 1e-4
            tolerance = tolerance if precision == "float32" else _IN_BFLOAT16
            if not gap <= tolerance * scale:
                raise FastPathError(
                    f"the gradient of {name!r} is not that of an ordinary backward pass (off by {gap:.3g})"
                )

    def squared_norms(self, losses: Tensor, rows: Tensor) -> Tensor:
        """Return the squared gradient norm of each example, in float64, after the backward pass."""
        squares = torch.zeros(self.examples, dtype=torch.float64, device=losses.device)
        if not self.used:
            return squares
        average = torch.full_like(losses, 1 / self.copies)
        self._backward(losses, average, rows)
        if self._received != len(self.used):
            raise FastPathError("the backward pass did not reach every layer")
        self._gradients += [(name, Kept.from_gradients(gradients)) for name, gradients in self._shared.items()]
        self._shared.clear()
        for _, gradient in self._gradients:
            squares += gradient.squared_norms()
        return squares

    @torch.no_grad()
    def weighted_sums(self, factors: Tensor) -> dict[str, Tensor]:
        """Return sum_i factors[i] · gradient_i of every parameter the losses depend on, and drop the records.

        `factors` are float64; an example of factor 0 adds nothing, even if its gradient is not finite.
        """
        sums = {}
        while self._gradients:
            name, gradient = self._gradients.pop()
            sums[name] = gradient.weighted_sum(factors)
        return sums

    def release(self) -> None:
        """Free the graph and everything recorded."""
        if self._hooks is not None:
            self._hooks.release()
        self._hooks = None
        self.used.clear()
        self._gradients.clear()

    def _backward(
        self, losses: Tensor, weights: Tensor, rows: Tensor, retain_graph: bool = False
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of sum_i weights[i] · loss_i where the backward pass ends; hooks see those between."""
        try:
            return torch.autograd.grad(
                losses, self._sources(rows), weights, retain_graph=retain_graph, allow_unused=True
            )
        except CheckpointError as error:  # it runs the layers again, without the code that records their maps
            raise FastPathError("a checkpoint holds a layer that is run by code of its own in the fast path") from error

    def _sources(self, rows: Tensor) -> list[GradientEdge]:
        """Return where the backward pass ends: at the rows if they have a gradient, and at the first layers."""
        sources = [get_gradient_edge(rows)] if rows.requires_grad else []
        sources += [call.edge for call in self.used if call.first]
        if not sources:
            raise FastPathError("the input of every layer depends on a tensor that is no parameter but has a gradient")
        return sources

    def _receive(self, call: Call, output_gradient: Tensor) -> None:
        """Measure one call: autograd calls this when the gradient of the call's output is complete."""
        if self._foreign_rows is not None:
            if _any(output_gradient[self._foreign_rows]):
                self._mixed = call.unit.name
            return
        if call not in self.used:
            return
        self._received += 1
        names = call.unit.parameters
        keep = frozenset(own for own, name in names.items() if self._uses[name] > 1)
        dtype = call.unit.module.get_parameter(next(iter(names))).dtype
        is_short = output_gradient.dtype != dtype
        layer_call = LayerCall(
            module=call.unit.module,
            inputs=tuple(in_full(x.detach(), dtype) for x in call.unchanged_inputs()),
            output=call.output,
            output_gradient=in_full(output_gradient, dtype),
            examples=self.examples,
            copies=self.copies,
            wanted=frozenset(names),
            keep=keep,
            scratch=self.scratch[call.unit.name],
            synthetic=self.synthetic,
            statistics=None if is_short else call.statistics,  # those of bfloat16 numbers are rounded
            buffers=call.buffers,
        )
        try:
            gradients = call.unit.rule(layer_call)
        except FastPathError as error:
            raise FastPathError(f"module {call.unit.name!r}: {error}") from error
        for own, gradient in gradients.items():
            if own not in keep:
                self._gradients.append((names[own], gradient))
                continue
            assert isinstance(gradient, Kept)
            before = self._shared.get(names[own])
            kept = gradient.gradients()
            self._shared[names[own]] = kept if before is None else before + kept
        call.inputs, call.output, call.statistics = (), None, None


def _any(values: Tensor) -> bool:
    """Return whether any value is not zero; NaN is 0 · inf here and appears again as a gradient norm."""
    return bool(values.nan_to_num(nan=0.0).any())
