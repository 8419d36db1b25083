"""Interval certificates as a family of the same record: in memory, in the run folder, on the page and by command."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.attacks.falsify_intervals import falsify_intervals
from securesgd.certificates.certify import certify
from securesgd.certificates.intervals import has_interval_bounds
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.verify import verify
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork

ANY = CertifySettings(input_range=None, tolerance=1e-5)
BOX = ("0.5", "10%", "0", "25%")


def linear(size=12, seed=3):
    """Return a linear classifier, inputs, and how far ahead the predicted class is along which slope."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(size, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, size, generator=generator))
        layer.bias.zero_()
    x = torch.rand(40, size, generator=generator)
    with torch.no_grad():
        scores = layer(x).double()
    slope = (layer.weight[1] - layer.weight[0]).detach().double()
    return layer.eval(), x, (scores[:, 1] - scores[:, 0]).abs().numpy(), slope


def test_radii_of_a_linear_classifier_are_its_distances():
    model, x, ahead, slope = linear()
    certificates = certify(model, x, ANY)
    exact = ahead / float(slope.abs().sum())
    for rule in ("tight", "interval", "linear"):
        assert (certificates.radius[rule] <= exact).all()
        assert (certificates.radius[rule] >= exact - 3e-5).all()
    with torch.no_grad():
        assert (certificates.prediction == model(x).argmax(1).numpy()).all()
    assert certificates.family == "interval"
    assert certificates.noise == "none; for any input"
    assert not certificates.abstained.any()
    assert not certificates.draws.any()
    assert certificates.sensitivity is None
    with pytest.raises(InvalidInputError, match="not in l2"):
        certificates.in_norm("l2", None)


def test_a_box_has_widths_of_its_own_for_every_column():
    model, x, ahead, slope = linear(size=4, seed=5)
    widths = torch.tensor([0.5, 0.0, 0.0, 0.0]) + x * torch.tensor([0.0, 0.1, 0.0, 0.25])
    exact = ahead / (widths.double() * slope.abs()).sum(1).numpy()
    radius = certify(model, x, replace(ANY, box=BOX)).radius["tight"]
    assert (radius <= np.minimum(exact, 1)).all()
    assert (radius >= np.minimum(exact, 1) - 3e-5).all()
    assert (radius > 0).all()
    assert (radius < 1).any()
    points = falsify_intervals(model, x, certify(model, x, ANY).prediction, 1.1 * exact, input_range=None, box=BOX)
    assert points.flipped.all()
    assert bool((points.points[:, 2] == x[:, 2]).all())  # the column that may not change
    assert not falsify_intervals(
        model, x, certify(model, x, ANY).prediction, exact * (1 - 1e-4), input_range=None, box=BOX
    ).flipped.any()


def test_a_question_is_answered_by_the_radius():
    model, x, ahead, slope = linear()
    exact = ahead / float(slope.abs().sum())
    target = float(np.median(exact))
    asked = certify(model, x, CertifySettings(input_range=None, radius=target))
    clear = np.abs(exact - target) > 1e-5
    assert ((asked.answer == "yes") == (exact > target))[clear].all()
    assert set(asked.radius["tight"]) == {0.0, target}
    assert ((asked.radius["tight"] == target) == (asked.answer == "yes")).all()
    robust = verify(model, x[0], float(exact[0] * 0.99), input_range=None)
    assert robust.is_robust
    assert not verify(model, x[0], float(exact[0] * 1.01), input_range=None).is_robust


def test_a_noisy_network_is_certified_without_its_noise(digits):
    torch.manual_seed(0)
    bare = network("digits-cnn", (1, 8, 8), 10).eval()
    noisy = NoisyNetwork(copy.deepcopy(bare), (1, 8, 8), place="input")
    noisy.set_noise(np.full(64, 5.0))
    noisy.eval()
    x = digits.test_inputs[:4]
    a, b = certify(bare, x), certify(noisy, x, CertifySettings(family="interval"))
    assert (a.prediction == b.prediction).all()
    np.testing.assert_allclose(a.radius["tight"], b.radius["tight"], atol=2e-4)
    assert (a.radius["tight"] > 0).any()
    assert certify(noisy, x[:1], CertifySettings(draws=20)).family == "smoothing"


def test_settings_of_smoothing_are_written_as_before():
    smoothing = CertifySettings(family="smoothing", seed=0).json()
    assert smoothing == CertifySettings(seed=0).json()
    assert {"family", "bounds", "box"}.isdisjoint(smoothing)
    assert CertifySettings(family="interval", box=BOX).json() == {
        "family": "interval", "norm": "linf", "radius": None, "tolerance": None, "input_range": [0.0, 1.0],
        "bounds": "best", "box": list(BOX),
    }  # fmt: skip


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)


X = torch.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CertifySettings(family="intervall"), "did you mean 'interval'"),
        (lambda: CertifySettings(family="interval", norm="l2"), "norm is 'l2'; valid for interval certificates: linf"),
        (lambda: certify(nn.Linear(3, 2).eval(), X, CertifySettings(norm="l2")), "norm is 'l2'"),
        (lambda: CertifySettings(bounds="bes"), "did you mean 'best'"),
        (lambda: CertifySettings(family="smoothing", box=("1",)), "a box is of interval certificates"),
        (lambda: CertifySettings(box=("1", "ten")), "column 1 of the box is 'ten'"),
        (lambda: CertifySettings(box=("1", "-5%")), "column 1 of the box is '-5%'"),
        (lambda: CertifySettings(box=("nan",)), "column 0 of the box is 'nan'"),
        (lambda: CertifySettings(box=("0", "0%")), "no column that may change"),
        (lambda: CertifySettings(box=()), "a text per column"),
        (
            lambda: certify(nn.Linear(3, 2).eval(), X, CertifySettings(box=("1", "2"))),
            r"box has 2 columns, an input has",
        ),
        (lambda: certify(nn.Linear(3, 2), X), "the model is in training mode"),
        (lambda: certify(Grouped().eval(), X), "GroupNorm.*no sound interval bound"),
        (lambda: certify(nn.Linear(3, 2).eval(), 3 * X), "outside 0..1; give input_range"),
        (lambda: certify(nn.Linear(3, 2).eval(), X * float("nan")), "input 0 is not finite"),
        (lambda: certify(nn.Linear(3, 2).eval(), X[:, :2]), "does not take inputs of shape|shape"),
        (lambda: certify(nn.Linear(3, 2).eval(), X, rules=["a.b:c"]), "is about votes"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_layers_without_bounds_are_known_beforehand():
    assert has_interval_bounds(nn.Linear(3, 2), (3,))
    assert not has_interval_bounds(Grouped(), (3,))
