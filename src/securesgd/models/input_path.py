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

from securesgd.errors import InvalidInputError
from securesgd.models.watched_tensor import OperationNames, ReadWatch, Watch, as_watched

if TYPE_CHECKING:
    from securesgd.models.noisy import NoisyNetwork

TRACED = "traced"
_BATCHES = (1, 2, 4)
_OF_TORCH = set(vars(nn.Module())) - {"training"}  # hooks, and dictionaries of what is looked at by itself
_PRODUCTS = {"addmm", "mm", "linear", "matmul", "convolution", "_convolution", "conv2d", "mkldnn_convolution"}


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
    with torch.no_grad(), model.from_layer(_zero_output(model, x)), contextlib.suppress(Exception):
        model(x.clone())  # a network that keeps its last input shall not keep a watched one
    return reason or TRACED


def _zero_output(model: "NoisyNetwork", x: Tensor) -> Tensor:
    """Return zeros as the output of the noisy layer at x."""
    return torch.zeros(len(x), *model.output_shape, dtype=x.dtype, device=x.device)


def _trace(model: "NoisyNetwork", x: Tensor) -> str | None:
    watch = Watch(follow=False)
    received: list[Tensor] = []
    given = _zero_output(model, x)
    error, copied = None, x.clone()
    watch.add(x)
    with _layer_inputs(model, received), model.from_layer(given):
        try:
            with watch, ReadWatch(watch):
                model(x)
        except InvalidInputError:
            raise
        except Exception as raised:  # whatever a foreign network does that cannot be watched
            error = f"{type(raised).__name__} while its input was watched"
    watch.guards = False  # in a thread that would be an error and not a use
    with _layer_inputs(model, []), model.from_layer(given), contextlib.suppress(Exception):
        model(as_watched(copied, watch))  # a network may refuse such a tensor: nothing is concluded from that
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


def require_one_product(model: "NoisyNetwork", x: Tensor) -> None:
    """Pass if the noisy layer, before its noise, is one product of torch's own and its scale, whatever the input.

    The other passes hold the layer's output fixed, so what happens inside of it is seen here alone.
    Raises: InvalidInputError if it computes anything else (by a hook for all modules, weights of a class of their own).
    """
    scaled = [] if model.noisy.scale is None else ["mul"]
    for mode in (torch.enable_grad, torch.inference_mode):
        operations = OperationNames()
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
    watch = Watch(follow=True)
    watch.add(h)
    try:
        with watch, ReadWatch(watch):
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
    given = _zero_output(model, x)
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
