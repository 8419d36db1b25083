"""A small model and data set for the tests of the training loop."""

import socket

import pytest
import torch
from torch import nn

from securesgd.training.settings import TrainingSettings


def small_model(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


def small_data(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def small_settings(**changes):
    base = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 12, "steps": 20, "noise_seed": 3, "accountant": "rdp"}
    return TrainingSettings(**base | {"block_steps": 5, "checkpoint_steps": 4} | changes)


def no_step(report):
    """A callback of a run that is to end without another step."""
    raise AssertionError(f"step {report.step} was run")


@pytest.fixture
def weights():
    """The trained weights of a model as one vector."""
    return lambda model: torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture
def free_port():
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
