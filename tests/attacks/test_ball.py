import pytest
import torch

from securesgd.attacks.ball import Ball, sizes
from securesgd.errors import InvalidInputError

NORMS = ["linf", "l2", "l1"]


def generator():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def centres():
    return torch.rand(50, 1, 8, 8, generator=generator())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.05, 0.3, 2.0])
def test_projected_points_are_in_the_ball_and_the_box(centres, norm, radius):
    ball = Ball.around(centres, radius, norm)
    far = centres + 3 * torch.randn(centres.shape, generator=generator())
    for points in (ball.project(far), ball.random(generator()), ball.project(centres + ball.step(far, 5.0))):
        assert bool((sizes(points - centres, norm) <= radius * (1 + 1e-5)).all())
        assert bool(((points >= 0) & (points <= 1)).all())


@pytest.mark.parametrize("norm", NORMS)
def test_projection_reaches_the_edge_and_leaves_inner_points_alone(norm):
    centres = torch.full((50, 1, 8, 8), 0.5)  # far enough from the box that only the ball limits
    direction = torch.randn(centres.shape, generator=generator())
    ball = Ball.around(centres, 0.2, norm)
    edge = sizes(ball.project(centres + 10 * direction) - centres, norm)
    torch.testing.assert_close(edge, torch.full_like(edge, 0.2), rtol=1e-5, atol=0)
    inner = centres + direction * (0.19 / sizes(direction, norm).float())[:, None, None, None]
    torch.testing.assert_close(ball.project(inner), inner, rtol=0, atol=1e-6)


def test_linf_projection_is_the_nearest_point(centres):
    ball = Ball.around(centres, 0.1, "linf")
    far = centres + torch.randn(centres.shape, generator=generator())
    expected = torch.minimum(torch.maximum(far, centres - 0.1), centres + 0.1).clamp(0, 1)
    torch.testing.assert_close(ball.project(far), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_a_step_gains_as_much_as_any_step_of_its_size(centres, norm):
    ball = Ball.around(centres, 0.3, norm, box=None)
    gradient = torch.randn(centres.shape, generator=generator())
    step = ball.step(gradient, 0.5)
    torch.testing.assert_close(sizes(step, norm), torch.full((50,), 0.15, dtype=torch.float64), rtol=1e-5, atol=0)
    dual = {"linf": "l1", "l2": "l2", "l1": "linf"}[norm]
    gain = (step * gradient).flatten(1).sum(1).double()
    torch.testing.assert_close(gain, 0.15 * sizes(gradient, dual), rtol=1e-4, atol=0)


def test_radii_may_differ_by_example(centres):
    radius = torch.linspace(0.01, 0.4, 50)
    ball = Ball(centre=centres, radius=radius, norm="l2", box=None)
    lengths = sizes(ball.project(centres + 9) - centres, "l2")
    torch.testing.assert_close(lengths, radius.double(), rtol=1e-4, atol=0)
    rows = torch.tensor([3, 40])
    torch.testing.assert_close(ball.take(rows).radius, radius[rows])


def test_random_l2_points_are_uniform_in_volume():
    ball = Ball.around(torch.zeros(4000, 2), 1.0, "l2", box=None)
    inside = (sizes(ball.random(generator()), "l2") < 0.5**0.5).float().mean()
    assert abs(float(inside) - 0.5) < 0.04  # five standard deviations


def test_an_unknown_norm_is_named(centres):
    with pytest.raises(InvalidInputError, match="did you mean 'linf'"):
        Ball.around(centres, 0.1, "lin")
