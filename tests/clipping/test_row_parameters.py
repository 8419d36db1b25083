"""Parameters that a container of layers uses itself: one copy per row, or, where that changes the result, none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from securesgd.clipping import engine as clipping
from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.losses import loss_code
from securesgd.models.noisy import NoisyNetwork
from tests.clipping.clipping_reference import cross_entropy, distance, norm, reference, sequences
from tests.clipping.exotic_models import LAST, Net, linear, net, values

BATCH, STEPS, WIDTH = 6, 4, 12


def add(use: Callable[[Any], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: m.out(torch.tanh(m.a(x) + use(m)).mean(dim=1))


def class_token(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.cat([m.p.expand(len(x), -1, -1), m.a(x)], dim=1).cumsum(dim=1).tanh()[:, -1])


def repeated(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.cat([m.p.repeat(len(x), 1, 1), m.a(x)], dim=1).tanh().mean(dim=1))


def time_first(m: Any, x: Tensor) -> Tensor:
    return m.out((m.a(x).transpose(0, 1) + m.p.transpose(0, 1)).tanh().mean(dim=0))


def pooled(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.out(((y @ m.p.T).softmax(dim=1) * y).sum(dim=1))


def in_a_buffer(m: Any, x: Tensor) -> Tensor:
    m.kept = m.p.detach().square().sum()
    return m.out(torch.tanh(m.a(x) + m.p).mean(dim=1)) * (1 + 0 * m.kept)


def normalised(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.p / m.p.norm()).mean(dim=1))


def normalised_without_gradient(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.p / m.p.detach().norm()).mean(dim=1))


def by_its_length(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.p / len(m.p)).mean(dim=1))


def penalised(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.p).mean(dim=1)) * (1 + m.p.square().mean())  # added, it would move no loss


def shifted(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.p.roll(1, dims=0)).mean(dim=1))


def through_data(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) + m.get_parameter("p")).mean(dim=1))


def in_a_list(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.tanh(m.a(x) * m.ps[0] + m.ps[1]).mean(dim=1))


class Tied(Net):
    """The parameter is the weight of a layer too."""

    def __init__(self) -> None:
        super().__init__(lambda m, x: m.out(torch.tanh(m.a(x) + m.p).mean(dim=1)), a=nn.Linear(WIDTH, 12))
        self.p = nn.Parameter(torch.randn(STEPS, WIDTH))
        self.out = nn.Linear(WIDTH, STEPS)
        self.out.weight = self.p


TABLE = {"a": linear(), "p": values(1, STEPS, WIDTH), "out": LAST}
BY_ROW: dict[str, Callable[[], nn.Module]] = {
    "position": net(add(lambda m: m.p), **TABLE),
    "part of it": net(add(lambda m: m.p[:, :, :1] * m.p[:, :1]), **TABLE),
    "without a first dimension": net(add(lambda m: m.p), **{**TABLE, "p": values(STEPS, WIDTH)}),
    "class token": net(class_token, **{**TABLE, "p": values(1, 1, WIDTH)}),
    "used twice": net(lambda m, x: m.out((torch.tanh(m.a(x) + m.p) * m.p).mean(dim=1)), **TABLE),
    "time first": net(time_first, **TABLE),
    "list": net(in_a_list, a=linear(), out=LAST, ps=lambda: nn.ParameterList([torch.randn(1, 1, WIDTH) for _ in "ab"])),
    "frozen": net(add(lambda m: m.p.detach() * m.q), **TABLE, q=values(1, 1, WIDTH)),
    "tied": Tied,
    "of an attention network": net(
        lambda m, x: m.out(m.b(m.a(x) + m.p).mean(dim=1)), **TABLE,
        b=lambda: nn.TransformerEncoderLayer(WIDTH, 3, 8, dropout=0.0, batch_first=True)),
}  # fmt: skip
OTHERWISE: dict[str, Callable[[], nn.Module]] = {
    "first of them": net(add(lambda m: m.p[0]), **TABLE),
    "sum over the first dimension": net(add(lambda m: m.p.sum(dim=0)), **TABLE),
    "mean over the first dimension": net(add(lambda m: m.p.mean(dim=0)), **TABLE),
    "largest of the first dimension": net(add(lambda m: m.p.amax(dim=0)), **TABLE),
    "repeated": net(repeated, **{**TABLE, "p": values(1, 1, WIDTH)}),
    "viewed": net(add(lambda m: m.p.view(-1)[:WIDTH]), **TABLE),
    "flattened": net(add(lambda m: m.p.flatten()[-WIDTH:]), **TABLE),
    "as a weight": net(pooled, **{**TABLE, "p": values(1, WIDTH)}),
    "normalised": net(normalised, **TABLE),
    "normalised without gradient": net(normalised_without_gradient, **TABLE),
    "divided by its length": net(by_its_length, **TABLE),
    "penalised": net(penalised, **TABLE),
    "shifted": net(shifted, **TABLE),
    "scalar": net(add(lambda m: m.p), **{**TABLE, "p": values()}),
    "around the attribute": net(through_data, **TABLE),
    "without gradient beside": net(add(lambda m: m.p + m.p.detach().std()), **TABLE),
    "kept": net(in_a_buffer, **TABLE),
}
HARMLESS = {"kept"}  # used in another way too, which has no effect


def compare(model: nn.Module, copies: int, micro_batch: int | None) -> ClippingEngine:
    inputs, targets = sequences(STEPS, WIDTH, BATCH), torch.randint(4, (BATCH,))
    limit = float(reference(model, inputs, targets, 1.0)[1].median())
    expected, norms = reference(model, inputs, targets, limit)
    engine = ClippingEngine(model, limit)
    for _ in range(2):
        result = engine.clipped_sum(inputs, targets, cross_entropy, copies, micro_batch)
        assert distance(result.gradients, expected) <= 1e-9 * norm(expected)
        torch.testing.assert_close(result.norms, norms)
    assert norm(engine.clipped_sum(inputs[:0], targets[:0], cross_entropy).gradients) == 0
    shadowed = [name for m in model.modules() for name in m._parameters if name in vars(m)]
    assert not shadowed
    return engine


@pytest.mark.parametrize(("copies", "micro_batch"), [(1, None), (2, 4)])
@pytest.mark.parametrize("case", BY_ROW)
def test_a_copy_for_each_row_equals_a_loop_over_examples(case: str, copies: int, micro_batch: int | None) -> None:
    torch.manual_seed(len(case))
    model = BY_ROW[case]().double()
    if case == "frozen":
        model.p.requires_grad_(False)
    engine = compare(model, copies, micro_batch)
    assert engine.slow_reason is None
    assert engine._row_parameters


@pytest.mark.filterwarnings("ignore:clipping runs")
@pytest.mark.parametrize(("copies", "micro_batch"), [(1, None), (2, 4)])
@pytest.mark.parametrize("case", OTHERWISE)
def test_other_uses_are_noticed_and_equal_the_loop(case: str, copies: int, micro_batch: int | None) -> None:
    torch.manual_seed(len(case))
    engine = compare(OTHERWISE[case]().double(), copies, micro_batch)
    assert not engine._row_parameters or case in HARMLESS


@pytest.mark.filterwarnings("ignore:clipping runs")
@pytest.mark.parametrize("case", ["position", "first of them", "normalised without gradient"])
def test_as_many_steps_as_rows_hide_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    model = (BY_ROW.get(case) or OTHERWISE[case])().double()
    inputs, targets = sequences(STEPS, WIDTH, STEPS), torch.randint(4, (STEPS,))
    expected, _ = reference(model, inputs, targets, 0.5)
    result = ClippingEngine(model, 0.5).clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


def test_a_container_that_was_never_tried_is_run_on_each_example_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BY_ROW["position"]().double()
    inputs, targets = sequences(STEPS, WIDTH, BATCH), torch.randint(4, (BATCH,))
    expected, _ = reference(model, inputs, targets, 0.5)
    engine = ClippingEngine(model, 0.5)
    engine._separate_units = {"p for inputs of shape [4, 12]", "a", "out", "the model"}  # so that no check looks at it
    engine._losses = {loss_code(cross_entropy)}
    monkeypatch.setattr(clipping, "is_due", lambda call: False)
    with pytest.warns(UserWarning, match="could not be tried on synthetic examples"):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


@pytest.mark.filterwarnings("ignore:clipping runs")
def test_inputs_of_another_shape_are_checked_again() -> None:
    """The first steps of the table are all of it at first; for one step, they are the first row of its copies."""
    torch.manual_seed(0)
    model = net(lambda m, x: m.out(torch.tanh(m.a(x) + m.p[: x.shape[1]]).mean(dim=1)), **TABLE)().double()
    model.p = nn.Parameter(torch.randn(BATCH, WIDTH, dtype=torch.float64))
    engine = ClippingEngine(model, 0.5)
    for steps in (BATCH, 1, 3):
        inputs, targets = sequences(steps, WIDTH, BATCH), torch.randint(4, (BATCH,))
        expected, _ = reference(model, inputs, targets, 0.5)
        result = engine.clipped_sum(inputs, targets, cross_entropy)
        assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


def places(use: Callable[[Any, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return net(lambda m, x: m.out(torch.tanh(m.a(x) + use(m, torch.arange(x.shape[1]))).mean(dim=1)),
               a=linear(), b=lambda: nn.Embedding(9, WIDTH), out=LAST)  # fmt: skip


@pytest.mark.parametrize("first", [2, 3])
def test_a_table_of_positions_is_one_for_all_rows_whatever_the_batch(first: int) -> None:
    """Also when a batch has as many rows as there are positions, which is seen on its own."""
    torch.manual_seed(0)
    model = places(lambda m, t: m.b(t) * torch.sigmoid(m.b(t.unsqueeze(0))))().double()
    engine = ClippingEngine(model, 0.5)
    for count in (first, STEPS, BATCH, STEPS):
        inputs, targets = sequences(STEPS, WIDTH, count), torch.randint(4, (count,))
        expected, _ = reference(model, inputs, targets, 0.5)
        result = engine.clipped_sum(inputs, targets, cross_entropy)
        assert engine.slow_reason is None
        assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


@pytest.mark.filterwarnings("ignore:clipping runs")
@pytest.mark.parametrize("count", [STEPS, BATCH])
@pytest.mark.parametrize(
    "use",
    [
        lambda m, t: m.b(t).sum(dim=0),
        lambda m, t: m.b(t)[0],
        lambda m, t: m.b(t) / m.b(t).detach().norm(),
        lambda m, t: m.b(t).roll(1, dims=0),
        lambda m, t: m.b(t[0]),
    ],
    ids=["sum", "first", "norm", "rolled", "scalar"],
)
def test_a_table_used_in_other_ways_is_noticed(use: Callable[[Any, Tensor], Tensor], count: int) -> None:
    torch.manual_seed(0)
    model, inputs, targets = places(use)().double(), sequences(STEPS, WIDTH, count), torch.randint(4, (count,))
    expected, _ = reference(model, inputs, targets, 0.5)
    engine = ClippingEngine(model, 0.5)
    for _ in range(2):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
        assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


class Patches(nn.Module):
    """A small vision transformer: patches, a class token, positions, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 3, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1)
        return self.head(self.layer(tokens + self.places)[:, 0])


@pytest.mark.parametrize("place", ["input", "first-layer"])
def test_a_vision_transformer_with_a_certificate_needs_no_slow_path(place: Any) -> None:
    torch.manual_seed(0)
    model = NoisyNetwork(Patches(), (3, 8, 8), norm="l2", radius_per_std=0.1, place=place)
    engine = ClippingEngine(model, 1.0)
    for _ in range(2):
        engine.clipped_sum(torch.rand(BATCH, 3, 8, 8), torch.randint(4, (BATCH,)), cross_entropy)
    assert engine.slow_reason is None
    assert engine._row_parameters
