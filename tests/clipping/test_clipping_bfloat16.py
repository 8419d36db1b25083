"""Passes in bfloat16: the bound is that of the float32 numbers that are added up, and rows stay separate to the bit."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping import fast_path
from securesgd.clipping.engine import ClippedSum, ClippingEngine
from securesgd.clipping.precision import in_full
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from tests.bfloat16 import needs_bfloat16
from tests.clipping.clipping_reference import cross_entropy, distance, norm


class Text(nn.Module):
    """Words, attention or an LSTM, and a mean: layers of several maps, and tables."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 10)
        self.positions = nn.Parameter(torch.randn(1, 12, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.inner = layer if inner == "attention" else nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.words(x) + self.positions)
        out: Tensor = self.head((y[0] if isinstance(y, tuple) else y).mean(dim=1))
        return out


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, bias=False),
        nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mnist-cnn": (lambda: network("mnist-cnn", (1, 28, 28), 10), lambda n: torch.rand(n, 1, 28, 28)),
    "tanh-cnn": (lambda: network("tanh-cnn", (1, 28, 28), 10), lambda n: torch.rand(n, 1, 28, 28)),
    "GroupNorm": (residual, lambda n: torch.rand(n, 3, 16, 16)),
    "attention": (lambda: Text("attention"), lambda n: torch.randint(50, (n, 12))),
    "lstm": (lambda: Text("lstm"), lambda n: torch.randint(50, (n, 12))),
}
NOBODY = -1  # as target: the loss is not finite, so that the example is a null record


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    values = functional.cross_entropy(outputs, targets.clamp_min(0), reduction="none")
    return torch.where(targets == NOBODY, math.nan, values)


def problem(name: str, rows: int = 9) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    return make(), inputs(rows), torch.randint(10, (rows,))


def run(model: nn.Module, limit: float, x: Tensor, y: Tensor) -> ClippedSum:
    engine = ClippingEngine(model, limit, "bfloat16")
    result = engine.clipped_sum(x, y, losses)
    assert engine.slow_reason is None
    return result


@needs_bfloat16
@pytest.mark.parametrize("name", NETS)
def test_the_norm_of_an_example_is_that_of_what_it_adds_to_the_sum(name: str) -> None:
    """Unclipped, an example's share is as long as was measured; clipped, it is as long as the limit, and no longer."""
    model, x, y = problem(name)
    nobody = y.clone()
    nobody[4] = NOBODY
    measured = run(model, 1e6, x, y).norms[4].item()
    for limit, length in ((1e6, measured), (measured / 3, measured / 3)):
        share = distance(run(model, limit, x, y).gradients, run(model, limit, x, nobody).gradients)
        assert share == pytest.approx(length, rel=2e-4)
        assert share <= min(1.0, measured / limit) * ClippingEngine(model, limit, "bfloat16").sensitivity


@needs_bfloat16
@pytest.mark.parametrize("name", NETS)
def test_passes_are_in_bfloat16_and_gradients_near_those_of_float32(name: str) -> None:
    model, x, y = problem(name)
    exact = ClippingEngine(model, 1e6).clipped_sum(x, y, losses).gradients
    short = run(model, 1e6, x, y).gradients
    assert 1e-4 * norm(exact) < distance(exact, short) < 0.2 * norm(exact)
    assert {g.dtype for g in short.values()} == {torch.float64}


@needs_bfloat16
@pytest.mark.parametrize("name", NETS)
def test_the_slow_path_gives_the_same_up_to_bfloat16(name: str) -> None:
    model, x, y = problem(name)
    engine = ClippingEngine(model, 1e6, "bfloat16")
    engine.slow_reason = "asked for"
    slow = engine.clipped_sum(x, y, losses).gradients
    assert distance(slow, run(model, 1e6, x, y).gradients) < 0.1 * norm(slow)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("others", [0.0, 1e-39, 1.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("name", ["mnist-cnn", "tanh-cnn", "GroupNorm"])
def test_a_row_has_the_same_bits_whatever_the_other_rows_hold(name: str, others: float, precision: str) -> None:
    """The engine assumes it of all kernels. The numbers that are refused at first sight come in a later call."""
    model, x, y = problem(name, 24)
    own = torch.arange(24) % 3 == 1
    engine = ClippingEngine(model, 1.0, precision)  # type: ignore[arg-type]
    before = engine.clipped_sum(x, y, losses)
    replaced = torch.where(own.view(-1, 1, 1, 1), x, torch.full_like(x, others))
    after = engine.clipped_sum(replaced, y, losses)
    assert torch.equal(before.norms[own], after.norms[own])
    assert torch.equal(before.losses[own], after.losses[own])
    assert bool((before.norms[~own] != after.norms[~own]).all())


@needs_bfloat16
def test_a_layer_without_a_rule_is_run_one_by_one() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 5))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    torch.manual_seed(0)
    model, x, y = nn.Sequential(Product()), torch.rand(6, 8), torch.randint(5, (6,))
    engine = ClippingEngine(model, 0.01, "bfloat16")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        result = engine.clipped_sum(x, y, cross_entropy)
    assert engine.slow_reason is not None
    assert norm(result.gradients) <= 6 * engine.sensitivity


@needs_bfloat16
def test_numbers_of_a_shorter_type_are_held_exactly() -> None:
    x = torch.randn(1000).bfloat16()
    assert in_full(x, torch.float32).dtype == torch.float32
    assert torch.equal(in_full(x, torch.float32).bfloat16(), x)
    for same in (torch.randn(3), torch.randn(3).double(), torch.arange(3)):
        assert in_full(same, torch.float32) is same


@needs_bfloat16
def test_a_rule_gets_float32_numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    real = fast_path.LayerCall

    def noted(**fields: object) -> object:
        call = real(**fields)  # type: ignore[arg-type]
        seen.update({call.output_gradient.dtype, *(x.dtype for x in call.inputs if x.is_floating_point())})
        assert call.statistics is None
        return call

    monkeypatch.setattr(fast_path, "LayerCall", noted)
    for name in NETS:
        run(*(problem(name)[0], 1.0), *problem(name)[1:])
    assert seen == {torch.float32}


@needs_bfloat16
def test_what_cannot_be_in_bfloat16_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(InvalidInputError, match="did you mean 'bfloat16'"):
        ClippingEngine(model, 1.0, "bfloat")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"'0.weight' has type torch.float64"):
        ClippingEngine(nn.Sequential(nn.Linear(4, 3)).double(), 1.0, "bfloat16")
    with pytest.raises(InvalidInputError, match="the loss runs the model itself"):
        ClippingEngine(model, 1.0, "bfloat16").clipped_sum(
            torch.rand(3, 4), torch.zeros(3, dtype=torch.long), lambda m, x, y: cross_entropy(m(x), y)
        )


@needs_bfloat16
def test_examples_that_mix_in_bfloat16_are_refused() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.layer(x)
            return h - h.mean(dim=0) if h.dtype == torch.bfloat16 else h

    x, y = torch.rand(6, 8), torch.zeros(6, dtype=torch.long)
    assert ClippingEngine(Mixes(), 1.0).clipped_sum(x, y, cross_entropy).skipped == 0
    with pytest.raises(InvalidInputError, match="depends on other examples"):
        ClippingEngine(Mixes(), 1.0, "bfloat16").clipped_sum(x, y, cross_entropy)
