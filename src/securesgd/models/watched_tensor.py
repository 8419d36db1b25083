"""Watched tensors: every operation on their memory, and every value of them that is read into Python, is noted.

`Watch` and `ReadWatch` are torch modes and see one thread; `as_watched` returns a tensor that is seen in every thread.
"""

__all__ = ["OperationNames", "ReadWatch", "Watch", "as_watched"]

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# Operations that hand on the same values: views, which torch marks as such, and copies.
_COPIES = {"clone", "contiguous", "reshape", "flatten", "unflatten", "lift_fresh", "detach", "alias", "_to_copy", "to"}
_READS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
# What Python may read of a tensor without learning its values.
_METADATA = {
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad", "grad_fn", "is_leaf", "names", "is_cuda",
    "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_meta", "is_mps", "is_cpu", "itemsize", "nbytes", "size",
    "dim", "stride", "numel", "nelement", "element_size", "storage_offset", "is_contiguous", "is_floating_point",
    "is_complex", "get_device", "__len__", "__get__", "ndimension", "is_same_size", "_is_view", "is_conj", "is_neg",
    "is_inference", "register_hook", "retain_grad", "__hash__", "__format__", "_base", "_version", "output_nr",
    "is_pinned", "is_shared", "is_signed", "type", "is_sparse_csr", "is_xla", "is_xpu", "is_vulkan", "is_ipu",
    "is_mtia", "is_maia", "has_names", "__set__", "backward",
}  # fmt: skip


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is done with the memory of some tensors."""

    def __init__(self, follow: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.follow = follow
        """Whether results of operations are watched too; then only values read into Python are noted."""
        self.guards = not follow
        """Whether to refuse the address of watched tensors to other libraries."""
        self.uses: list[str] = []
        self._storages: set[int] = set()
        self._alive: list[Tensor] = []  # so that no other tensor gets their memory

    def add(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            self._storages.add(tensor.untyped_storage()._cdata)
            if self.guards:  # torch's own kernels do not ask for the address to read
                torch._C._set_throw_on_mutable_data_ptr(tensor)
        self._alive.append(tensor)

    def knows(self, tensor: Tensor) -> bool:
        """Return whether a tensor is the input, or was made of it by views and copies alone."""
        return self.sees([tensor])

    def note_answer(self, func: Any, result: Any) -> None:
        """Note a function of a watched tensor that answers by values in Python."""
        name = getattr(func, "__name__", str(func))
        if name not in _METADATA and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.uses.append(name)

    def sees(self, tensors: Any) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            leaves = (
                leaf for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor) and leaf.layout == torch.strided
            )
            return any(leaf.untyped_storage()._cdata in self._storages for leaf in leaves)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {}, self.sees((args, kwargs)))[0]

    def call(self, func: Any, args: Any, kwargs: Any, seen: bool) -> tuple[Any, bool]:
        """Return what an operation gives, noting it if it uses watched tensors, and whether that is still the input."""
        if not seen:
            return func(*args, **kwargs), False
        name = func.overloadpacket.__name__
        may_hand_on = getattr(func, "is_view", False) or name in _COPIES
        if name in _READS if self.follow else not may_hand_on:
            self.uses.append(name)
        result = func(*args, **kwargs)
        handed_on = getattr(func, "is_view", False) or (may_hand_on and _same_type(args, result))
        if may_hand_on and not handed_on and not self.follow:
            self.uses.append(name)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided and (self.follow or handed_on):
                self.add(leaf)
        return result, handed_on


def _same_type(args: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and isinstance(args[0], Tensor) and result.dtype == args[0].dtype


class ReadWatch(TorchFunctionMode):
    """Notes, for a watch, what is asked of its tensors in Python and answered by something else than a tensor."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen = self._watch.sees((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if seen:
            self._watch.note_answer(func, result)
        return result


def as_watched(x: Tensor, watch: Watch) -> Tensor:
    """Return x as a tensor that notes what is done with it in whatever thread; modes are of one thread."""

    class Watched(Tensor):
        plain: Tensor

        @staticmethod
        def __new__(cls, plain: Tensor) -> Any:
            made = Tensor._make_subclass(cls, plain)
            made.plain = plain
            return made

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                try:
                    result = func(*args, **(kwargs or {}))
                except Exception:  # tolist, say, is not for tensors of another class
                    args, kwargs = tree_map_only(Watched, lambda watched: watched.plain, (args, kwargs or {}))
                    result = func(*args, **kwargs)
            watch.note_answer(func, result)
            return result

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            args, kwargs = tree_map_only(Watched, lambda watched: watched.plain, (args, kwargs or {}))
            result, handed_on = watch.call(func, args, kwargs, seen=True)
            return tree_map_only(Tensor, Watched, result) if handed_on else result

    return Watched(x)


class OperationNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (getattr(func, "is_view", False) or name in _COPIES):
            self.names.append(name)
        return func(*args, **(kwargs or {}))
