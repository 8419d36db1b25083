"""Hooks change what a layer computes, or its gradient: the result is that of `backward` per example, or refused."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from tests.clipping.clipping_reference import cross_entropy, distance, norm, vectors

Handle = contextlib.AbstractContextManager[object]


class Model(nn.Module):
    """Two layers; `between` gets the first one's output, and may hang a hook on it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.act, self.last = nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4)
        self.between: Callable[[Tensor], object] = lambda h: None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.between(h)
        return self.last(self.act(h))


def doubled(*args: object) -> object:
    """The last argument doubled: outputs, inputs or gradients."""
    value = args[-1]
    return tuple(2 * v if v is not None else None for v in value) if isinstance(value, tuple) else 2 * value


def doubled_gradient(module: nn.Module, of_inputs: tuple[Tensor, ...], of_outputs: tuple[Tensor, ...]) -> object:
    return tuple(2 * g if g is not None else None for g in of_inputs)


def doubled_output(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return 2 * output


def own_forward(model: Model) -> None:
    layer = model.last
    layer.forward = lambda x: nn.functional.linear(2 * x, layer.weight, layer.bias)


def hook_on_node(h: Tensor) -> None:
    h.grad_fn.register_prehook(lambda gradients: tuple(3 * g for g in gradients))


def hook_then_in_place(h: Tensor) -> None:
    h.register_hook(doubled)
    h.add_(1)


def set_between(between: Callable[[Tensor], object]) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.between = between

    return change


LAYER = "has hooks"
HOOKS: dict[str, tuple[Callable[[Model], object], str]] = {
    "forward hook": (lambda m: m.last.register_forward_hook(doubled_output), LAYER),
    "forward hook, first layer": (lambda m: m.first.register_forward_hook(doubled_output), LAYER),
    "forward pre-hook": (lambda m: m.last.register_forward_pre_hook(doubled), LAYER),
    "full backward hook": (lambda m: m.last.register_full_backward_hook(doubled_gradient), LAYER),
    "full backward pre-hook": (lambda m: m.last.register_full_backward_pre_hook(doubled), LAYER),
    "full backward pre-hook, first layer": (lambda m: m.first.register_full_backward_pre_hook(doubled), LAYER),
    "parameter hook": (lambda m: m.first.weight.register_hook(lambda g: g * 3), "'first.weight' has a hook"),
    "parameter hook that is not linear": (
        lambda m: m.last.weight.register_hook(lambda g: g / (0.1 + g.norm())), "'last.weight' has a hook"),
    "forward of its own": (own_forward, "forward of its own"),
    "tensor hook": (set_between(lambda h: h.register_hook(doubled)), "output of module 'first' has a hook"),
    "tensor hook, then in place": (set_between(hook_then_in_place), "output of module 'first' has a hook"),
}  # fmt: skip
ONLY_BY_CHECKS: dict[str, Callable[[Model], object]] = {
    "hook on a node": set_between(hook_on_node),
    "backward hook that divides by the norm over the batch": lambda m: m.act.register_full_backward_hook(
        lambda module, of_inputs, of_outputs: (of_inputs[0] / of_inputs[0].norm(),)
    ),
}
HARMLESS: dict[str, Callable[[Model], object]] = {
    "forward hook of a module without parameters": lambda m: m.act.register_forward_hook(doubled_output),
    "backward hook of a module without parameters": lambda m: m.act.register_full_backward_hook(doubled_gradient),
    "hook of the whole model": lambda m: m.register_forward_hook(doubled_output),
}
GLOBAL: dict[str, Callable[[], Handle]] = {
    "forward": lambda: torch_module.register_module_forward_hook(
        lambda module, inputs, output: 2 * output if isinstance(module, nn.Linear) else None
    ),
    "forward pre": lambda: torch_module.register_module_forward_pre_hook(
        lambda module, inputs: (2 * inputs[0],) if isinstance(module, nn.Linear) else None
    ),
    "backward": lambda: torch_module.register_module_full_backward_hook(doubled_gradient),
    "backward pre": lambda: torch_module.register_module_full_backward_pre_hook(doubled),
}


def backward_per_example(model: nn.Module, inputs: Tensor, targets: Tensor, limit: float) -> dict[str, Tensor]:
    """The clipped sum of what `backward` leaves in `.grad`, example by example."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(len(inputs)):
        model.zero_grad(set_to_none=True)
        cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).sum().backward()
        gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
        for name, g in gradient.items():
            total[name] += g * min(1.0, limit / norm(gradient))
    model.zero_grad(set_to_none=True)
    return total


def check(model: nn.Module, limit: float, reason: str | None, engine: ClippingEngine | None = None) -> None:
    """Pass if the engine gives what `backward` does, one by one for this reason or, with None, on the fast path."""
    inputs, targets = vectors(12), torch.randint(4, (7,))
    expected = backward_per_example(model, inputs, targets, limit)
    engine = engine or ClippingEngine(model, limit)
    result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    assert engine.slow_reason is None if reason is None else reason in str(engine.slow_reason)


@pytest.mark.filterwarnings("ignore:clipping runs", "ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    "limit", [pytest.param(1e-3, marks=pytest.mark.slow), 1.0, pytest.param(1e3, marks=pytest.mark.slow)]
)
class TestHooks:
    @pytest.mark.parametrize("hook", HOOKS)
    def test_on_a_layer_its_output_or_its_parameters(self, hook: str, limit: float) -> None:
        model = Model().double()
        HOOKS[hook][0](model)
        check(model, limit, HOOKS[hook][1])

    @pytest.mark.parametrize("hook", HOOKS)
    def test_added_after_the_first_step(self, hook: str, limit: float) -> None:
        model = Model().double()
        engine = ClippingEngine(model, limit)
        check(model, limit, None, engine)
        HOOKS[hook][0](model)
        check(model, limit, HOOKS[hook][1], engine)

    @pytest.mark.parametrize("hook", ONLY_BY_CHECKS)
    def test_that_nothing_shows_but_the_gradient(self, hook: str, limit: float) -> None:
        model = Model().double()
        ONLY_BY_CHECKS[hook](model)
        check(model, limit, "not that of an ordinary backward pass")

    @pytest.mark.parametrize("hook", HARMLESS)
    def test_elsewhere_are_part_of_the_graph(self, hook: str, limit: float) -> None:
        model = Model().double()
        HARMLESS[hook](model)
        check(model, limit, None)

    @pytest.mark.parametrize("hook", GLOBAL)
    def test_of_all_modules(self, hook: str, limit: float) -> None:
        with GLOBAL[hook]():
            check(Model().double(), limit, "hooks for all modules")

    def test_inside_a_module_without_a_fast_rule(self, limit: float) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale, self.inner = nn.Parameter(torch.rand(12)), nn.Linear(12, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.inner(self.scale * x)

        model = nn.Sequential(Block()).double()
        model[0].inner.register_full_backward_pre_hook(doubled)
        check(model, limit, LAYER)

    def test_a_layer_whose_class_was_changed(self, limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nn.Linear, "forward", lambda m, x: nn.functional.linear(x.square(), m.weight, m.bias))
        check(Model().double(), limit, "not that of an ordinary backward pass")


def test_a_hook_after_accumulation_is_refused() -> None:
    model = Model()
    model.last.bias.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())
    with pytest.raises(InvalidInputError, match=r"'last.bias' has a hook that runs after"):
        ClippingEngine(model, 1.0)


def test_a_hook_that_remembers_gradients_is_refused() -> None:
    model, seen = Model(), []

    def momentum(gradient: Tensor) -> Tensor:
        seen.append(gradient.clone())
        return gradient + sum(seen[:-1], torch.zeros_like(gradient))

    model.last.weight.register_hook(momentum)
    with pytest.raises(InvalidInputError, match="remembers"):
        ClippingEngine(model, 1.0).clipped_sum(vectors(12).float(), torch.zeros(7, dtype=torch.long), cross_entropy)


@pytest.fixture(autouse=True)
def no_global_hooks_left() -> Iterator[None]:
    yield
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_backward_hooks
