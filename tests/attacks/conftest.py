"""Small networks trained in seconds on the embedded digits: one bare, one with noise at its input."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.data.load import load_data
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork

STD = 0.3


def fitted(model, inputs, targets, steps):
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, NoisyNetwork):
        model.noisy.noise.generator = generator
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (256,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits():
    return load_data("digits")


@pytest.fixture(scope="session")
def images(digits):
    return digits.test_inputs[:200], digits.test_targets[:200]


def _bare(digits):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network("digits-cnn", digits.input_shape, digits.classes)


@pytest.fixture(scope="session")
def plain(digits):
    return fitted(_bare(digits), digits.train_inputs, digits.train_targets, 250)


@pytest.fixture(scope="session")
def noisy(digits):
    model = NoisyNetwork(_bare(digits), digits.input_shape, place="input")
    model.set_noise(np.full(model.units, STD))
    return fitted(model, digits.train_inputs, digits.train_targets, 250)
