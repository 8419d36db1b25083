"""Passes over a batch that leave no trace: on copies of the model, with parameters, buffers and generators restored.

`separation` compares such passes with each other: the same examples beside other examples, alone, or in a later pass.
"""

__all__ = ["Pass", "Passes", "needs_contiguous_images", "replica", "same_values", "take_rows"]

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from securesgd.clipping.losses import Loss, row_losses
from securesgd.clipping.precision import in_precision
from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import Precision
from securesgd.runtime.random_state import BufferState, RandomState


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: the loss of each row, a gradient for each weighting, and the buffers afterwards."""

    losses: Tensor
    gradients: list[dict[str, Tensor]]
    buffers: dict[str, Tensor]
    draws: bool  # random numbers were drawn
    comparable: bool = True  # with other passes under `_ConstantRandomness`


@dataclass(frozen=True, slots=True)
class Passes:
    """A model, its loss and a batch: everything that a pass over a selection of the examples needs.

    `rows` holds each example `copies` times in a row.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    rows: Tensor
    targets: Tensor
    loss: Loss
    copies: int
    before: RandomState
    precision: Precision = "float32"
    _values: dict[str, Tensor] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """Return the number of examples."""
        return len(self.rows) // self.copies

    def row_numbers(self, examples: Tensor) -> Tensor:
        """Return the numbers of the rows of these examples."""
        return (examples[:, None] * self.copies + torch.arange(self.copies)).flatten().to(self.rows.device)

    def run(
        self,
        examples: Tensor,
        weights: Sequence[Tensor] = (),
        *,
        model: nn.Module | None = None,
        constant_randomness: bool = False,
    ) -> Pass:
        """Return a pass over the batch made of these examples, in this order, from the recorded random state.

        Args:
            examples: which examples to run; one may occur more than once.
            weights: for each, the gradient of sum_i weights[i] · loss_i is computed.
            model: the copy of the model to run; None for a fresh one.
            constant_randomness: with every random number replaced by one constant.
        """
        model = model or replica(self.model)
        numbers = self.row_numbers(examples)
        self.before.restore()
        state = RandomState.capture(model, numpy_and_python=True)
        mode = _ConstantRandomness() if constant_randomness else None
        with mode or nullcontext(), torch.enable_grad():
            forward = in_precision(model, self.precision)
            losses = row_losses(self.loss, forward, take_rows(self.rows, numbers), self.targets[numbers])
            gradients = [self._gradient(losses, w) for w in weights]
        draws = not state.is_unchanged()
        state.restore()
        self._require_unchanged_parameters()
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        return Pass(losses.detach(), gradients, buffers, draws, mode is None or mode.complete)

    def _gradient(self, losses: Tensor, weights: Tensor) -> dict[str, Tensor]:
        if not losses.requires_grad:
            return {}
        scaled = weights.to(losses).repeat_interleave(self.copies) / self.copies
        values = torch.autograd.grad(
            losses, list(self.parameters.values()), scaled, retain_graph=True, allow_unused=True
        )
        return {name: g for name, g in zip(self.parameters, values, strict=True) if g is not None}

    def _require_unchanged_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name in self._values and not same_values(parameter.detach(), self._values[name]):
                raise InvalidInputError(
                    f"a forward pass changes parameter {name!r}, outside the private step: what it takes from the "
                    "examples affects later steps; the model's forward must not change its parameters"
                )

    def with_saved_values(self) -> "Passes":
        """Return the same with a copy of the present values of all parameters and buffers, for `restore`."""
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        return replace(self, _values={name: tensor.detach().clone() for name, tensor in tensors})

    @torch.no_grad()
    def restore(self) -> None:
        """Set parameters, buffers and random generators back to the saved values."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if name in self._values and not same_values(tensor.detach(), self._values[name]):
                tensor.data.copy_(self._values[name])
        self.before.restore()


class _ConstantRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While open, random tensors are constant: the numbers of a row depend neither on its place nor on the shape.

    `complete` becomes False when numbers were drawn for which that is not possible (permutations, for example).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.complete = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else its first use imports the compiler, a second of start-up

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.rrelu_with_noise:
            x, slopes = args[:2]  # drawn for negative values only, so that their number depends on the examples
            return x * slopes.copy_(torch.where(x > 0, 1.0, 0.75))
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if isinstance(result, Tensor) and (result.is_floating_point() or result.dtype == torch.bool):
                result.fill_(0.75)
            else:
                self.complete = False
        return result


def needs_contiguous_images(model: nn.Module, row: Tensor) -> bool:
    """Return whether a `GroupNorm` that is trained gets an input without a gradient, from zeros in the shape of `row`.

    In channels_last, torch's backward pass of such a layer ends the process: it writes to a gradient that is not there.
    """
    if not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
        return False
    copied, found = replica(model), [False]
    before, buffers = RandomState.capture(model, numpy_and_python=True), BufferState.capture(model)

    def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
        trained = any(p.requires_grad for p in norm.parameters())
        found.append(trained and any(isinstance(x, Tensor) and not x.requires_grad for x in args))

    norms = [module for module in copied.modules() if isinstance(module, nn.GroupNorm)]
    handles = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        with torch.enable_grad():
            copied(torch.zeros_like(row))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return True  # it was not seen to have one
    finally:
        for handle in handles:
            handle.remove()
        before.restore()
        buffers.restore()
    return any(found)


def replica(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with the same parameters and state of its own, or `model` if it cannot be copied."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return model  # a copy would have other parameters
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return model


def take_rows(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return rows by number, in the memory layout of `rows`: noise layers draw in the order of memory."""
    taken = rows.detach()[numbers]
    if rows.dim() == 4 and rows.stride(1) == 1:
        return torch.empty_like(taken, memory_format=torch.channels_last).copy_(taken)
    return taken


def same_values(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape and values; NaN equals NaN."""
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) or (a.is_floating_point() and bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)))
