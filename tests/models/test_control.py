"""The running estimate of Δ follows the proven one, and the control keeps it at its target."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.models.control import SensitivityControl
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory import NORMS

LAYERS = {
    "convolution": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 9, 9), "first-layer"),
    "grouped": (lambda: nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2), (2, 6, 7), "first-layer"),
    "linear": (lambda: nn.Linear(20, 11), (20,), "first-layer"),
    "input": (lambda: nn.Linear(20, 3), (20,), "input"),
}


def build(name, learned):
    torch.manual_seed(0)
    layer, shape, place = LAYERS[name]
    model = NoisyNetwork(nn.Sequential(layer()), shape, place=place)
    model.set_noise(np.random.default_rng(0).uniform(0.5, 2, model.units), learned=learned)
    return model


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_estimate_is_close_to_the_proof(name, learned, norm):
    model = build(name, learned)
    proven = model.sensitivity(norm)
    assert proven.lower * 0.97 <= SensitivityControl(model, norm, 1.0).estimate() <= proven.upper * 1.0001


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", LAYERS)
def test_control_reaches_the_target_and_follows_moving_weights(name, norm):
    learned = build(name, learned=True)
    control = SensitivityControl(learned, norm, 3.0)
    torch.manual_seed(2)
    for _ in range(10):
        with torch.no_grad():
            for parameter in learned.noisy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        for _ in range(3):
            control(learned)
    assert learned.sensitivity(norm).upper == pytest.approx(3.0, rel=0.05)
    assert bool((learned.noisy.scale.values > 0).all())


def test_fixed_noise_only_shrinks_the_weights():
    model = build("convolution", learned=False)
    weight = model.noisy.layer.weight.detach().clone()
    loose, tight = model.sensitivity("linf").upper * 2, model.sensitivity("linf").upper / 2
    SensitivityControl(model, "linf", loose)()
    assert torch.equal(weight, model.noisy.layer.weight)
    SensitivityControl(model, "linf", tight)()
    assert model.sensitivity("linf").upper == pytest.approx(tight, rel=0.05)


def test_bad_input():
    model = build("linear", learned=False)
    with pytest.raises(InvalidInputError, match="did you mean 'linf'"):
        SensitivityControl(model, "inf", 1.0)
    with pytest.raises(InvalidInputError, match="wanted sensitivity"):
        SensitivityControl(model, "linf", 0.0)
