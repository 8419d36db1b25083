"""Unusual forward passes: whatever the records cannot prove is noticed, and the result stays right."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from securesgd.clipping import engine as clipping
from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.losses import loss_code
from securesgd.errors import InvalidInputError
from tests.clipping.clipping_reference import cross_entropy, distance, norm, reference


class Odd(nn.Module):
    """Two layers, put together by a given function."""

    def __init__(self, join: Callable[["Odd", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.spare = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(6, 4)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x)


class Leaky(nn.Linear):
    """Returns its output, and keeps a value from inside."""

    def forward(self, x: Tensor) -> Tensor:
        self.inside = self.weight.sum()
        return super().forward(x) + self.inside


def side_door(m: Odd, x: Tensor) -> Tensor:
    if not isinstance(m.a, Leaky):
        m.a = Leaky(6, 6).double()
    hidden = m.a(x)
    return m.b(torch.tanh(hidden)) * m.a.inside


def in_place_on_a_view(m: Odd, x: Tensor) -> Tensor:
    hidden = m.a(x).view(len(x), 2, 3)
    hidden[:, 0].mul_(2)
    return m.b(torch.tanh(hidden.flatten(1)))


def changed_input(m: Odd, x: Tensor) -> Tensor:
    x = x * 1
    hidden = m.a(x)
    x.mul_(3)
    return m.b(torch.tanh(hidden + x.detach()))


def without_gradient(m: Odd, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = m.a(x)
    return m.b(torch.tanh(hidden))


def keyword(m: Odd, x: Tensor) -> Tensor:
    return m.b(input=torch.tanh(m.a(x)))


def used_by_the_loss_only(m: Odd, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x))) + m.b.weight.square().sum()


def joined_rows(m: Odd, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x.repeat_interleave(2, dim=0)))).view(len(x), 2, 4).mean(dim=1)


def rolled(m: Odd, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x.roll(1, dims=0)))).roll(-1, dims=0)


def plain(m: Odd, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x)))


def result_thrown_away(m: Odd, x: Tensor) -> Tensor:
    m.spare(x)
    return m.b(torch.tanh(m.a(x)))


def in_place_after(m: Odd, x: Tensor) -> Tensor:
    return m.b(m.a(x).mul_(2).relu_()).sub_(1)


def recomputed(m: Odd, x: Tensor) -> Tensor:
    return m.b(checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False))


def skip(m: Odd, x: Tensor) -> Tensor:
    return m.b(x + functional.relu(m.a(x))) + m.spare(x)


def other_leaf(m: Odd, x: Tensor) -> Tensor:
    return m.b(x * torch.ones(6, dtype=x.dtype, requires_grad=True))


def other_leaf_beside_a_layer(m: Odd, x: Tensor) -> Tensor:
    return m.b(x * torch.ones(6, dtype=x.dtype, requires_grad=True)) + m.spare(x)


FAST = [plain, result_thrown_away, in_place_after, recomputed, skip, in_place_on_a_view]
SLOW = [
    side_door,
    without_gradient,
    keyword,
    used_by_the_loss_only,
    joined_rows,
    rolled,
    other_leaf,
    other_leaf_beside_a_layer,
]


def problem(join: Callable[[Odd, Tensor], Tensor]) -> tuple[Odd, Tensor, Tensor, float]:
    model = Odd(join).double()
    inputs, targets = torch.randn(5, 6, dtype=torch.float64), torch.randint(4, (5,))
    _, norms = reference(model, inputs, targets, 1.0)
    return model, inputs, targets, (norms.min() + norms.max()).item() / 2


@pytest.mark.parametrize("join", FAST)
def test_the_fast_path_takes_it(join: Callable[[Odd, Tensor], Tensor]) -> None:
    model, inputs, targets, limit = problem(join)
    expected, _ = reference(model, inputs, targets, limit)
    engine = ClippingEngine(model, limit)
    for _ in range(2):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
        assert engine.slow_reason is None
        assert distance(result.gradients, expected) <= 1e-10 * norm(expected)


@pytest.mark.parametrize("join", SLOW)
@pytest.mark.filterwarnings("ignore:clipping runs")
def test_noticed_and_run_one_by_one(join: Callable[[Odd, Tensor], Tensor]) -> None:
    model, inputs, targets, limit = problem(join)
    expected, _ = reference(model, inputs, targets, limit)
    engine = ClippingEngine(model, limit)
    for _ in range(2):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
        assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    assert engine.slow_reason is not None


@pytest.mark.filterwarnings("ignore:clipping runs")
@pytest.mark.parametrize("first", [plain, changed_input])
def test_an_input_changed_after_its_layer_read_it_is_an_error_as_in_torch(
    first: Callable[[Odd, Tensor], Tensor],
) -> None:
    inputs, targets = torch.randn(5, 6, dtype=torch.float64), torch.randint(4, (5,))
    model = Odd(first).double()
    engine = ClippingEngine(model, 1.0)
    if first is plain:
        engine.clipped_sum(inputs, targets, cross_entropy)
    model.join = changed_input
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.clipped_sum(inputs, targets, cross_entropy)


class Shifted(nn.Module):
    """Mixes examples by values only: no gradient shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x - x.detach().mean(dim=0) / 2)


def test_values_shared_without_gradient_are_refused() -> None:
    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.detach().mean(dim=0) / 2

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Detached(), nn.Linear(6, 4)).double()
    inputs, targets = torch.randn(5, 6, dtype=torch.float64), torch.randint(4, (5,))
    with pytest.raises(InvalidInputError, match="depends on other examples"):
        ClippingEngine(model, 0.5).clipped_sum(inputs, targets, cross_entropy)


def test_a_custom_module_that_was_never_tried_is_run_on_each_example_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Shifted(), nn.Linear(6, 4)).double()
    inputs, targets = torch.randn(5, 6, dtype=torch.float64), torch.randint(4, (5,))
    expected, _ = reference(model, inputs, targets, 0.5)
    engine = ClippingEngine(model, 0.5)
    engine._separate_units = {"0", "1"}  # so that no check looks at the module
    engine._losses = {loss_code(cross_entropy)}
    monkeypatch.setattr(clipping, "is_due", lambda call: False)
    with pytest.warns(UserWarning, match="could not be tried on synthetic examples"):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)


@pytest.mark.filterwarnings("ignore:clipping runs")
def test_a_path_first_taken_later_is_checked_too() -> None:
    """The table's length equals the batch only in the second batch, when a new branch runs for the first time."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.table, self.late = nn.Linear(6, 4), nn.Embedding(5, 4), False

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return y + self.table(torch.arange(5)).sum(dim=0) if self.late else y

    model = Branch().double()
    inputs, targets = torch.randn(5, 6, dtype=torch.float64), torch.randint(4, (5,))
    engine = ClippingEngine(model, 0.5)
    engine.clipped_sum(inputs[:3], targets[:3], cross_entropy)
    assert engine.slow_reason is None
    model.late = True
    expected, _ = reference(model, inputs, targets, 0.5)
    result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert engine.slow_reason is not None
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
