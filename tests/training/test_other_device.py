"""Steps, votes and attacks on a device that is not the CPU: all tensors of an operator are there, the numbers agree.

The device is made up (`tests.fake_device`); what a GPU's kernels compute, and whether they repeat their bits, it cannot
tell.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import securesgd as ss
from securesgd.attacks.craft import craft
from securesgd.attacks.settings import ATTACKS, attack_settings
from securesgd.certificates.votes import NoiseSource, Votes
from securesgd.models.split_network import SplitNetwork
from securesgd.training.loop import train
from securesgd.training.private_training import PrivateTraining
from tests.fake_device import DEVICE, FakeTensor, MixedDevicesError, fake_device

from .conftest import small_data, small_model, small_settings

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*copying from a non-meta parameter",  # torch warns, and copies
    "ignore:clipping runs the examples one by one",  # of attention, since vmap does not know such tensors
)
IMAGES = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


class Sentences(nn.Module):
    """Attention over words and their places."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(12, 8), nn.Parameter(torch.zeros(5, 8))
        self.layer, self.out = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(self.words(x) + self.places).mean(1))


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))


def noisy(**options):
    return ss.NoisyNetwork(convolutional(), (1, 8, 8), norm="linf", radius_per_std=0.05, **options)


TOKENS = torch.arange(300).view(60, 5) * 7 % 12, torch.arange(60) % 3
CASES = {
    "dense": (small_model, small_data(), {}),
    "convolutional": (convolutional, IMAGES, {"optimizer": "adam", "ema_decay": 0.9}),
    "noisy": (lambda: noisy(redistribution="learned"), IMAGES, {"copies": 2, "momentum": 0.9}),
    "noisy first layer": (lambda: noisy(place="first-layer"), IMAGES, {"augmentation": "shift"}),
    "attention": (Sentences, TOKENS, {"micro_batch": 8}),
}  # fmt: skip


def built(make):
    torch.manual_seed(0)
    return make()


def values(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", CASES)
def test_a_training_has_all_its_tensors_on_the_device_of_the_model(tmp_path, name):
    make, data, changes = CASES[name]
    here, there, settings = built(make), built(make), small_settings(steps=4, **changes)
    train(here, data, settings, tmp_path / "here")
    with fake_device() as device:
        there = there.to(device)
        train(there, data, settings, tmp_path / "there")
        assert all(isinstance(p.data, FakeTensor) for p in there.parameters())
        assert (values(there) - values(here)).abs().max() < 1e-4


def test_an_own_loop_is_stopped_and_resumed_there(tmp_path):
    def run(model, folder, until, *, resume=False):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        training = PrivateTraining(model, small_data(), small_settings(), folder, optimizer=optimizer, resume=resume)
        for batch in training.batches():
            training.step(batch.replace(inputs=batch.inputs * 1.5))
            if training.step_number == until:
                training.close()
                return
        training.finish()

    with fake_device() as device:
        whole, killed, resumed = (small_model().to(device) for _ in range(3))
        run(whole, tmp_path / "whole", 20)
        run(killed, tmp_path / "killed", 7)
        run(resumed, tmp_path / "killed", 20, resume=True)
        assert torch.equal(values(whole), values(resumed))


@pytest.mark.parametrize("place", ["input", "first-layer"])
def test_votes_are_those_of_the_cpu(monkeypatch, place):
    monkeypatch.setattr(Votes, "_count", Votes._count.__wrapped__)  # in inference mode, tensors have no own classes
    found = []

    def votes(model, images):
        counted = Votes(SplitNetwork(model), images, np.arange(4), source=NoiseSource.from_seed(1), purpose="counted")
        found.append(counted.draw(np.arange(4), 60))

    votes(built(lambda: noisy(place=place)).eval(), IMAGES[0][:4])
    with fake_device() as device:
        votes(built(lambda: noisy(place=place)).eval().to(device), IMAGES[0][:4].to(device))
    assert found[0].sum() == 240
    assert np.abs(found[0] - found[1]).max() <= 1, "up to a draw that rounding tips"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_stay_there(attack):
    model = built(noisy).eval()
    quick = {"steps": 3, "queries": 4, "restarts": 1, "eot": 2}
    valid = {name: value for name, value in quick.items() if hasattr(attack_settings(attack, 0.1), name)}
    with fake_device() as device:
        images, labels = (t[:6].to(device) for t in IMAGES)
        crafted = craft(model.to(device), images, labels, attack_settings(attack, 0.1, **valid)).images
        assert (crafted.cpu() - images.cpu()).abs().max() <= 0.1 + 1e-6


def test_the_device_notices_a_tensor_that_was_left_behind():
    with fake_device() as device:
        model = nn.Linear(3, 2).to(device)
        assert model.weight.device == DEVICE
        with pytest.raises(MixedDevicesError, match=r"shape \[4, 3\] from the CPU"):
            model(torch.ones(4, 3))
        with pytest.raises(MixedDevicesError):
            functional.cross_entropy(model(torch.ones(4, 3).to(device)), torch.zeros(4, dtype=torch.long))
        with pytest.raises(RuntimeError, match="not supported"):
            model.weight.detach().numpy()
        assert torch.equal((model(torch.ones(1, 3, device=device)) * 2).cpu() / 2, model.cpu()(torch.ones(1, 3)))
