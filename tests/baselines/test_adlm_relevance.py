"""Relevance propagation against a slow reference that multiplies out every weight."""

import pytest
import torch
from torch import nn

from securesgd.baselines.adlm.relevance import propagate_relevance
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network


def dense_matrix(layer, shape):
    """The layer's linear part as a matrix, one column per input, by feeding unit vectors."""
    size = int(torch.tensor(shape).prod())
    units = torch.eye(size, dtype=torch.float64).view(size, *shape)
    return (layer(units) - layer(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1).T


def slow_relevance(layers, x, epsilon):
    """Equation 58, entry by entry, for one example."""
    seen = [x]
    for layer in layers:
        seen.append(layer(seen[-1][None])[0])
    relevance = seen[-1].flatten()
    for layer, x_in, z in zip(reversed(layers), reversed(seen[:-1]), reversed(seen[1:]), strict=True):
        if isinstance(layer, nn.ReLU | nn.Tanh | nn.Flatten):
            continue
        before, flat, output = torch.zeros(x_in.numel(), dtype=torch.float64), x_in.flatten(), z.flatten()
        if isinstance(layer, nn.MaxPool2d):
            _, winners = nn.functional.max_pool2d(x_in[None], 2, return_indices=True)
            offsets = torch.arange(x_in.shape[0])[:, None, None] * x_in[0].numel()
            for j, i in enumerate((winners[0] + offsets).flatten()):
                before[i] += relevance[j]
        else:
            matrix = dense_matrix(layer, x_in.shape)
            for j in range(len(output)):
                stabilised = output[j] + (epsilon if output[j] >= 0 else -epsilon)
                for i in range(len(flat)):
                    before[i] += flat[i] * matrix[j, i] / stabilised * relevance[j]
        relevance = before
    return relevance.view(x.shape)


def tiny_network(bias=True, activation=nn.ReLU):
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 3, 3, padding=1, bias=bias), activation(), nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 2, stride=2, bias=bias), activation(),
        nn.Flatten(), nn.Linear(2, 4, bias=bias), activation(), nn.Linear(4, 3, bias=bias),
    ]  # fmt: skip
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("epsilon", [1.0, 0.01])
def test_against_the_slow_reference(activation, epsilon):
    model, inputs = tiny_network(activation=activation), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    found = propagate_relevance(model, inputs, epsilon)
    with torch.no_grad():
        for x, relevance in zip(inputs, found, strict=True):
            assert torch.allclose(relevance, slow_relevance(list(model), x, epsilon), atol=1e-12)


def test_relevance_is_conserved_up_to_epsilon_and_bias():
    inputs = torch.randn(5, 2, 4, 4, dtype=torch.float64)
    model = tiny_network(bias=False, activation=nn.Tanh)
    outputs = model(inputs).sum(dim=1)
    exact = propagate_relevance(model, inputs, 1e-12).sum(dim=(1, 2, 3))
    assert torch.allclose(exact, outputs, atol=1e-6)
    absorbed = propagate_relevance(model, inputs, 1.0).sum(dim=(1, 2, 3))
    assert not torch.allclose(absorbed, outputs, atol=1e-3)  # epsilon = 1 keeps a part for itself


def test_a_pixel_that_is_not_used_has_no_relevance():
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).eval()
    with torch.no_grad():
        model[1].weight[:, 4] = 0
    relevance = propagate_relevance(model, torch.rand(6, 1, 3, 3))
    assert relevance.shape == (6, 1, 3, 3)
    assert (relevance[:, 0, 1, 1] == 0).all()
    assert (relevance[:, 0, 0, 0] != 0).all()


@pytest.mark.parametrize("name", ["cifar-cnn", "digits-cnn", "mnist-cnn", "tanh-cnn"])
def test_our_networks_have_rules_throughout(name):
    shape = (3, 20, 20)
    model = network(name, shape, 10, hidden=30).eval()
    before = [p.clone() for p in model.parameters()]
    relevance = propagate_relevance(model, torch.rand(2, *shape))
    assert relevance.shape == (2, *shape)
    assert torch.isfinite(relevance).all()
    assert relevance.abs().sum() > 0
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, model.parameters(), strict=True))


def test_unknown_layers_and_training_mode_are_refused():
    with pytest.raises(InvalidInputError, match="no relevance rule for the layer GELU"):
        propagate_relevance(nn.Sequential(nn.Linear(2, 2), nn.GELU()).eval(), torch.rand(1, 2))
    with pytest.raises(InvalidInputError, match="eval mode"):
        propagate_relevance(nn.Sequential(nn.Linear(2, 2)), torch.rand(1, 2))
