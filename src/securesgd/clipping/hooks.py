"""Hooks that record the inputs and output gradients of each layer, and a proof that these hold the whole gradient.

Hooks record every call of a unit (`units`): its input now, the gradient of its output during the backward pass.
Where a unit is a part of a module, its module is made to tell: a layer of several linear maps runs by code that records
each of them, and a parameter of a container is handed out as one copy for each row.

`parameter_uses` then walks autograd's own graph and checks that every path from the losses to a trainable parameter
enters through the output of a recorded call of the unit that owns it. Everything else that a model may do (parameters
used by a foreign module, outputs bypassed by in-place changes, calls without gradient) fails that check. So do the
user's own hooks on a unit, its output or its parameters: they change what a layer computes, or its gradient.
"""

__all__ = ["Call", "LayerHooks", "parameter_uses"]

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from securesgd.clipping.rules.embedding import embedding_gradients
from securesgd.clipping.rules.forms import FastPathError
from securesgd.clipping.rules.generic import generic_gradients
from securesgd.clipping.rules.input_gradient import with_fast_input_gradient
from securesgd.clipping.rules.normalisation import group_statistics
from securesgd.clipping.rules.parts import Record, one_copy_per_row, row_parameter_gradients
from securesgd.clipping.units import Unit


@dataclass(slots=True, eq=False)
class Call:
    """One call of a unit. `output` is a copy, kept only where a rule compares against it."""

    unit: Unit
    inputs: tuple[Tensor, ...]
    versions: tuple[int, ...]
    input_nodes: tuple[Node, ...]
    output: Tensor | None
    edge: GradientEdge
    first: bool  # nothing before it needs a gradient
    output_hooks: dict[int, Any]  # of the output tensor; that of `LayerHooks` is one
    statistics: tuple[Tensor, Tensor] | None = None  # see `group_statistics`
    buffers: dict[str, Tensor] = field(default_factory=dict)  # before the call, where the module is run again

    def unchanged_inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs. Raises: FastPathError if they were changed in place since the call."""
        if tuple(x._version for x in self.inputs) != self.versions:
            raise FastPathError(f"the input of {self.unit.name!r} was changed in place after its forward")
        return self.inputs


@dataclass(slots=True)
class LayerHooks:
    """Context manager that registers hooks on the units; while it is open, their calls are recorded in `calls`.

    `receive(call, gradient)` is called in the backward pass when the gradient of a call's output is known.
    """

    units: list[Unit]
    rows: int
    receive: Callable[[Call, Tensor], None]
    tables: frozenset[str] | None = frozenset()  # names of embeddings known to be tables; None if none may be
    calls: list[Call] = field(default_factory=list)
    _pending: list[tuple[Any, ...]] = field(default_factory=list)  # what `_before` saw of the calls that last
    _handles: list[Any] = field(default_factory=list)
    _replaced: list[tuple[nn.Module, str]] = field(default_factory=list)  # attributes that hide those of the module
    _gradient_handles: list[Any] = field(default_factory=list)

    def __enter__(self) -> "LayerHooks":
        try:
            self._enter()
        except BaseException:
            self._leave()
            raise
        return self

    def _enter(self) -> None:
        for unit in self.units:
            if unit.rule is row_parameter_gradients:
                (name,) = unit.parameters
                copies = one_copy_per_row(unit.module.get_parameter(name), self.rows)
                self._hide(unit.module, name, self._record(unit, (), copies))
            elif unit.composite is not None:
                forward = partial(unit.composite.forward, unit.module, self._recorder(unit.module))
                self._hide(unit.module, "forward", forward)
            else:
                self._handles.append(unit.module.register_forward_pre_hook(self._before(unit), with_kwargs=True))
                self._handles.append(unit.module.register_forward_hook(self._after(unit), always_call=False))

    def _hide(self, module: nn.Module, name: str, value: Any) -> None:
        """Let an attribute of `module` have this value until the context ends."""
        vars(module)[name] = value
        self._replaced.append((module, name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module, name in self._replaced:
            vars(module).pop(name, None)

    def release(self) -> None:
        """Drop all calls. Autograd's graph holds the hooks and the calls hold the graph: only this breaks the cycle."""
        for handle in self._gradient_handles:
            handle.remove()
        self._gradient_handles.clear()
        self.calls.clear()
        self._pending.clear()

    def _before(self, unit: Unit) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [x for x in args if isinstance(x, Tensor)]
            nodes = tuple(get_gradient_edge(x).node for x in tensors if x.requires_grad)
            versions = tuple(x._version for x in tensors)
            again = module.named_buffers() if unit.rule is generic_gradients else ()
            buffers = {name: buffer.detach().clone() for name, buffer in again}
            self._pending.append((unit, args, kwargs, versions, nodes, buffers))

        return hook

    def _after(self, unit: Unit) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
        def hook(module: nn.Module, _: tuple[Any, ...], output: Any) -> Any:
            started, args, kwargs, versions, nodes, buffers = self._pending.pop()
            if started is unit and not kwargs and self._is_table(unit, args, output):
                tokens, copies = (one_copy_per_row(x, self.rows) for x in (args[0], output))
                return self._record(unit.as_table(len(args[0]) == self.rows), (tokens,), copies)
            reason = self._objection(started, args, kwargs, output)
            if started is not unit or reason:
                raise FastPathError(f"module {unit.name!r}: {reason or 'calls overlap'}")
            output = with_fast_input_gradient(module, args[0], output)
            copy = output.detach().clone() if unit.rule is generic_gradients else None
            edge, statistics = get_gradient_edge(output), group_statistics(output)
            return self._add(Call(unit, args, versions, nodes, copy, edge, not nodes, {}, statistics, buffers), output)

        return hook

    def _add(self, call: Call, output: Tensor) -> Tensor:
        """Return the output of a new call, which will be told its gradient."""
        self.calls.append(call)
        handle = output.register_hook(lambda gradient: self.receive(call, gradient))  # type: ignore[no-untyped-call]
        self._gradient_handles.append(handle)
        call.output_hooks = cast(dict[int, Any], output._backward_hooks)
        return output

    def _is_table(self, unit: Unit, args: tuple[Any, ...], output: Any) -> bool:
        """Return whether a call of an embedding is for all rows at once, as that of positions 0, 1, 2, … is."""
        if unit.rule is not embedding_gradients or self.tables is None or not args or not isinstance(args[0], Tensor):
            return False
        known = not self.tables.isdisjoint({unit.as_table(False).name, unit.as_table(True).name})
        return bool(output.requires_grad) and args[0].dim() > 0 and (len(args[0]) != self.rows or known)

    def _record(self, unit: Unit, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Return `output`, recorded as that of a call of a part of a module."""
        nodes = tuple(get_gradient_edge(x).node for x in inputs if x.requires_grad)
        versions = tuple(x._version for x in inputs)
        return self._add(Call(unit, inputs, versions, nodes, None, get_gradient_edge(output), not nodes, {}), output)

    def _recorder(self, module: nn.Module) -> Record:
        """Return what records the calls of the linear maps inside `module`; of those without a unit there are none."""
        parts = {unit.part: unit for unit in self.units if unit.module is module}

        def record(part: str, x: Tensor, output: Tensor) -> Tensor:
            unit = parts.get(part)
            if unit is None:
                return output
            reason = self._objection(unit, (x,), {}, output)
            if reason:
                raise FastPathError(f"module {unit.name!r}: {reason}")
            return self._record(unit, (x,), output)

        return record

    def _objection(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> str | None:
        """Return why the fast path cannot use a call, or None."""
        if not isinstance(output, Tensor):
            return "its output is not one tensor"
        if kwargs or not args or not all(isinstance(x, Tensor) for x in args):
            return "its arguments are not all positional tensors"
        if any(x.dim() == 0 or len(x) != self.rows for x in (*args, output)):
            return "the first dimension of its input or output is not the batch"
        if not output.requires_grad or not torch.is_grad_enabled():
            return "it ran without gradient; freeze its parameters if that is intended"
        if unit.rule is not generic_gradients and len(args) != 1:
            return "it has more than one input"
        if unit.input_dims is not None and args[0].dim() != unit.input_dims:
            return f"its input has {args[0].dim()} dimensions, not {unit.input_dims}"
        return None


def parameter_uses(losses: Tensor, calls: list[Call], trainable: dict[int, str]) -> list[Call]:
    """Return the calls through which the losses depend on trainable parameters.

    Guarantee: the gradient of the losses for any parameter in `trainable` (id to name) is the sum over the returned
        calls of what flows through the call's recorded output.

    Raises:
        FastPathError: a path to a trainable parameter goes around the recorded calls.
    """
    owner: dict[Node, Call] = {}
    for call in calls:
        if len(call.output_hooks) > 1:
            raise FastPathError(f"the output of module {call.unit.name!r} has a hook on its gradient")
        for node in _region(call):
            if owner.setdefault(node, call) is not call:
                raise FastPathError(f"modules {owner[node].unit.name!r} and {call.unit.name!r} share a computation")
    used: dict[int, Call] = {}
    start = get_gradient_edge(losses).node
    visited, pending = {start}, [start]
    while pending:
        node = pending.pop()
        holder = owner.get(node)
        if node.name().startswith("CheckpointFunction"):
            raise FastPathError("a reentrant checkpoint hides part of the graph; pass use_reentrant=False")
        for child, _ in node.next_functions:
            if child is None:
                continue
            parameter = trainable.get(id(getattr(child, "variable", None)))
            if parameter is not None:
                if holder is None or parameter not in holder.unit.parameters.values():
                    raise FastPathError(f"parameter {parameter!r} is used outside the module that owns it")
                used[id(holder)] = holder
                continue
            inside = owner.get(child)
            if inside is not None and inside is not holder and child is not inside.edge.node:
                raise FastPathError(f"a value from inside module {inside.unit.name!r} is used outside it")
            if child not in visited:
                visited.add(child)
                pending.append(child)
    return [call for call in calls if id(call) in used]


def _region(call: Call) -> set[Node]:
    """Return the nodes between a call's output and its inputs."""
    root = call.edge.node
    if root in call.input_nodes:
        return set()
    nodes, pending = {root}, [root]
    while pending:
        for child, _ in pending.pop().next_functions:
            if child is None or child in call.input_nodes or child in nodes or hasattr(child, "variable"):
                continue
            nodes.add(child)
            pending.append(child)
    return nodes
