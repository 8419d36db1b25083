"""Training with passes in bfloat16: a setting of the run, resumed with the same bits, refused where it has no use."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import securesgd as ss
from securesgd.errors import InvalidInputError
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.loop import train
from securesgd.training.settings import TrainingSettings
from tests.bfloat16 import needs_bfloat16

SMALL = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 8, "noise_seed": 3, "accountant": "rdp"}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(40, 1, 12, 12, generator=generator), torch.randint(3, (40,), generator=generator)


def settings(precision="bfloat16", **changes):
    return TrainingSettings(**SMALL | {"checkpoint_steps": 3, "precision": precision} | changes)


def weights(trained):
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


@needs_bfloat16
def test_a_resumed_run_has_the_same_bits_which_are_not_those_of_float32(tmp_path):
    whole, cut, exact = model(), model(), model()
    train(whole, images(), settings(), tmp_path / "whole")
    train(exact, images(), settings("float32"), tmp_path / "exact")

    def stop(report):
        if report.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted):
        train(cut, images(), settings(), tmp_path / "cut", on_step=stop)
    with pytest.raises(InvalidInputError, match="settings"):
        train(model(), images(), settings("float32"), tmp_path / "cut", resume=True)
    resumed = model()
    train(resumed, images(), settings(), tmp_path / "cut", resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert not torch.equal(weights(whole), weights(exact))


@needs_bfloat16
def test_a_loop_of_ones_own_takes_the_setting(tmp_path):
    own = model()
    training = ss.PrivateTraining(
        own, torch.optim.SGD(own.parameters(), lr=0.1), images(), out=tmp_path / "run", delta=1e-5, steps=2,
        batch_size=10, noise_multiplier=1.0, precision="bfloat16",
    )  # fmt: skip
    for batch in training.batches():
        training.step(batch, lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"))
    assert training.finish().privacy.accounted_epsilon > 0
    assert 'precision = "bfloat16"' in (tmp_path / "run" / "config.toml").read_text()
    assert {p.dtype for p in own.parameters()} == {torch.float32}


def test_refused_in_one_line():
    with pytest.raises(InvalidInputError, match=r"unknown precision 'bf16': .*bfloat16"):
        settings("bf16")
    with pytest.raises(InvalidInputError, match="valid without privacy: 'float32'"):
        settings(private=False, noise_multiplier=None)
