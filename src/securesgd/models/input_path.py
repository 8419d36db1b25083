"""Whether a network's input reaches its output through the noisy layer alone, as it is.

A certificate is about x ↦ rest(W₁x + b₁ + noise). That is the network's own function only if the layer gets x itself
and nothing else of the network sees x. Two ways to know:

========  ==========================================================================================================
traced    one pass with an input that is watched: every operation on its memory, and every value read from it into
          Python, is seen, in whatever thread; its address is refused to other libraries. Nothing but rearrangements
          seen: true for all inputs of that batch size.
compared  passes on given inputs, around them and far away from them, with the layer's noisy output held fixed: what
          the layer gets must be the input, bit by bit, and the output must not change.
========  ==========================================================================================================

Neither sees a branch on something that is not the input and changes later (a clock, a flag): both are done anew with
every certification, on the weights and settings of that moment.
"""

__all__ = [
    "TRACED",
    "decides_by_values",
    "require_one_product",
    "require_same_everywhere",
    "require_same_on",
    "require_steady",
    "trace_input",
]

import contextlib
import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    from securesgd.models.noisy import NoisyNetwork

TRACED = "traced"
_BATCHES = (1, 2, 4)
_OF_TORCH = set(vars(nn.Module())) - {"training"}  # hooks, and dictionaries of what is looked at by itself
# Operations that hand on the same values: views, which torch marks as such, and copies.
_COPIES = {"clone", "contiguous", "reshape", "flatten", "unflatten", "lift_fresh", "detach", "alias", "_to_copy", "to"}
_READS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
_PRODUCTS = {"addmm", "mm", "linear", "matmul", "convolution", "_convolution", "conv2d", "mkldnn_convolution"}
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
        return self.called(func, args, kwargs or {}, self.sees((args, kwargs)))[0]

    def called(self, func: Any, args: Any, kwargs: Any, seen: bool) -> tuple[Any, bool]:
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
            result, handed_on = watch.called(func, args, kwargs, seen=True)
            return tree_map_only(Tensor, Watched, result) if handed_on else result

    return Watched(x)


def trace_input(model: "NoisyNetwork", x: Tensor) -> str:
    """Return `traced` if passes with a watched input show nothing but the noisy layer using it, else why not.

    Guarantee: if traced, then for every input of a batch size that was tried (1, 2, 4), in the present state of the
    model, the layer gets the input itself and the output depends on it through the layer alone. Operations are seen in
    every thread, and another library that asks for the input's address (dlpack, say) gets an error, with which the
    network counts as not traced. Code that hides on purpose (from an address it kept, or by switching torch's dispatch
    off) is not seen.
    Raises: InvalidInputError if the network computes with its input, or reads values of it, elsewhere.
    """
    reason = None
    for batch, mode in itertools.product(_BATCHES, (torch.enable_grad, torch.inference_mode)):
        inputs = x[:1].expand(batch, *x.shape[1:])
        with mode():
            reason = reason or _trace(model, inputs.clone())
    with torch.no_grad(), model.from_layer(_nothing(model, x)), contextlib.suppress(Exception):
        model(x.clone())  # a network that keeps its last input shall not keep a watched one
    return reason or TRACED


def _nothing(model: "NoisyNetwork", x: Tensor) -> Tensor:
    """Return zeros as the output of the noisy layer at x."""
    return torch.zeros(len(x), *model.output_shape, dtype=x.dtype, device=x.device)


def _trace(model: "NoisyNetwork", x: Tensor) -> str | None:
    watch = _Watch(follow=False)
    received: list[Tensor] = []
    given = _nothing(model, x)
    error, copied = None, x.clone()
    watch.add(x)
    with _layer_inputs(model, received), model.from_layer(given):
        try:
            with watch, _ReadWatch(watch):
                model(x)
        except InvalidInputError:
            raise
        except Exception as raised:  # whatever a foreign network does that cannot be watched
            error = f"{type(raised).__name__} while its input was watched"
    watch.guards = False  # in a thread that would be an error and not a use
    with _layer_inputs(model, []), model.from_layer(given), contextlib.suppress(Exception):
        model(_as_watched(copied, watch))  # a network may refuse such a tensor: nothing is concluded from that
    if watch.uses:
        raise InvalidInputError(
            f"the network uses its input besides the first layer ({watch.uses[0]}), so noise there proves nothing; "
            "move what it does there into the weights of the layer, or put the noise at the input (place='input')"
        )
    if error is not None:
        return error
    _require_received(received, x)
    if not watch.knows(received[0]):
        raise InvalidInputError(
            "the network uses its input besides the first layer: what the layer gets was made of it out of sight (in "
            "another thread or library), so noise there proves nothing; put the noise at the input (place='input')"
        )
    return None


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (getattr(func, "is_view", False) or name in _COPIES):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def require_one_product(model: "NoisyNetwork", x: Tensor) -> None:
    """Pass if the noisy layer, before its noise, is one product of torch's own and its scale, whatever the input.

    The other passes hold the layer's output fixed, so what happens inside of it is seen here alone.
    Raises: InvalidInputError if it computes anything else (by a hook for all modules, weights of a class of their own).
    """
    scaled = [] if model.noisy.scale is None else ["mul"]
    for mode in (torch.enable_grad, torch.inference_mode):
        operations = _Operations()
        with mode(), operations:
            model.noisy.clean(x.clone())
        names = operations.names
        product = [] if model.place == "input" else names[:1]
        if names != product + scaled or not set(product) <= _PRODUCTS:
            raise InvalidInputError(
                f"the first layer computes something else than its weights times the input ({', '.join(names)}); "
                "it cannot be certified"
            )


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
    """Pass if passes leave the model as it is: whatever its modules keep, counters and the last input too.

    Three equal passes are followed by one with another input; the layer's output is the same in all, so nothing that
    is kept may differ after it. Values kept from the first pass (a cache) are no change.
    Raises: InvalidInputError naming what has changed.
    """
    given = _nothing(model, x)
    states = []
    for inputs in (x, x, x, x + 1):
        with model.from_layer(given):
            model(inputs.clone())
        states.append(_state(model))
    for before, after, when in ((1, 2, "every pass"), (2, 3, "its input")):
        for name, value in states[after].items():
            if not _same_value(states[before].get(name), value):
                raise InvalidInputError(
                    f"{name} of the model changes with {when}, so its function may change too; the model must be fixed"
                )


def _state(model: nn.Module) -> dict[str, Any]:
    """Return what the modules keep: tensors, and everything else that can be written down."""
    state: dict[str, Any] = {}
    for module_name, module in model.named_modules():
        own = {name: value for name, value in vars(module).items() if name not in _OF_TORCH}
        for name, value in {**own, **module._buffers, **module._parameters}.items():
            where = f"{module_name}.{name}".lstrip(".")
            if isinstance(value, Tensor):
                state[where] = value.clone()
            elif isinstance(value, torch.Generator):
                state[where] = value.get_state()
            else:
                with contextlib.suppress(Exception):  # a lock or a lambda cannot be written down
                    state[where] = pickle.dumps(value)
    return state


def _same_value(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before.shape == after.shape and torch.equal(before, after)
    return type(before) is type(after) and bool(before == after)
