"""Boxes hold every number that the network computes, in float32 and float64, in any order of its sums."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.certificates.interval.arithmetic import gamma
from securesgd.errors import InvalidInputError
from tests.certificates.interval_networks import (
    Residual,
    bounds_of,
    boxes_of,
    dense,
    points_in_box,
    pooled,
    seeded,
    smallest_margin,
    values_of,
)

ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.1, 0.3), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(0.1), nn.ELU(0.7), nn.SELU(),
    nn.CELU(2.0), nn.Softplus(2.0), nn.Softsign(), nn.LogSigmoid(),
]  # fmt: skip
TYPES = [torch.float32, torch.float64]
INPUT = torch.rand(1, 2, 4, 4, generator=torch.Generator().manual_seed(5))


def inside(network, x, reach, points):
    """Assert that what every operation computes at the points is in its box."""
    graph, boxes = boxes_of(network, x, reach, errors=True)
    dtype = next(network.parameters()).dtype
    with torch.no_grad():
        for operation, (lower, upper), value in zip(
            graph.operations, boxes, values_of(graph, points.to(dtype)), strict=True
        ):
            value = value.double()
            assert bool(((value >= lower) & (value <= upper)).all()), operation.name


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("make", [dense, pooled, Residual])
def test_every_value_is_in_its_box(make, activation, dtype):
    network = seeded(make, activation, dtype=dtype)
    for radius in (0.0, 1e-4, 0.05, 1.0):
        points = points_in_box(INPUT, radius, 200, torch.Generator().manual_seed(1))
        inside(network, INPUT, torch.full_like(INPUT, radius, dtype=torch.float64), points)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", [dense, pooled, Residual])
def test_the_box_of_one_point_is_as_small_as_rounding(make, dtype):
    """Errors would be hidden by boxes that are far too large: their width at radius 0 is a few units of rounding."""
    network = seeded(make, nn.ReLU(), dtype=dtype)
    _, boxes = boxes_of(network, INPUT, torch.zeros_like(INPUT), errors=True)
    assert max(float((upper - lower).max()) for lower, upper in boxes) < 10_000 * torch.finfo(dtype).eps


def test_one_linear_layer_is_exact():
    """|W|ρ: the ends of a linear layer are attained at corners."""
    layer = nn.Linear(6, 2).double()
    x = torch.rand(1, 6)
    _, boxes = boxes_of(nn.Sequential(layer, nn.ReLU(), nn.Linear(2, 2).double()), x, torch.full_like(x, 0.1).double())
    corners = x.double() + 0.1 * torch.tensor(np.array(np.meshgrid(*[[-1.0, 1.0]] * 6)).reshape(6, -1).T)
    with torch.no_grad():
        values = layer(corners)
    assert torch.allclose(boxes[1][0][0], values.amin(0), atol=1e-9)
    assert torch.allclose(boxes[1][1][0], values.amax(0), atol=1e-9)


@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30, 1e-39])
def test_cancelling_sums_of_any_size_in_any_order(scale):
    """Sums that cancel to nothing in real numbers, and in float32 to what the order of the terms makes of them."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(50, generator=generator)
    weight = torch.cat([half, -half]) * scale
    spread, x = set(), torch.ones(1, 100)
    for turn in range(200):
        order = torch.randperm(100, generator=generator)
        layer = nn.Linear(100, 2)
        with torch.no_grad():
            layer.weight.copy_(weight[order].expand(2, -1))
            layer.bias.fill_(0.0)
        computed = float(np.add.accumulate(layer.weight[0].detach().numpy())[-1])  # one after the other, in float32
        spread.add(computed)
        if turn < 20:
            _, ((_, _), (lower, upper)) = boxes_of(layer, x, torch.zeros_like(x), errors=True)
            for value in spread:
                assert lower[0, 0] <= value <= upper[0, 0]
            assert lower[0, 0] <= layer(x)[0, 0].item() <= upper[0, 0]
    _, ((_, _), (lower, upper)) = boxes_of(layer, x, torch.zeros_like(x), errors=True)
    assert all(lower[0, 0] <= value <= upper[0, 0] for value in spread)
    assert len(spread) > 20 or scale < 1e-35  # the orders do differ: without the rounding term this test fails


def test_a_margin_smaller_than_rounding_is_not_proven():
    """The two scores are equal in real numbers but for 1e-9; in float32 either may be larger."""
    network = nn.Linear(64, 2)
    with torch.no_grad():
        network.weight.copy_(torch.randn(64, generator=torch.Generator().manual_seed(0)).expand(2, -1))
        network.bias.copy_(torch.tensor([1e-9, 0.0]))
    x, y = torch.rand(1, 64), torch.tensor([0])
    assert not bool((bounds_of(network, x, 0.0, y) > 0).all())
    assert bool((bounds_of(network.double(), x, 0.0, y) > 0).all())


@pytest.mark.parametrize("weight", [1e38, 3e38])
def test_what_may_overflow_is_not_known(weight):
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        network[0].weight.fill_(weight)
        network[2].weight.copy_(torch.tensor([[1.0] * 4, [-1.0] * 4]))
    margins = bounds_of(network, torch.ones(1, 4), 0.0, torch.tensor([0]))
    assert bool(margins[0, 1].isnan())
    assert bool(bounds_of(network, torch.ones(1, 4), 0.0, torch.tensor([0]), way="linear")[0, 1].isnan())


@pytest.mark.parametrize("way", ["interval", "linear"])
@pytest.mark.parametrize("seed", range(4))
def test_margins_are_below_the_truth_and_near_it(seed, way):
    """Against the exact minimum, by mixed-integer programming."""
    network = seeded(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), seed=seed
    )
    x = torch.rand(1, 3, generator=torch.Generator().manual_seed(seed))
    for radius in (0.01, 0.2):
        for y in range(3):
            bounds = bounds_of(network, x, radius, torch.tensor([y]), way=way)[0]
            for j in {0, 1, 2} - {y}:
                truth = smallest_margin(network, x[0], radius, y, j)
                assert bounds[j] <= truth + 1e-9
                assert bounds[j] >= truth - (0.05 if radius == 0.01 else 1.5)
            assert bounds[y] == torch.inf


def test_without_a_linear_layer_at_the_end_the_scores_have_boxes():
    network = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
    x = torch.rand(1, 4)
    with torch.no_grad():
        scores = network(points_in_box(x, 0.1, 5000, torch.Generator()).float())
    bounds = bounds_of(network, x, 0.1, torch.tensor([1]))[0]
    least = (scores[:, 1:2] - scores).amin(0)
    assert bounds[0] <= least[0]
    assert bounds[2] <= least[2]
    assert bounds[0] >= least[0] - 0.5


class _Skip(nn.Module):
    """x + x/2^24: both terms are exact, their sum is not."""

    def forward(self, x):
        return torch.relu(x) + x * 2.0**-24


def test_the_rounding_of_a_sum_of_two_values_is_in_the_box():
    x = 1 + torch.rand(1, 50, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(_Skip(), nn.Linear(50, 2))
    assert bool((x + x * 2.0**-24 != x.double() + x.double() * 2.0**-24).any())
    inside(network, x, torch.zeros_like(x), x)


@pytest.mark.parametrize("way", ["interval", "linear"])
def test_an_activation_may_be_off_by_ten_units_of_rounding(way, monkeypatch):
    """As another library's may be; the float64 bound computes its own."""
    off = 10 * 2.0**-24
    monkeypatch.setattr(nn.Tanh, "forward", lambda _, x: torch.tanh(x) - (off if x.dtype == torch.float32 else 0.0))
    network = nn.Sequential(nn.Tanh(), nn.Linear(1, 2))
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
        network[1].bias.zero_()
        x = torch.tensor([[0.5]])
        inside(network, x, torch.zeros_like(x), x)
        scores = network(x)[0].double()
    bound = bounds_of(network, x, 0.0, torch.tensor([0]), way=way)[0, 1]
    assert scores[0] - scores[1] - 3 * off <= bound <= scores[0] - scores[1]


def large_bias():
    """Return a layer whose first output, x/10 + 10^6, is rounded to a multiple of 1/16, and inputs."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1], [0.0]]))
        layer.bias.copy_(torch.tensor([1e6, 0.0]))
    return layer, torch.rand(200, 1, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("way", ["interval", "linear"])
def test_the_rounding_of_a_large_bias_is_in_the_margin(way):
    layer, x = large_bias()
    with torch.no_grad():
        scores = layer(x).double()
    bounds = bounds_of(layer, x, 0.0, torch.zeros(200, dtype=torch.int64), way=way)[:, 1]
    assert bool((bounds <= scores[:, 0] - scores[:, 1]).all())


@pytest.mark.parametrize("errors", [False, True])
def test_the_rounding_of_a_large_bias_is_in_the_box(errors):
    layer, x = large_bias()
    _, boxes = boxes_of(nn.Sequential(layer, nn.ReLU(), nn.Linear(2, 2)), x, torch.zeros_like(x), errors=errors)
    lower, upper = boxes[1]
    with torch.no_grad():
        values = layer(x).double()
    assert bool(((values >= lower) & (values <= upper)).all())


def test_gamma():
    assert gamma(10, 2.0**-24) >= 10 * 2.0**-24
    assert gamma(2**23, 2.0**-24) == np.inf


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)), "GELU"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softplus(1, 0.5), nn.Linear(4, 2)), "threshold 0.5"),
        (nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(-0.1), nn.Linear(4, 2)), "LeakyReLU"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "LayerNorm"),
        (nn.Linear(4, 1), "one score"),
        (nn.Linear(4, 2).half(), "float16"),
    ],
)
def test_what_has_no_sound_bound_is_refused_by_name(network, name):
    with pytest.raises(InvalidInputError, match=name):
        boxes_of(network, torch.rand(1, 4), torch.zeros(1, 4))


def test_coarser_products_are_refused():
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(InvalidInputError, match="highest"):
            boxes_of(nn.Linear(4, 2), torch.rand(1, 4), torch.zeros(1, 4))
    finally:
        torch.set_float32_matmul_precision("highest")


def test_softplus_drops_at_its_threshold():
    """Above 20 it is the identity, which is less than softplus just before."""
    network = nn.Sequential(nn.Softplus(), nn.Linear(1, 2)).double()
    x = torch.tensor([[20.0 + 2e-11]], dtype=torch.float64)
    inside(network, x, torch.full_like(x, 2e-11), x + torch.tensor([[-2e-11], [1e-11], [2e-11]], dtype=torch.float64))
