"""A small network trained on digits, and a run folder made by the real command."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.run_training import train_run


@pytest.fixture(scope="session")
def digits():
    return load_data("digits")


@pytest.fixture(scope="session")
def smoothed_digits(digits):
    """digits-cnn with noise 0.25 on every input pixel, trained for a second: some digits clear, some not."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NoisyNetwork(network("digits-cnn", (1, 8, 8), 10), (1, 8, 8), place="input")
        model.set_noise(np.full(64, 0.25))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(150):
            chosen = torch.randint(len(digits.train_targets), (128,))
            loss = nn.functional.cross_entropy(model(digits.train_inputs[chosen]), digits.train_targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certify") / "run"
    train_run(run_config("digits", "secure-sgd", steps=40, batch_size=300, accountant="rdp", noise_seed=1), folder)
    return folder
