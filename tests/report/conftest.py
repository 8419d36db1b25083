"""Two run folders with everything in them: of a built-in network, and of a network and data of the caller's own."""

import pytest
from torch import nn

import securesgd as ss
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.run_training import train_run
from tests.command_line import run_here


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A small run, certified and attacked."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train_run(
        run_config("digits", "secure-sgd", steps=20, batch_size=128, copies=1, noise_seed=3, accountant="rdp"), folder
    )
    for command in (
        ["certify", folder, "--norm", "linf,l2", "--draws", "200", "--examples", "20"],
        [
            "attack",
            folder,
            "--attack",
            "fgsm",
            "--budget",
            "0.05",
            "--examples",
            "10",
            "--eot",
            "2",
            "--draws",
            "50",
            "--certify-draws",
            "100",
            "--no-probes",
        ],
    ):
        done = run_here(*map(str, command))
        assert done.returncode in (0, 1), done.stderr
    return folder


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """A network and data that only the caller has, and no test set at training."""
    folder, data = tmp_path_factory.mktemp("own") / "mine", load_data("digits")
    model = ss.NoisyNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), radius_per_std=0.05)
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 64, "steps": 3, "accountant": "rdp"}
    run = ss.train(model, (data.train_inputs, data.train_targets), out=folder, **settings)
    test_set = (data.test_inputs, data.test_targets)
    run.certify(test_set, examples=6, draws=60, selection_draws=10)
    run.attack(test_set, "fgsm", budget=0.05, examples=4, eot=2, draws=20, certify_draws=20, sanity_checks=False)
    return folder
