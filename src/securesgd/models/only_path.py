"""Whether a network's input reaches its output through the noisy layer alone, as it is.

A certificate is about x ↦ rest(W₁x + b₁ + noise). That is the network's own function only if the layer gets x itself
and nothing else of the network sees x. Two ways to know:

========  ==========================================================================================================
traced    one pass with an input that is watched: every operation on its memory, and every value read from it into
          Python, is seen. Nothing but rearrangements seen: true for all inputs of that batch size.
compared  passes on given inputs, around them and far away from them, with the layer's noisy output held fixed: what
          the layer gets must be the input, bit by bit, and the output must not change.
========  ==========================================================================================================

Neither sees a branch on something that is not the input and changes later (a clock, a flag): both are done anew with
every certification, on the weights and settings of that moment.
"""

__all__ = ["TRACED", "decides_by_values", "require_same_everywhere", "require_same_on", "require_steady", "trace_input"]

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.models.noisy import NoisyNetwork

TRACED = "traced"
_BATCHES = (1, 2, 4)
# Operations that hand on the same values: views, which torch marks as such, and copies.
_COPIES = {"clone", "contiguous", "reshape", "flatten", "unflatten", "lift_fresh", "detach", "alias", "_to_copy", "to"}
_READS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
# What may be asked of a tensor without learning its values.
_METADATA = {
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad", "grad_fn", "is_leaf", "names", "is_cuda",
    "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_meta", "is_mps", "is_cpu", "itemsize", "nbytes", "size",
    "dim", "stride", "numel", "nelement", "element_size", "storage_offset", "is_contiguous", "is_floating_point",
    "is_complex", "get_device", "__len__", "__get__", "ndimension", "is_same_size", "_is_view", "is_conj", "is_neg",
    "is_inference", "register_hook", "retain_grad", "__hash__", "__format__", "_base", "_version", "output_nr",
    "is_pinned", "is_shared", "is_signed", "type", "is_sparse_csr", "is_xla", "is_xpu", "is_vulkan", "is_ipu",
    "is_mtia", "is_maia", "has_names", "__set__", "backward",
}  # fmt: skip


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is done with the memory of some tensors."""

    def __init__(self, follow: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.follow = follow
        """Whether results of operations are watched too; then only values read into Python are noted."""
        self.uses: list[str] = []
        self._storages: set[int] = set()
        self._alive: list[Tensor] = []  # so that no other tensor gets their memory

    def add(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            self._storages.add(tensor.untyped_storage()._cdata)
        self._alive.append(tensor)

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
        kwargs = kwargs or {}
        seen = self.sees((args, kwargs))
        result = func(*args, **kwargs)
        if not seen:
            return result
        name = func.overloadpacket.__name__
        handed_on = getattr(func, "is_view", False) or (name in _COPIES and _same_type(args, result))
        if name in _READS if self.follow else not handed_on:
            self.uses.append(name)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided and (self.follow or handed_on):
                self.add(leaf)
        return result


def _same_type(args: Any, result: Any) -> bool:
    return isinstance(result, Tensor) and isinstance(args[0], Tensor) and result.dtype == args[0].dtype


class _ReadWatch(TorchFunctionMode):
    """Notes, for a watch, what is asked of its tensors in Python and answered by something else than a tensor."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen = self._watch.sees((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if seen:
            self._watch.note_answer(func, result)
        return result


def _as_watched(x: Tensor, watch: _Watch) -> Tensor:
    """Return x as a tensor that notes what is asked of it in whatever thread; modes are of one thread."""

    class Watched(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            watch.note_answer(func, result)
            return result

    return x.as_subclass(Watched)


def trace_input(model: "NoisyNetwork", x: Tensor) -> str:
    """Return `traced` if passes with a watched input show nothing but the noisy layer using it, else why not.

    Guarantee: if traced, then for every input of a batch size that was tried (1, 2, 4), in the present state of the
    model, the layer gets the input itself and the output depends on it through the layer alone. Code that hides from
    torch (reading raw memory at an address it kept) is not seen.
    Raises: InvalidInputError if the network computes with its input, or reads values of it, elsewhere.
    """
    for batch in _BATCHES:
        inputs = x[:1].expand(batch, *x.shape[1:]).clone()
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode():
                reason = _trace(model, inputs.clone())
            if reason is not None:
                return reason
    return TRACED


def _trace(model: "NoisyNetwork", x: Tensor) -> str | None:
    watch = _Watch(follow=False)
    received: list[Tensor] = []
    given = torch.zeros(len(x), *model.output_shape, dtype=x.dtype, device=x.device)
    error = None
    watch.add(x)
    with _layer_inputs(model, received), model.from_layer(given):
        try:
            with watch, _ReadWatch(watch):
                model(x)
        except InvalidInputError:
            raise
        except Exception as raised:  # whatever a foreign network does that cannot be watched
            error = f"{type(raised).__name__} while its input was watched"
    with _layer_inputs(model, []), model.from_layer(given), contextlib.suppress(Exception):
        model(_as_watched(x, watch))  # a network may refuse a tensor of another class: nothing is concluded from that
    if watch.uses:
        raise InvalidInputError(
            f"the network uses its input besides the first layer ({watch.uses[0]}), so noise there proves nothing; "
            "move what it does there into the weights of the layer, or put the noise at the input (place='input')"
        )
    if error is not None:
        return error
    _require_received(received, x)
    return None


def decides_by_values(outputs: Callable[[Tensor], Tensor], h: Tensor) -> bool:
    """Return whether the rest of a network, from `h` on, reads values into Python, as a branch does.

    Such a value is one for the whole batch, so the rows of a batch are not treated one by one.
    """
    watch = _Watch(follow=True)
    watch.add(h)
    try:
        with watch, _ReadWatch(watch):
            outputs(h)
    except Exception:  # a network that cannot be watched is compared row by row elsewhere
        return bool(watch.uses)
    return bool(watch.uses)


@torch.no_grad()
def require_same_everywhere(model: "NoisyNetwork", inputs: Tensor, reach: float) -> None:
    """Pass if at each input, up to `reach` around it and far from it, the layer gets it and nothing else sees it.

    Each input is passed alone, as are the inputs in which all numbers grow or all shrink, by the full reach, a tenth
    and a hundredth of it; then together: random corners and single numbers moved by as much, and inputs out of range.
    Raises: InvalidInputError if not.
    """
    generator = torch.Generator().manual_seed(0)
    batches = _Batches(model)
    for x in inputs.to(model.noisy.noise.std):
        signs = torch.where(torch.rand(x.shape, generator=generator) < 0.5, -1.0, 1.0).to(x)
        pixel = torch.zeros_like(x)
        pixel.view(-1)[int(torch.randint(x.numel(), (1,), generator=generator))] = 1.0
        moves = [reach * share for share in (1.0, 0.1, 0.01)]
        around = [x + move * way for move in moves for way in (signs, -signs, pixel, -pixel)]
        far = [255 * x, 3 * x - 1, -x, 1 - x, x + 1]
        alone = [x[None] + move for move in (0.0, *moves, *(-move for move in moves))]
        for batch in (*alone, torch.stack([*around, *far])):
            batches.require_same(batch)


@torch.no_grad()
def require_same_on(model: "NoisyNetwork", *inputs: Tensor) -> None:
    """Pass if the layer gets each batch of inputs and nothing else sees it. Raises: InvalidInputError if not."""
    batches = _Batches(model)
    for batch in inputs:
        batches.require_same(batch)


class _Batches:
    """Passes that all have the same output of the noisy layer."""

    def __init__(self, model: "NoisyNetwork") -> None:
        self._model, self._known = model, dict[int, Tensor]()
        h = torch.randn(1, *model.output_shape, generator=torch.Generator().manual_seed(0))
        self._h = h.to(model.noisy.noise.std)

    def require_same(self, batch: Tensor) -> None:
        """Pass if the layer gets `batch`, and the output is the one that an input of zeros gives."""
        count, nothing = len(batch), torch.zeros_like(batch)
        if count not in self._known:
            self._known[count] = self._output(nothing)
        if torch.equal(self._output(batch), self._known[count]):
            return
        if not torch.equal(self._output(nothing), self._known[count]):
            raise InvalidInputError(
                "the model has randomness besides the noise of its first layer; the rest must be fixed"
            )
        raise InvalidInputError(
            "the network uses its input besides the first layer (its output changes with the input while the layer's "
            "is held fixed), so noise there proves nothing; put the noise at the input (place='input')"
        )

    def _output(self, batch: Tensor) -> Tensor:
        return _pass(self._model, batch, self._h.expand(len(batch), *self._h.shape[1:]).contiguous())


def _pass(model: "NoisyNetwork", x: Tensor, given: Tensor) -> Tensor:
    received: list[Tensor] = []
    with _layer_inputs(model, received), model.from_layer(given):
        output = model(x.clone())
    _require_received(received, x)
    return output


def _require_received(received: list[Tensor], x: Tensor) -> None:
    if len(received) != 1:
        raise InvalidInputError(
            f"the first layer is called {len(received)} times in one pass, each with noise of its own; the certificate "
            "is for one call: put the noise at the input (place='input')"
        )
    got = received[0]
    same = got.dtype == x.dtype and got.numel() == x.numel() and torch.equal(got.flatten(1), x.flatten(1))
    if not same:
        raise InvalidInputError(
            "the first layer does not get the whole input as it is; move what comes before it (a normalisation, say) "
            "into its weights, or put the noise at the input (place='input')"
        )


@contextmanager
def _layer_inputs(model: "NoisyNetwork", received: list[Tensor]) -> Iterator[None]:
    """Within the context, what the noisy layer gets is appended to `received`."""

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.is_autocast_enabled(model.noisy.noise.std.device.type):
            raise InvalidInputError(
                "the first layer is called under autocast, in half precision; valid: float32 or float64, no autocast"
            )
        received.append(args[0])

    hook = model.noisy.register_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def require_steady(model: "NoisyNetwork", x: Tensor) -> None:
    """Pass if two equal passes leave the model as it is: numbers and tensors that its modules keep, counters too.

    Raises: InvalidInputError naming what has changed. Values kept from the first pass (a cache) are no change.
    """
    given = torch.zeros(len(x), *model.output_shape, dtype=x.dtype, device=x.device)
    states = []
    for _ in range(3):
        with model.from_layer(given):
            model(x.clone())
        states.append(_state(model))
    for name, value in states[2].items():
        if not _same_value(states[1].get(name), value):
            raise InvalidInputError(
                f"{name} of the model changes with every pass, so its function may change too; the model must be fixed"
            )


def _state(model: nn.Module) -> dict[str, Any]:
    """Return what the modules keep: tensors, plain values, and lists and dictionaries of those."""
    plain = (bool, int, float, str, type(None))
    state: dict[str, Any] = {}
    for module_name, module in model.named_modules():
        entries = {**vars(module), **module._buffers, **module._parameters}
        for name, value in entries.items():
            where = f"{module_name}.{name}".lstrip(".")
            if isinstance(value, Tensor):
                state[where] = value.clone()
            elif isinstance(value, plain):
                state[where] = value
            elif isinstance(value, list | tuple | dict) and all(isinstance(leaf, plain) for leaf in tree_leaves(value)):
                state[where] = repr(value)
    return state


def _same_value(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before.shape == after.shape and torch.equal(before, after)
    return type(before) is type(after) and (before == after or before != before)
