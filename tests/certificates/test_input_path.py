"""Networks that do something else with their input than the certificate says: each was certified and flipped once.

All have a first layer that is linear and noisy. What differs is what the layer gets, or what else sees the input.
"""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.verify import verify
from securesgd.errors import InvalidInputError
from securesgd.models.input_path import TRACED
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork
from tests.certificates.input_path_networks import (
    ByBatch,
    ByEqual,
    ByGradMode,
    ByItem,
    ByList,
    ByNumpy,
    ByThread,
    ByWhere,
    Clamped,
    Counting,
    FrugalByMode,
    Hidden,
    InPlace,
    Inverted,
    Kept,
    Later,
    Laundered,
    Listing,
    Net,
    Scaled,
    Swallowed,
    Thresholded,
    Unwrapped,
)

QUICK = CertifySettings(norm="linf", draws=100, selection_draws=32)


SEEN = [
    Scaled, Inverted, ByItem, ByList, ByNumpy, ByEqual, ByWhere, Clamped, Laundered, Unwrapped, ByThread, InPlace, Kept,
    Swallowed, ByGradMode, FrugalByMode, ByBatch,
]  # fmt: skip


@pytest.mark.parametrize("kind", SEEN)
def test_what_is_done_with_the_input_is_seen_on_construction(kind):
    with pytest.raises(InvalidInputError, match=r"besides the first layer|does not get the whole input") as caught:
        NoisyNetwork(kind(), (6,), place="first-layer")
    assert "\n" not in str(caught.value)


def unchanged(model):
    pass


def switched(model):
    model.network.on = True


def thresholded(model):
    model.network.threshold = 0.5


def hooked(model):
    model.network.register_forward_pre_hook(lambda module, args: (args[0] / 2,))


def layer_hooked(model):
    model.noisy.layer.register_forward_hook(lambda module, args, output: 10 * output)


def layer_replaced(model):
    model.noisy.layer.forward = lambda x: 10 * nn.functional.linear(x, model.noisy.layer.weight)


def noise_replaced(model):
    model.noisy.noise.forward = lambda x: x


def clean_replaced(model):
    model.noisy.clean = lambda x: x


def noisy_hooked(model):
    model.noisy.register_forward_pre_hook(lambda module, args: (args[0] / 2,))


def parametrized(model):
    nn.utils.parametrizations.weight_norm(model.noisy.layer)


def forwarded(model):
    whole = model.network.forward
    model.network.forward = lambda x: whole(x / 2)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Later, switched), (Thresholded, thresholded), (Counting, unchanged), (Listing, unchanged), (Net, hooked),
        (Net, layer_hooked), (Net, layer_replaced), (Net, noise_replaced), (Net, clean_replaced), (Net, noisy_hooked),
        (Net, parametrized), (Net, forwarded),
    ],
    ids=lambda part: part.__name__,
)  # fmt: skip
def test_what_changes_after_construction_is_seen_at_certification(kind, change):
    built = Later if kind is Thresholded else kind  # constructed without its branch
    model = NoisyNetwork(built(), (6,), place="first-layer").eval()
    if kind is Thresholded:
        model.network.__class__, model.network.threshold = Thresholded, float("nan")
    change(model)
    with pytest.raises(InvalidInputError) as caught:
        certify(model, torch.full((1, 6), 0.75), QUICK)
    assert "\n" not in str(caught.value)


def test_what_hides_from_torch_is_compared_at_the_certified_inputs():
    """Where the hidden branch is not taken nothing shows; where it is, or is within reach, it is refused."""

    class HiddenBranch(Hidden):
        def prepare(self, x):
            return 1 - x if super().prepare(x) is not x else x

    model = NoisyNetwork(HiddenBranch(), (6,), place="first-layer").eval()
    model.set_noise(np.full(8, 0.2))
    assert len(certify(model, torch.full((1, 6), 0.25), QUICK)) == 1
    for first in (0.95, 0.9):  # at 0.9 the branch is not taken, but a move of a certified radius takes it
        with pytest.raises(InvalidInputError, match="does not get the whole input"):
            certify(model, torch.tensor([[first, 0.5, 0.5, 0.5, 0.5, 0.5]]), QUICK)


def test_one_pixel_moved_by_a_thousandth_no_longer_flips_a_certificate():
    """A bright picture is inverted: the certificate was .03, and a pixel moved by .001 broke it."""

    class AutoInverted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 2)
            with torch.no_grad():
                self.first.weight.copy_(torch.stack([torch.ones(16), -torch.ones(16)]))
                self.first.bias.copy_(torch.tensor([-7.0, 7.0]))

        def forward(self, x):
            return self.first(1 - x if x.mean() > 0.5 else x)

    x = torch.full((16,), 0.5)
    with pytest.raises(InvalidInputError, match=r"besides the first layer|does not get the whole input"):
        verify(NoisyNetwork(AutoInverted(), (16,), place="first-layer").eval(), x, 0.01)


class Block(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, s, padding=1) for s in (stride, 1))
        self.norm, self.short = nn.GroupNorm(2, width), nn.Conv2d(width, width, 1, stride)

    def forward(self, h):
        return torch.relu(self.norm(self.second(torch.relu(self.first(h)))) + self.short(h))


class ResNet(nn.Module):
    """With checks of shape and type, a memory layout of its own, a cache, and torch.where after the noise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = nn.Conv2d(1, 4, 3, padding=1), nn.Sequential(Block(4, 2), Block(4, 2))
        self.head, self.cache = nn.Linear(4, 3), None

    def forward(self, x):
        assert x.dim() == 4
        if x.dtype != torch.float32 or x.shape[-1] != 8 or len(x) == 0:
            raise ValueError(f"an input of {x.shape} is not ours")
        if self.cache is None:
            self.cache = torch.arange(3.0)
        h = self.stem(x.contiguous(memory_format=torch.channels_last).to(torch.float32))
        h = self.body(torch.where(h > 0, h, 0.1 * h))
        return self.head(h.mean((2, 3))) + self.cache


def test_a_resnet_is_traced_and_certified():
    model = NoisyNetwork(ResNet(), (1, 8, 8), place="first-layer").eval()
    assert model.input_path == TRACED
    found = certify(model, torch.rand(3, 1, 8, 8), QUICK)
    assert found.input_path == TRACED


class Undecided(nn.Module):
    """Branches in Python after the noise, on the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = self.first(x)
        return self.last(h) if h.max() > 2 else self.last(-h)


def test_a_branch_after_the_noise_is_taken_draw_by_draw():
    """A branch decides for a whole batch; votes of a batch would be those of another classifier."""
    torch.manual_seed(0)
    model = NoisyNetwork(Undecided(), (6,), place="first-layer").eval()
    network, x = SplitNetwork(model), torch.rand(1, 6)
    h = network.clean(x) + torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alone = []
        for row in h.split(1):
            with model.from_layer(row):
                alone.append(model(x))
        together = network.outputs(h)
        with model.from_layer(h):
            batch = model(x.expand(64, 6))
    torch.testing.assert_close(together, torch.cat(alone))
    assert not torch.allclose(batch, together)  # the test would see it


def test_a_branch_behind_noise_at_the_input_is_not_cut_away():
    """Noisy inputs leave [0, 1): a network that scales those must not be cut after its first layer."""
    model = NoisyNetwork(Scaled(), (6,), place="input").eval()
    assert SplitNetwork(model).shape == (6,)
    assert len(certify(model, torch.full((1, 6), 0.5), QUICK)) == 1


class Odd(Net):
    """Does not run while it is watched; harmless."""

    def prepare(self, x):
        if torch.overrides._get_current_function_mode() is not None:
            raise TypeError("not in this mode")
        return x


class OddScaled(Odd):
    def prepare(self, x):
        x = super().prepare(x)
        return x / 255 if x.max() > 1 else x


class OddAround(Odd):
    def forward(self, x):
        return super().forward(x) + (x[:, :1] > 0.5).float()


@pytest.mark.parametrize(
    ("kind", "message"), [(OddScaled, "does not get the whole input"), (OddAround, "its output changes with the input")]
)
def test_a_network_that_cannot_be_traced_is_refused_by_comparison(kind, message):
    with pytest.raises(InvalidInputError, match=message):
        NoisyNetwork(kind(), (6,), place="first-layer")


def test_a_network_that_cannot_be_traced_is_not_cut_behind_noise_at_the_input():
    """Noisy inputs lie anywhere, and comparing is about the inputs that were compared."""
    assert SplitNetwork(NoisyNetwork(Net(), (6,), place="input").eval()).shape == (8,)
    assert SplitNetwork(NoisyNetwork(Odd(), (6,), place="input").eval()).shape == (6,)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_mode_of_the_caller_does_not_matter(mode):
    model = NoisyNetwork(Net(), (6,), place="first-layer").eval()
    with mode():
        x = torch.full((2, 6), 0.5, requires_grad=mode is torch.enable_grad)
        assert certify(model, x, QUICK).input_path == TRACED
        assert certify(model, x.double(), QUICK).input_path == TRACED


def test_a_network_that_cannot_be_traced_is_compared_and_the_record_says_so():
    model = NoisyNetwork(Odd(), (6,), place="first-layer").eval()
    found = certify(model, torch.full((1, 6), 0.5), QUICK)
    assert found.input_path != TRACED
    assert "TypeError" in found.input_path
