"""The step rules on gradients chosen by hand."""

import pytest
import torch

from securesgd.attacks.ball import Ball
from securesgd.attacks.objective import ObjectiveValues
from securesgd.attacks.projected_gradient import AdaptiveStep, FixedStep

ROWS = torch.tensor([0])


def look(gradient, loss=0.0):
    nothing = torch.zeros(1)
    return ObjectiveValues(
        loss=torch.tensor([loss]), margin=nothing, won=nothing > 0, votes=nothing, probabilities=nothing,
        gradient=torch.tensor([gradient]),
    )  # fmt: skip


def test_momentum_adds_up_gradients_of_mean_size_one():
    # Dong et al., Eq. 6: g1 = (2, 1)/1.5, g2 = momentum·g1 + (-1, 3)/2. The first pixel keeps its direction.
    ball = Ball.around(torch.full((1, 2), 0.5), 0.2, "linf")
    rule = FixedStep(0.25, 1.0, ball.centre)
    x = rule(ROWS, ball.centre, ball, look([2.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([[0.55, 0.55]]))
    x = rule(ROWS, x, ball, look([-1.0, 3.0]))
    torch.testing.assert_close(x, torch.tensor([[0.60, 0.60]]))
    torch.testing.assert_close(rule.sum, torch.tensor([[2 / 1.5 - 0.5, 1 / 1.5 + 1.5]]))
    plain = FixedStep(0.25, 0.0, ball.centre)
    torch.testing.assert_close(plain(ROWS, x, ball, look([-1.0, 3.0])), torch.tensor([[0.55, 0.65]]))


def test_a_zero_gradient_is_no_step_and_no_nan():
    ball = Ball.around(torch.full((1, 2), 0.5), 0.2, "l2")
    for rule in (FixedStep(0.25, 1.0, ball.centre), AdaptiveStep(10, ball.centre)):
        assert torch.equal(rule(ROWS, ball.centre, ball, look([0.0, 0.0])), ball.centre)


@pytest.mark.parametrize(("losses", "halved"), [([0.0] * 12, True), (list(range(12)), False)])
def test_the_adaptive_step_halves_only_where_the_loss_stops_rising(losses, halved):
    ball = Ball.around(torch.full((1, 2), 0.5), 0.2, "linf")
    rule, x = AdaptiveStep(12, ball.centre), ball.centre
    for loss in losses:
        x = rule(ROWS, x, ball, look([1.0, -1.0], float(loss)))
    assert (float(rule.length) < 2) is halved
