"""The units of a model: what the fast path records, one by one.

A *unit* is a module that owns trainable parameters itself; a unit of a type without a fast rule includes everything
below it. Two kinds of unit are parts of a module: a linear map inside a layer and a parameter that a
container of layers uses itself (both `rules.parts`).
"""

__all__ = ["Unit", "require_no_hooks", "trainable_units"]

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from securesgd.clipping.rules.forms import FastPathError
from securesgd.clipping.rules.generic import generic_gradients
from securesgd.clipping.rules.parts import Composite, Rule, row_parameter_gradients
from securesgd.clipping.rules.table import composite_for, rule_for
from securesgd.models.interval_network import IntervalNetwork


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A module with trainable parameters of its own; `parameters` maps its names to the model's names.

    `part` and `composite` are given where the unit is a linear map inside the module. `by_row` says that rows of the
    batch get copies of what is one parameter, or one table, in the model.
    """

    name: str
    module: nn.Module
    rule: Rule
    input_dims: int | None
    parameters: dict[str, str]
    part: str | None = None
    composite: Composite | None = None
    by_row: bool = False

    def as_table(self, as_long_as_batch: bool = False) -> "Unit":
        """Return the unit of an embedding whose output all rows share."""
        length = " as long as the batch" if as_long_as_batch else ""
        return replace(self, name=f"{self.name} as a table{length}", by_row=True)


def trainable_units(model: nn.Module, row_parameters: bool = True) -> list[Unit]:
    """Return the units of `model`, each module once; with them the layers that take boxes and share its parameters.

    With `row_parameters`, the parameters that a container of layers uses itself are units, and its layers are too;
    otherwise, the container is one unit without a fast rule.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(module: nn.Module, path: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        own = [name for name, p in module._parameters.items() if p is not None and id(p) in names]
        composite = composite_for(module)
        if not (own or composite is not None or hasattr(module, "parametrizations")):
            visit_children(module, path)
            return
        trainable = {name: names[id(p)] for name, p in module.named_parameters() if id(p) in names}
        if not trainable:
            return
        if composite is not None:
            units.extend(_parts(module, path, composite, trainable))
        elif row_parameters and own and _is_container(module):
            units.extend(
                Unit(
                    f"{path}.{name}".lstrip("."),
                    module,
                    row_parameter_gradients,
                    None,
                    {name: trainable[name]},
                    by_row=True,
                )
                for name in own
            )
            visit_children(module, path)
        else:
            scripted = isinstance(module, torch.jit.ScriptModule)
            rule, dims = (generic_gradients, None) if scripted else rule_for(module)
            units.append(Unit(path or "the model", module, rule, dims, trainable))

    def visit_children(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            visit(child, f"{path}.{name}" if path else name)

    visit(model, "")
    for module in model.modules():
        if isinstance(module, IntervalNetwork):
            for name, layer in module.box_layers.items():
                visit(layer, name)
    return units


def _is_container(module: nn.Module) -> bool:
    """Return whether `module` has parameters of its own beside layers with theirs, or is a list of parameters."""
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return True
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "parametrizations"):
        return False
    return any(p.requires_grad for child in module.children() for p in child.parameters())


def _parts(module: nn.Module, path: str, composite: Composite, trainable: dict[str, str]) -> Iterator[Unit]:
    """Yield the linear maps inside a layer that have trainable parameters."""
    for name, part in composite.parts.items():
        parameters = {own: trainable[own] for own in part.parameters if own in trainable}
        if parameters:
            yield Unit(f"{path}.{name}".lstrip("."), module, part.rule, None, parameters, name, composite)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def require_no_hooks(units: list[Unit]) -> None:
    """Return if the class of a unit alone decides what it computes, and autograd alone its gradient.

    Raises:
        FastPathError: a unit, a module inside one or all modules have hooks, an instance has a `forward` of its own,
            or a parameter has a hook. In the slow path, hooks see what they would see in `backward` for that example.
    """
    if any(getattr(torch_module, "_global" + kind) for kind in _HOOKS):
        raise FastPathError("hooks for all modules are registered (torch.nn.modules.module)")
    for unit in units:
        for module in unit.module.modules() if unit.rule is generic_gradients else [unit.module]:
            if any(getattr(module, kind) for kind in _HOOKS):
                raise FastPathError(f"module {unit.name!r} has hooks")
            if "forward" in vars(module):
                raise FastPathError(f"module {unit.name!r} has a forward of its own instead of its class's")
        for name in unit.parameters:
            if unit.module.get_parameter(name)._backward_hooks:
                raise FastPathError(f"parameter {unit.parameters[name]!r} has a hook on its gradient")
