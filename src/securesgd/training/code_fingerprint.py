"""What a user's function computes, as far as Python can tell: its code, and the numbers it was made with.

For `ResumeFingerprint`: two lambdas have one name, and two losses of one class other numbers. The description is the
same in every process of one version of Python, so it has no addresses in it.
"""

__all__ = ["describe_code", "describe_module"]

import functools
import hashlib
import types
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device)
_OF_TORCH = {*vars(nn.Module())}  # hooks, and dictionaries of what is looked at by itself
_LARGEST = 10_000  # entries of a tensor or list; a larger one is data, and does not count by its values
_DEEPEST = 8


def describe_code(value: object, depth: int = 0, seen: set[int] | None = None) -> Any:
    """Return a description of a value that is equal if it is the same code with the same numbers.

    Functions count by their byte code, defaults, and what they take from around them; objects by their class and
    attributes; modules by their structure. Code of torch and of this package counts by its name. What lies deeper than
    eight levels does not count. `seen` are objects described before, which count by their names.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    seen = set() if seen is None else seen
    has_length = isinstance(value, Sized) and getattr(value, "ndim", 1) > 0  # an array of one number has none
    if depth > _DEEPEST or id(value) in seen or (has_length and len(value) > _LARGEST):  # type: ignore[arg-type]
        return type(value).__qualname__
    if hasattr(value, "__dict__"):
        seen.add(id(value))
    inside = functools.partial(describe_code, depth=depth + 1, seen=seen)
    if isinstance(value, Tensor | np.ndarray):
        return _describe_array(value)
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(inside, value)]
    if isinstance(value, set | frozenset):
        return sorted(repr(inside(entry)) for entry in value)
    if isinstance(value, Mapping):
        return sorted((repr(key), inside(entry)) for key, entry in value.items())
    if isinstance(value, functools.partial):
        return ["partial", inside(value.func), inside(value.args), inside(value.keywords)]
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), value.co_names, [inside(constant) for constant in value.co_consts]]
    if isinstance(value, types.MethodType):
        return [inside(value.__func__), inside(value.__self__)]
    if isinstance(value, nn.Module):
        buffers = inside(dict(value.named_buffers())) if depth == 0 else []  # class weights of a loss
        return [repr(value), describe_module(value, depth + 1), inside(_own_attributes(value)), buffers]
    name = (getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__))
    if isinstance(value, types.FunctionType) and not _is_known(value):
        return [name, *_describe_function(value, inside)]
    if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType) or _is_known(value):
        return [name]
    return [name, inside(getattr(value, "__dict__", {})), inside(vars(type(value)).get("__call__"))]


def describe_module(module: nn.Module, depth: int = 0) -> list[Any]:
    """Return what torch does not print of the layers that are not torch's or this package's: numbers and code."""
    return [
        (name, describe_code(_own_attributes(part), depth + 1), describe_code(type(part).forward, depth + 1))
        for name, part in module.named_modules()
        if not _is_known(type(part))
    ]


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_TORCH}


def _describe_function(function: types.FunctionType, inside: Any) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    used = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return [inside(part) for part in (function.__code__, function.__defaults__, function.__kwdefaults__, cells, used)]


def _describe_array(values: Tensor | np.ndarray) -> list[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    small = array.size <= _LARGEST and array.dtype != object
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() if small else ""
    return [str(array.dtype), array.shape, content]


def _is_known(value: Any) -> bool:
    """Return whether a function or class is torch's or this package's, where its name says what it is."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("torch", "securesgd", "numpy")
