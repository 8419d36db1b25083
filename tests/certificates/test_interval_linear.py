"""Linear bounds: lines beside every activation, margins below every computed one, tighter than boxes where it pays."""

import itertools

import pytest
import torch
from torch import nn

from securesgd.certificates.interval.boxes import activation_boxes, input_box
from securesgd.certificates.interval.linear_bounds import best_margin_bounds, has_linear_bound
from securesgd.certificates.interval.prepared import prepare
from securesgd.certificates.interval.relaxations import lines_of
from securesgd.models.layer_graph import Operation, layer_graph
from tests.certificates.interval_networks import (
    Residual,
    bounds_of,
    dense,
    points_in_box,
    pooled,
    seeded,
    smallest_margin,
)

ACTIVATIONS = [nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid()]
CURVES = {nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
INPUT = torch.rand(1, 2, 4, 4, generator=torch.Generator().manual_seed(5))


def ends():
    """Return pairs of ends in all sign cases, from equal and nearly equal ones to very far apart."""
    values = torch.tensor(
        [
            -1e6,
            -40.0,
            -9.0,
            -3.0,
            -1.0,
            -0.3,
            -1e-3,
            -1e-9,
            -1e-30,
            0.0,
            1e-30,
            1e-9,
            1e-3,
            0.2,
            1.0,
            2.5,
            8.0,
            50.0,
            1e6,
        ],
        dtype=torch.float64,
    )
    drawn = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    near = torch.stack([drawn[:500, 0], drawn[:500, 0] + drawn[:500, 1].abs() * 1e-9], dim=1)
    pairs = torch.cat([torch.cartesian_prod(values, values), drawn, near])
    return pairs.sort(dim=1).values.unbind(1)


@pytest.mark.parametrize("flat_below", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_lines_are_below_and_above_the_curve(activation, flat_below):
    lower, upper = ends()
    operation = Operation("activation", "", (0,), (1,), function=activation, curve=CURVES[type(activation)])
    lines = lines_of(operation, lower, upper, flat_below=flat_below)
    share = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    z = (lower + share * (upper - lower)).clamp(lower, upper)
    curve, rounding = activation(z), 4e-16 * z.abs() + 4e-16
    assert bool((lines.low_slope * z + lines.low <= curve + rounding).all())
    assert bool((lines.high_slope * z + lines.high >= curve - rounding).all())
    for slope in (lines.low_slope, lines.high_slope):
        assert bool(((slope >= 0) & (slope <= 1)).all())


@pytest.mark.parametrize("activation", ACTIVATIONS[2:], ids=lambda a: type(a).__name__)
def test_lines_are_tight(activation):
    """They touch the curve, and between near ends they are as close as the second derivative allows."""
    lower, upper = ends()
    keep = (upper - lower < 1) & (lower.abs() < 10)
    lower, upper = lower[keep], upper[keep]
    operation = Operation("activation", "", (0,), (1,), function=activation, curve=CURVES[type(activation)])
    lines = lines_of(operation, lower, upper)
    z = lower + torch.linspace(0, 1, 401, dtype=torch.float64)[:, None] * (upper - lower)
    above, below = lines.high_slope * z + lines.high - activation(z), activation(z) - lines.low_slope * z - lines.low
    assert float(above.amin(0).max()) < 1e-5
    assert float(below.amin(0).max()) < 1e-5
    assert bool((torch.maximum(above, below).amax(0) <= (upper - lower) ** 2 + 1e-12).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("make", [dense, pooled, Residual])
def test_no_point_of_the_box_has_a_smaller_margin(make, activation, dtype):
    network = seeded(make, activation, dtype=dtype)
    for radius in (0.0, 1e-3, 0.05, 0.5):
        points = points_in_box(INPUT, radius, 2000, torch.Generator().manual_seed(1)).to(dtype)
        with torch.no_grad():
            scores = network(points).double()
        examples, y_all = INPUT.expand(3, -1, -1, -1), torch.arange(3)
        ways = [bounds_of(network, examples, radius, y_all, way="linear", flat_below=f) for f in (False, True)]
        for y, bounds in [*enumerate(ways[0]), *enumerate(ways[1])]:
            least = (scores[:, y : y + 1] - scores).amin(0)
            others = torch.arange(3) != y
            assert bool((bounds <= least)[others].all())
            if radius == 0.0:  # only rounding is lost, and pools
                assert bool((bounds >= least - 1e-4)[others].all())


def test_where_no_unit_changes_sign_the_bound_is_exact():
    """Then the network is linear in the box, and the bound is its value at a corner; boxes lose more."""
    network = seeded(dense, nn.ReLU(), dtype=torch.float64)
    with torch.no_grad():
        network[1].bias += torch.tensor([5.0, -5.0] * 4)
        network[3].bias += torch.tensor([9.0, -9.0] * 3)
    y = torch.tensor([0])
    x = INPUT.double().requires_grad_()
    for j in (1, 2):
        scores = network(x)[0]
        (gradient,) = torch.autograd.grad(scores[0] - scores[j], x)
        exact = (scores[0] - scores[j]).item() - 0.1 * float(gradient.abs().sum())
        assert float(bounds_of(network, INPUT, 0.1, y, way="linear")[0, j]) == pytest.approx(exact, abs=1e-9)
        assert float(bounds_of(network, INPUT, 0.1, y)[0, j]) < exact - 0.01


def test_a_margin_smaller_than_rounding_is_not_proven():
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    with torch.no_grad():
        network[2].weight[1] = network[2].weight[0]
        network[2].bias.copy_(torch.tensor([1e-9, 0.0]))
    x, y = torch.rand(1, 64), torch.tensor([0])
    assert not bool((bounds_of(network, x, 0.0, y, way="linear") > 0).all())
    assert bool((bounds_of(network.double(), x, 0.0, y, way="linear") > 0).all())


@pytest.mark.parametrize("together", [1, 7, 1000])
def test_only_rivals_that_boxes_leave_open_are_bounded_by_lines(together):
    """The result is the largest of boxes and both choices of lines for all rivals, over those that are open."""
    network = seeded(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 6)
        )
    )
    x = torch.rand(60, 2, 4, 4, generator=torch.Generator().manual_seed(2))
    net, _ = prepare(network, (2, 4, 4))
    counts, decided = set(), 0
    for radius in (0.01, 0.02, 0.04):
        with torch.no_grad():
            y = network(x).argmax(1)
            boxes, lines = (bounds_of(network, x, radius, y, way=way) for way in ("interval", "linear"))
            lines = torch.maximum(lines, bounds_of(network, x, radius, y, way="linear", flat_below=True))
            start = input_box(net, x, torch.full_like(x, radius, dtype=torch.float64), None)
            found = best_margin_bounds(net, activation_boxes(net, start, errors=True), y, together)
        left, best = boxes <= 0, torch.maximum(boxes, lines)
        counts |= set(left.sum(1).tolist())
        decided += int(((boxes.amin(1) <= 0) & (best.amin(1) > 0)).sum())
        assert torch.equal(found > 0, best.amin(1) > 0)
        expected = torch.where(left.any(1), best.masked_fill(~left, torch.inf).amin(1), boxes.amin(1))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert counts >= {0, 1, 2}
    assert decided > 5


def test_which_networks_have_linear_bounds():
    for activation in ACTIVATIONS:
        assert has_linear_bound(layer_graph(seeded(pooled, activation), (2, 4, 4)))
    for activation in (nn.ELU(), nn.Softplus(), nn.LeakyReLU(1.5), nn.Hardtanh()):
        assert not has_linear_bound(layer_graph(seeded(pooled, activation), (2, 4, 4)))


@pytest.mark.parametrize(("middle", "y", "least"), [(-0.5, 1, -0.5), (0.5, 1, -1.5), (-0.5, 0, 0.0), (0.5, 0, -0.5)])
def test_one_unit_that_changes_sign(middle, y, least):
    """relu(x) or −relu(x) within 1 of the middle: the chord is exact above, the line through zero is known below."""
    network = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), ([[1.0]], [0.0], [[1.0], [0.0]], [0.0, 0.0]), strict=True):
            parameter.copy_(torch.tensor(value))
    bound = bounds_of(network, torch.tensor([[middle]]), 1.0, torch.tensor([y]), way="linear")[0, 1 - y]
    assert float(bound) == pytest.approx(least, abs=1e-9)
    assert float(bound) <= least


@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_a_flat_line_below_is_exact_where_the_longer_side_is_steep(leak):
    """The lowest value of the curve on [−0.5, 1.5] is that of its flat piece at −0.5; the steep line says −0.5."""
    network = nn.Sequential(nn.Linear(1, 1), nn.LeakyReLU(leak), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), ([[1.0]], [0.0], [[1.0], [0.0]], [0.0, 0.0]), strict=True):
            parameter.copy_(torch.tensor(value))
    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    steep, flat = (bounds_of(network, x, 1.0, y, way="linear", flat_below=f)[0, 1].item() for f in (False, True))
    assert steep == pytest.approx(-0.5, abs=1e-9)
    assert flat == pytest.approx(-0.5 * leak, abs=1e-9)
    assert flat <= -0.5 * leak


def test_each_choice_of_lines_wins_somewhere_and_none_passes_the_truth():
    """The truth is what mixed-integer programming finds."""
    wins = {"interval": 0, False: 0, True: 0}
    for seed, radius in itertools.product(range(4), (0.1, 0.4)):
        network, y = seeded(dense, nn.ReLU(), dtype=torch.float64, seed=seed), torch.tensor([seed % 3])
        ways = {f: bounds_of(network, INPUT, radius, y, way="linear", flat_below=f)[0] for f in (False, True)}
        ways["interval"] = bounds_of(network, INPUT, radius, y)[0]
        for j in {0, 1, 2} - {seed % 3}:
            bounds = {way: float(margins[j]) for way, margins in ways.items()}
            wins[max(bounds, key=bounds.get)] += 1
            truth = smallest_margin(network, INPUT.flatten(), radius, seed % 3, j)
            assert max(bounds.values()) <= truth + 1e-7
    assert wins[False] > 0
    assert wins[True] > 0
