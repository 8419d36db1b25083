"""Radii: proven where returned, never above the truth, no attack and no random point inside them succeeds."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.certificates.interval.radius import interval_radii, proven_at
from securesgd.errors import InvalidInputError
from tests.certificates.interval_networks import pooled, seeded, smallest_margin


def trained(layers, x, y, steps=150, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(*layers()).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network.to(dtype).eval()


@pytest.fixture(scope="module")
def plane():
    """Points of the unit square and whether they are near its middle."""
    x = torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
    return x, ((x - 0.5).norm(dim=1) < 0.3).long()


@pytest.fixture(scope="module")
def small(plane):
    return trained(lambda: [nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)], *plane)


@pytest.fixture(scope="module")
def image_network(digits):
    def layers():
        body = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten()]
        return [*body, nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)]

    return trained(layers, digits.train_inputs, digits.train_targets, steps=60)


@pytest.fixture(scope="module")
def image_radii(image_network, digits):
    return interval_radii(image_network, digits.test_inputs[:100])


def test_radii_are_below_the_true_ones(small, plane):
    """The true radius is the first at which mixed-integer programming finds another class."""
    x = plane[0][:12]
    radii = interval_radii(small, x, input_range=None)
    best = np.maximum(radii.interval, radii.linear)
    assert (best > 0).mean() > 0.7
    for point, y, radius in zip(x, radii.prediction, best, strict=True):
        assert smallest_margin(small, point, radius, y, 1 - y) > -1e-9
        assert smallest_margin(small, point, 4 * radius + 0.05, y, 1 - y) < 0  # not far below it either


def test_the_bound_proves_the_radius_and_not_the_next(image_network, image_radii, digits):
    x, radii = digits.test_inputs[:100], image_radii
    best = np.maximum(radii.interval, radii.linear)
    assert (radii.interval > 0).mean() > 0.5
    assert (
        proven_at(image_network, x, radii.prediction, radii.interval, bounds="interval") | (radii.interval == 0)
    ).all()
    assert (proven_at(image_network, x, radii.prediction, best) | (best == 0)).all()
    beyond = proven_at(image_network, x, radii.prediction, radii.interval + 2e-4, bounds="interval")
    assert not beyond[radii.interval < 1].any()
    assert not proven_at(image_network, x, (radii.prediction + 1) % 10, 0.0).any()
    with torch.no_grad():
        assert (radii.prediction == image_network(x).argmax(1).numpy()).all()


def test_linear_bounds_prove_more_on_a_trained_network(image_radii):
    assert (image_radii.linear > image_radii.interval).mean() > 0.5
    assert np.median(image_radii.linear) > 1.5 * np.median(image_radii.interval[image_radii.interval > 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_random_point_and_no_attack_inside_the_radius_succeeds(image_network, image_radii, digits, dtype):
    network, x = copy.deepcopy(image_network).to(dtype), digits.test_inputs[:100]
    radii = image_radii if dtype == torch.float32 else interval_radii(network, x[:20])
    best, count = np.maximum(radii.interval, radii.linear), len(radii.interval)
    x, y = x[:count].double(), torch.from_numpy(radii.prediction)
    reach = torch.from_numpy(best).reshape(-1, 1, 1, 1)
    generator = torch.Generator().manual_seed(0)
    changed = 0
    with torch.no_grad():
        for turn in range(100_000 // 100 if dtype == torch.float32 else 200):
            noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
            points = (x + reach * (noise.sign() if turn % 2 else noise)).clamp(0, 1)
            changed += int((network(points.to(dtype)).argmax(1) != y)[reach.flatten() > 0].sum())
    for _start in range(10):  # projected gradients of the margin from ten starts
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
        points = (x + reach * noise).clamp(0, 1)
        for _ in range(20):
            points.requires_grad_()
            scores = network(points.to(dtype))
            own = scores.gather(1, y[:, None])[:, 0]
            rival = scores.scatter(1, y[:, None], -torch.inf).amax(1)
            (gradient,) = torch.autograd.grad((own - rival).sum(), points)
            points = points.detach() - 0.3 * reach * gradient.sign()
            points = torch.minimum(torch.maximum(points, x - reach), x + reach).clamp(0, 1)
        with torch.no_grad():
            changed += int((network(points.to(dtype)).argmax(1) != y)[reach.flatten() > 0].sum())
    assert changed == 0


def test_a_box_of_its_own_for_each_example(small, plane):
    """Half the half-widths: twice the radius; a row per example counts as its own."""
    x = plane[0][:20]
    whole = interval_radii(small, x, input_range=None, largest=4.0)
    widths = torch.full((20, 2), 0.5, dtype=torch.float64)
    widths[10:] = 0.25
    narrow = interval_radii(small, x, input_range=None, largest=4.0, box=widths)
    factor = np.where(np.arange(20) < 10, 2, 4)
    np.testing.assert_allclose(narrow.interval, factor * whole.interval, atol=5e-4)
    np.testing.assert_allclose(
        interval_radii(small, x, input_range=None, largest=4.0, box=widths[0]).interval, 2 * whole.interval, atol=3e-4
    )
    nothing = interval_radii(small, x, input_range=None, box=torch.zeros(2))
    assert set(nothing.interval) <= {0.0, 1.0}
    assert (nothing.interval == 1.0).any()


def test_the_range_cuts_the_box():
    """At the edge of the range one side of the box is outside of it."""
    network = nn.Linear(1, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        network.bias.copy_(torch.tensor([-0.1, 0.0]))
    x = torch.tensor([[0.0]])
    assert interval_radii(network, x).interval[0] == 1.0
    free = interval_radii(network, x, input_range=None)
    assert free.interval[0] == pytest.approx(0.05, abs=2e-4)
    assert free.prediction[0] == 1


def test_ties_and_nan_prove_nothing():
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.fill_(1.0)
        network.bias.fill_(0.0)
    assert interval_radii(network, torch.rand(3, 2)).interval.max() == 0
    with torch.no_grad():
        network.bias.copy_(torch.tensor([torch.nan, 1.0]))
    with pytest.raises(InvalidInputError):
        interval_radii(network, torch.rand(3, 2))


def test_radii_are_multiples_of_the_tolerance_and_capped(small, plane):
    coarse = interval_radii(small, plane[0][:50], tolerance=0.01, largest=0.1)
    for radii in (coarse.interval, coarse.linear):
        np.testing.assert_allclose(radii, np.rint(radii / 0.01) * 0.01)
        assert radii.max() <= 0.1
    assert coarse.linear.max() == 0.1


def test_an_example_alone_has_the_radius_it_has_among_others(image_network, image_radii, digits):
    alone = [interval_radii(image_network, x[None]) for x in digits.test_inputs[:4]]
    assert [r.interval[0] for r in alone] == list(image_radii.interval[:4])
    assert [r.linear[0] for r in alone] == list(image_radii.linear[:4])


def test_networks_without_linear_bounds_have_boxes_only():
    x = torch.rand(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    told = []
    radii = interval_radii(seeded(pooled, nn.ELU()), x, on_progress=told.append)
    assert (radii.linear == 0).all()
    assert (radii.interval > 0).any()
    assert told == [5]
    assert (interval_radii(seeded(pooled, nn.Tanh()), x, bounds="interval").linear == 0).all()
    assert (interval_radii(seeded(pooled, nn.Tanh()), x).linear > 0).any()


def test_no_examples():
    assert interval_radii(nn.Linear(2, 2), torch.zeros(0, 2)).interval.shape == (0,)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (torch.tensor([[0.5, 1.5]]), {}, "range"),
        (torch.tensor([[0.5, torch.nan]]), {}, "not finite"),
        (torch.tensor([[1, 0]]), {}, "floating-point"),
        (torch.rand(3, 2), {"input_range": (1.0, 0.0)}, "smaller first"),
        (torch.rand(3, 2), {"box": torch.ones(3)}, r"box has shape \[3\]"),
        (torch.rand(3, 2), {"box": -torch.ones(2)}, "negative"),
        (torch.rand(3, 2), {"tolerance": 0.0}, "tolerance"),
        (torch.rand(3, 2), {"tolerance": 2.0}, "at most largest"),
        (torch.rand(3, 2), {"bounds": "linear"}, "unknown bounds"),
    ],
)
def test_what_is_not_valid_is_refused(inputs, options, message):
    with pytest.raises(InvalidInputError, match=message):
        interval_radii(nn.Linear(2, 2), inputs, **options)


@pytest.mark.parametrize(
    ("prediction", "radius", "message"),
    [
        ([0, 1], 0.1, "prediction"),
        ([0, 1, 2], 0.1, "prediction"),
        ([0, 1, 1], -1.0, "radius"),
        ([0, 1, 1], [0.1], "radius has shape"),
    ],
)
def test_proven_at_refuses(prediction, radius, message):
    with pytest.raises(InvalidInputError, match=message):
        proven_at(nn.Linear(2, 2), torch.rand(3, 2), prediction, radius)
