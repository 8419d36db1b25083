"""The averaged gradient beside a slow, obvious one, and what a look shows."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from securesgd.attacks.losses import LOSSES
from securesgd.attacks.objective import CONFIRM_DRAWS, Objective
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork


@pytest.mark.parametrize("place", ["input", "first-layer"])
def test_the_gradient_is_the_mean_over_the_draws(images, place):
    torch.manual_seed(2)
    model = NoisyNetwork(network("digits-cnn", (1, 8, 8), 10), (1, 8, 8), place=place)
    model.set_noise(np.linspace(0.1, 0.6, model.units))
    model.eval()
    x, labels = images[0][:7], images[1][:7]
    objective = Objective(model, "cross-entropy", 6, torch.Generator().manual_seed(1), rows=30)  # two parts
    normals = torch.randn(6, *model.output_shape, generator=torch.Generator().manual_seed(1))
    objective.fix_noise()
    values = objective.evaluate(x, labels)
    leaf = x.clone().requires_grad_()
    logits = []
    for draw in normals:  # one draw at a time, through the model itself
        noisy_output = model.noisy.clean(leaf) + model.noisy.noise.std * draw
        with model.from_layer(noisy_output):
            logits.append(model(x))
    loss = torch.stack([functional.cross_entropy(one, labels, reduction="none") for one in logits]).mean(0)
    (expected,) = torch.autograd.grad(loss.sum(), leaf)
    torch.testing.assert_close(values.gradient, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(values.loss, loss.detach(), rtol=1e-4, atol=1e-5)
    votes = torch.stack([functional.one_hot(one.argmax(1), 10) for one in logits]).sum(0)
    assert torch.equal(values.votes, votes)


def test_draws_are_fresh_at_every_look_unless_fixed(noisy, images):
    x, labels = images[0][:5], images[1][:5]
    objective = Objective(noisy, "cross-entropy", 3, torch.Generator().manual_seed(1))
    assert not torch.equal(objective.evaluate(x, labels).loss, objective.evaluate(x, labels).loss)
    objective.fix_noise()
    assert torch.equal(objective.evaluate(x, labels).loss, objective.evaluate(x, labels).loss)
    assert int(objective.confirm(x, labels).votes.sum()) == 5 * CONFIRM_DRAWS


def test_no_draws_is_the_network_without_its_noise(noisy, images):
    x, labels = images[0][:5], images[1][:5]
    values = Objective(noisy, "cross-entropy", 0, torch.Generator()).evaluate(x, labels)
    with noisy.from_layer(noisy.noisy.clean(x)), torch.no_grad():
        expected = functional.cross_entropy(noisy(x), labels, reduction="none")
    torch.testing.assert_close(values.loss, expected, rtol=1e-4, atol=1e-5)


def test_a_targeted_objective_is_turned_round(plain, images):
    away, towards = (
        Objective(plain, "margin", 1, torch.Generator(), targeted=t).evaluate(*images) for t in (False, True)
    )
    torch.testing.assert_close(away.loss, -towards.loss)
    torch.testing.assert_close(away.gradient, -towards.gradient)
    torch.testing.assert_close(away.margin, -towards.margin)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_loss_rises_as_the_label_falls(loss):
    labels = torch.zeros(4, dtype=torch.long)
    logits = torch.zeros(3, 4, 5)
    logits[:, :, 0] = torch.tensor([6.0, 2.0, -2.0, -6.0])
    logits[:, :, 1] = 1.0
    value = LOSSES[loss](logits, labels)
    assert bool((value.diff() > 0).all()) or loss == "dlr"
    assert bool((value[:2] < value[2:]).all())


def test_smoothed_loss_is_that_of_the_averaged_classifier():
    logits = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, 1])
    mean = logits.softmax(2).mean(0).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(LOSSES["smoothed"](logits, labels), -mean.log())
