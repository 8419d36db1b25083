"""Networks read as lists of layers, and trained with boxes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork, IntervalSettings
from securesgd.models.layer_graph import layer_graph
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from tests.models.interval_networks import NETWORKS, SHAPE


def boxed(name: str, radius: float = 0.1) -> IntervalNetwork:
    torch.manual_seed(1)
    plain = NETWORKS[name]().double()
    model = IntervalNetwork(plain, SHAPE, steps=1, train_radius=radius, warm_up=0.0, ramp=0.0, initialisation="own")
    return model.double().train()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_list_of_layers_computes_what_the_network_does(name: str) -> None:
    plain, x = NETWORKS[name](), 4 * torch.rand(7, *SHAPE) - 2
    torch.testing.assert_close(layer_graph(plain, SHAPE).evaluate(x), plain.eval()(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_line_is_the_network_and_no_point_of_the_box_is_worse_than_the_others(name: str) -> None:
    model = boxed(name)
    x = torch.rand(6, *SHAPE, dtype=torch.float64)
    outputs = model(x).detach()
    torch.testing.assert_close(outputs[:, 0], model.network(x))
    for _ in range(300):
        point = (x + 0.1 * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        if torch.rand(()) < 0.5:  # a corner
            point = (x + 0.1 * (2 * torch.rand_like(x) - 1).sign()).clamp(0, 1)
        logits = model.network(point).detach()
        differences = logits.unsqueeze(1) - logits.unsqueeze(2)  # z_j − z_y at [y, j]
        assert bool((differences <= outputs[:, 1:] + 1e-9).all())


def test_the_worst_logits_are_reached_by_a_linear_network() -> None:
    model = IntervalNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), SHAPE, steps=1, warm_up=0.0, ramp=0.0)
    x = torch.rand(4, *SHAPE)
    worst = model.train()(x).detach()[:, 1:]
    weight, bias = (p.detach() for p in model.network.parameters())
    for y in range(3):
        for j in range(3):
            sign = (weight[j] - weight[y]).sign().view(SHAPE)
            point = (x + 0.1 * sign).clamp(0, 1).flatten(1)
            expected = point @ (weight[j] - weight[y]) + bias[j] - bias[y]
            torch.testing.assert_close(worst[:, y, j], expected, rtol=1e-4, atol=1e-5)


def test_the_schedule_goes_from_no_box_to_the_whole_one() -> None:
    settings = IntervalSettings(train_radius=0.2, clean_weight=0.25, warm_up=0.2, ramp=0.4)
    model = IntervalNetwork(NETWORKS["dense"](), SHAPE, settings, steps=10)
    seen = []
    for _ in range(10):
        seen.append((round(model.radius, 6), round(model.clean_weight, 6)))
        model.project()
    assert seen[:3] == [(0.0, 1.0)] * 3
    assert seen[4] == (0.1, 0.625)
    assert seen[6:] == [(0.2, 0.25)] * 4


def test_the_loss_is_the_sum_of_both_parts_and_picks_the_line_of_the_label() -> None:
    model, x, y = boxed("dense"), torch.rand(5, *SHAPE, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4])
    outputs = model(x)
    entropy = nn.CrossEntropyLoss(reduction="none")
    worst = torch.stack([entropy(outputs[i, 1 + i][None], y[i : i + 1])[0] for i in range(5)])
    torch.testing.assert_close(model.loss(outputs, y), 0.3 * entropy(outputs[:, 0], y) + 0.7 * worst)
    model.eval()
    torch.testing.assert_close(model.loss(model(x), y), entropy(model.network(x), y))


def test_initial_weights_have_the_size_that_keeps_boxes() -> None:
    model = IntervalNetwork(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 5)), SHAPE, steps=1
    )
    first = next(model.network.parameters())
    assert float(first.detach().std()) == pytest.approx((2 * torch.pi) ** 0.5 / 64, rel=0.05)
    kept = NETWORKS["dense"]()
    before = copy.deepcopy(kept.state_dict())
    IntervalNetwork(kept, SHAPE, initialisation="own")
    assert all(torch.equal(before[name], tensor) for name, tensor in kept.state_dict().items())


def test_parameters_are_listed_once_and_shared() -> None:
    model = boxed("residual")
    assert set(model.state_dict()) == {"steps_done"} | {f"network.{name}" for name in model.network.state_dict()}
    assert model.box_layers["hidden (Linear)"].weight is model.network.hidden.weight  # type: ignore[union-attr]


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Difference(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - torch.relu(x)


class MixesExamples(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1)


def hooked() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda module, args, out: out + 1)
    return layer


def replaced_forward() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: torch.zeros_like(x)  # type: ignore[method-assign]
    return layer


REFUSED = [
    (nn.LayerNorm(8), "LayerNorm"), (nn.GroupNorm(2, 8), "GroupNorm"), (nn.BatchNorm1d(8), "BatchNorm1d"),
    (nn.GELU(), "GELU"), (nn.SiLU(), "SiLU"), (nn.Softmax(1), "Softmax"), (nn.LeakyReLU(-0.5), "decreases"),
    (nn.MultiheadAttention(8, 2), "does not take inputs"), (nn.PReLU(), "PReLU"), (OwnLinear(8, 8), "function linear"),
    (Decides(), "decisions by values"), (Product(), "mul"), (Difference(), "sub"), (hooked(), "forward hooks"),
    (nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "no "), (replaced_forward(), "forward of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_has_no_sound_bound_is_refused_by_name(layer: nn.Module, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        layer_graph(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer, nn.Linear(8, 5)), SHAPE)


def test_a_network_that_leaves_the_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="batch"):
        layer_graph(nn.Sequential(nn.Flatten(), MixesExamples()), SHAPE)


def test_training_needs_a_linear_end_no_dropout_and_a_number_of_steps() -> None:
    with pytest.raises(InvalidInputError, match="last layer is 2 \\(ReLU\\)"):
        IntervalNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU()), SHAPE)
    with pytest.raises(InvalidInputError, match="Dropout"):
        IntervalNetwork(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5)), SHAPE)
    with pytest.raises(InvalidInputError, match="steps is None"):
        IntervalNetwork(NETWORKS["dense"](), SHAPE).train()(torch.rand(1, *SHAPE))


@pytest.mark.parametrize(
    "changes",
    [{"train_radius": 0.0}, {"train_radius": float("nan")}, {"clean_weight": 1.5}, {"warm_up": 0.7}, {"ramp": -0.1},
     {"initialisation": "he"}, {"radius": 0.1}, {"train_radius": "0.1"}],
)  # fmt: skip
def test_settings_are_validated(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(changes))):
        IntervalNetwork(NETWORKS["dense"](), SHAPE, **changes)


def test_the_graph_of_a_noisy_network_is_that_without_its_noise() -> None:
    plain = network("digits-cnn", SHAPE, 10)
    for place in ("input", "first-layer"):
        noisy = NoisyNetwork(copy.deepcopy(plain), SHAPE, place=place, radius_per_std=0.1, redistribution="learned")  # type: ignore[arg-type]
        x = torch.rand(3, *SHAPE)
        with torch.no_grad(), noisy.from_layer(noisy.noisy.clean(x)):
            expected = noisy(x)
        with torch.no_grad():
            torch.testing.assert_close(layer_graph(noisy, SHAPE).evaluate(x), expected)
