"""A device that is not the CPU, for machines that have none: tensors that say they are on `meta` and hold numbers.

Within `fake_device()` torch computes on such tensors as on those of a GPU: every operator must get all of its tensors
from there (but for single numbers, as on a GPU), numpy cannot read them, and `.cpu()` copies them back.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor}  # as on a GPU


class MixedDevicesError(BaseException):
    """An operator got tensors of both devices. No Exception, which the engine could take for a reason to go slower."""


class FakeTensor(torch.Tensor):
    """A tensor whose numbers are those of a tensor on the CPU."""

    @staticmethod
    def __new__(cls, numbers):
        fake = torch.Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, layout=numbers.layout, device=DEVICE,
        )  # fmt: skip
        fake.numbers = numbers
        return fake

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self):
        return self.numbers.tolist()

    def new_tensor(self, data, **options):
        return FakeTensor(self.numbers.new_tensor(data, **options))


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})


def run(operator, args, kwargs):
    """Run an operator on the CPU; what comes out is on the fake device if what went in is, or if it says so."""
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
    moved = kwargs.get("device")
    if fakes and operator not in _MOVES:
        for leaf in leaves:
            if not isinstance(leaf, FakeTensor) and leaf.dim() > 0:
                raise MixedDevicesError(f"{operator} got a tensor of shape {list(leaf.shape)} from the CPU")
    to_fake = torch.device(moved) == DEVICE if moved is not None else bool(fakes)
    if operator is torch.ops.aten.copy_.default:
        to_fake = isinstance(args[0], FakeTensor)
    if moved is not None and to_fake:
        kwargs = kwargs | {"device": torch.device("cpu")}
    result = operator(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
    known = {id(fake.numbers): fake for fake in fakes}
    return (
        tree_map(lambda value: known.get(id(value)) if id(value) in known else _fake(value), result)
        if to_fake
        else result
    )


def _numbers(value):
    return value.numbers if isinstance(value, FakeTensor) else value


def _fake(value):
    return FakeTensor(value) if isinstance(value, torch.Tensor) else value


@contextmanager
def fake_device():
    """Within the context, tensors made on `DEVICE` have numbers."""
    has_autocast, overwrites = torch.is_autocast_enabled, torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(
        True
    )  # to set `data` would leave the numbers as they are
    try:
        with pytest.MonkeyPatch.context() as patch, _Mode():  # what torch does not know of such tensors
            patch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": kind != DEVICE.type and has_autocast(kind))
            patch.setattr(torch, "inference_mode", lambda mode=True: torch.set_grad_enabled(not mode))
            yield DEVICE
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
