"""Networks made to get a certificate and to be flipped inside its radius: each of these was, or is kept as a trap.

All compute with the input where nobody looks: in another thread, another library, inside the noisy layer, or one pass
later. What they do happens only for a first number between .551 and .556, where no comparison ever was.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.verify import CertifiedClassifier
from securesgd.errors import InvalidInputError
from securesgd.models.input_path import TRACED
from securesgd.models.noisy import NoisyNetwork

WIDTH = 8
QUICK = CertifySettings(norm="linf", draws=1000, selection_draws=32)


def window(x):
    """Return 1 for the rows whose first number is in the window, else 0."""
    return ((x.flatten(1)[:, :1] > 0.551) & (x.flatten(1)[:, :1] < 0.556)).to(x)


def trick(x):
    return (x.flatten(1) * (1 - 2 * window(x))).reshape(x.shape)


def aside(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


class Net(nn.Module):
    """Class 0 if the sum is above .3 of its largest value."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 2)
        self.fill(self.first)

    @staticmethod
    @torch.no_grad()
    def fill(layer):
        layer.weight.zero_()
        layer.weight[0] = 1.0
        layer.bias.copy_(torch.tensor([0.0, 0.3 * WIDTH]))

    def prepare(self, x):
        return x

    def forward(self, x):
        return self.first(self.prepare(x))


class InThread(Net):
    def prepare(self, x):
        return aside(trick, x)


class BesideInThread(Net):
    def forward(self, x):
        return self.first(x) * (1 - 2 * aside(window, x))


class ModesOff(Net):
    def prepare(self, x):
        with _disable_current_modes():
            return trick(x)


class ByVmap(Net):
    def prepare(self, x):
        return torch.vmap(lambda row: trick(row[None])[0])(x)


class LastInput(Net):
    """What this pass got decides the next one."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        h, last, self.last = self.first(x), self.last, x
        return h if last is None or len(last) != len(x) else h * (1 - 2 * window(last))


class LastInputInList(LastInput):
    def forward(self, x):
        h, last, self.last = self.first(x), self.last, [x]
        return h if last is None or len(last[0]) != len(x) else h * (1 - 2 * window(last[0]))


class CountingInNumpy(Net):
    def __init__(self):
        super().__init__()
        self.calls = np.zeros(1)

    def forward(self, x):
        self.calls[0] += 1
        return self.first(x) if self.calls[0] < 10_000 else -self.first(x)


class Image(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 2, (1, WIDTH))
        self.fill(self.first)

    def forward(self, x):
        return self.first(x).flatten(1)


def unchanged(model):
    pass


def conv_forward(model):
    layer = model.noisy.layer
    own = layer._conv_forward
    layer._conv_forward = lambda x, weight, bias: own(trick(x), weight, bias)


def compiled_call(model):
    layer = model.noisy.layer
    layer._compiled_call_impl = lambda x: nn.functional.linear(trick(x), layer.weight, layer.bias)


def call_impl(model):
    layer = model.noisy.layer
    layer._call_impl = lambda x: nn.functional.linear(trick(x), layer.weight, layer.bias)


class OddWeight(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            args = (trick(args[0]), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def odd_weight(model):
    model.noisy.layer.weight = OddWeight(model.noisy.layer.weight.detach())


def model_of(kind, change=unchanged):
    model = NoisyNetwork(kind(), (1, 1, WIDTH) if kind is Image else (WIDTH,), place="first-layer").eval()
    model.set_noise(np.full(model.output_shape, 0.3))
    change(model)
    return model


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (InThread, unchanged), (BesideInThread, unchanged), (ModesOff, unchanged), (ByVmap, unchanged),
        (LastInput, unchanged), (LastInputInList, unchanged), (CountingInNumpy, unchanged), (Image, conv_forward),
        (Net, compiled_call), (Net, call_impl), (Net, odd_weight),
    ],
    ids=lambda part: part.__name__,
)  # fmt: skip
def test_a_network_that_flips_within_its_radius_gets_none(kind, change):
    def attempt():
        model = model_of(kind, change)
        return certify(model, torch.full((1, *model.input_shape), 0.5), QUICK)

    with pytest.raises(InvalidInputError) as caught:
        attempt()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        (register_module_forward_pre_hook, lambda m, a: (trick(a[0]),) if type(m) is nn.Linear else None),
        (register_module_forward_hook, lambda m, a, h: h * (1 - 2 * window(a[0])) if type(m) is nn.Linear else None),
    ],
    ids=["before", "after"],
)
def test_a_hook_for_all_modules_is_refused(register, hook):
    model = model_of(Net)
    handle = register(hook)
    try:
        with pytest.raises(InvalidInputError, match="hooks for all modules"):
            certify(model, torch.full((1, WIDTH), 0.5), QUICK)
    finally:
        handle.remove()
    assert certify(model, torch.full((1, WIDTH), 0.5), QUICK).input_path == TRACED


def test_a_method_replaced_in_torchs_own_class_is_seen(monkeypatch):
    """Nothing about the layer itself is odd: only a pass through it shows that it is no product."""
    model, own = model_of(Net), nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: own(layer, trick(x)))
    with pytest.raises(InvalidInputError, match=r"weights times the input \(gt"):
        certify(model, torch.full((1, WIDTH), 0.5), QUICK)


@pytest.mark.parametrize("beside", [False, True])
def test_what_another_library_is_handed_is_not_called_traced(beside):
    """The values leave torch by dlpack and come back as memory of somebody else: compared, and the record says so."""

    class ByLibrary(Net):
        def forward(self, x):
            again = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach()))
            return self.first(x) * (1 - 2 * window(again)) if beside else self.first(trick(again))

    found = certify(model_of(ByLibrary), torch.full((1, WIDTH), 0.5), QUICK)
    assert found.input_path == "RuntimeError while its input was watched"
    with pytest.raises(InvalidInputError, match=r"does not (get the whole input|compute the same)"):
        certify(model_of(ByLibrary), torch.full((1, WIDTH), 0.5535), QUICK)


def test_an_honest_network_is_traced_in_threads_and_modes():
    class Honest(Net):
        def __init__(self):
            super().__init__()
            self.shapes, self.lock = {}, ThreadPoolExecutor

        def forward(self, x):
            self.shapes["last"] = tuple(x.shape[1:])
            return aside(self.first, x.contiguous().view(len(x), -1).clone())

    assert certify(model_of(Honest), torch.full((1, WIDTH), 0.5), QUICK).input_path == TRACED
    assert certify(model_of(Image), torch.full((1, 1, 1, WIDTH), 0.5), QUICK).input_path == TRACED


def test_a_classifier_does_not_keep_the_sensitivity_of_another_dilation():
    """Same weights, same shapes, another linear map: its Δ is three times as large."""

    class Dilated(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(1, 1, 3, padding=4, dilation=4, bias=False)  # only the middle touches 3 x 3 images
            with torch.no_grad():
                self.first.weight.fill_(1.0)

        def forward(self, x):
            h = self.first(x).flatten(1).sum(1, keepdim=True)
            return torch.cat([h, 9 - h], dim=1)

    model = NoisyNetwork(Dilated(), (1, 3, 3), place="first-layer").eval()
    classifier = CertifiedClassifier(model, QUICK)
    x = torch.full((1, 1, 3, 3), 0.9)
    before = classifier.certify(x).sensitivity.upper
    model.noisy.layer.dilation, model.noisy.layer.padding = (1, 1), (1, 1)
    model.noisy.layer._reversed_padding_repeated_twice = [1, 1, 1, 1]
    after = classifier.certify(x).sensitivity.upper
    assert before == pytest.approx(3.0, rel=1e-5)
    assert after == pytest.approx(model.sensitivity("linf").upper, rel=1e-9)
    assert after > 5
