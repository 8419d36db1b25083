"""What cannot be certified is refused in one line that says what would be valid."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.verify import CertifiedClassifier
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork

from .closed_forms import two_class_linear

X = torch.full((2, 3), 0.5)


def linear():
    return two_class_linear([1.0, -2.0, 0.5], 0.3)


def network(*rest):
    torch.manual_seed(0)
    model = NoisyNetwork(nn.Sequential(nn.Linear(3, 6), *rest, nn.Linear(6, 2)), (3,), place="first-layer")
    return model.eval()


class Mixing(nn.Module):
    def forward(self, h):
        return h - h.mean(0)


class Random(nn.Module):
    on = False

    def forward(self, h):
        return nn.functional.dropout(h, 0.5, training=self.on)


class RandomInLargeBatches(nn.Module):
    def forward(self, h):
        return nn.functional.dropout(h, 0.5, training=len(h) == 16)


def random_later():
    model = network(Random())
    model.network[1].on = True
    return model


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, h):
        return self.layer(h)


def with_weight(value):
    model = linear()
    with torch.no_grad():
        model.noisy.layer.weight[0, 0] = value
    return model


def at(x):
    return torch.tensor([[0.5, 0.5, 0.5], x])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: certify(nn.Linear(3, 2), X, CertifySettings(family="smoothing")),
            "Linear has no noise in its first layer",
        ),
        (lambda: CertifiedClassifier(nn.Linear(3, 2)), "Linear has no noise in its first layer"),
        (lambda: certify(network(nn.Tanh()).train(), X), "is in training mode; call model.eval"),
        (lambda: certify(network(nn.Dropout(0.5)).train(), X), "is in training mode"),
        (lambda: certify(network(Normalised()), X), "statistics of the batch"),
        (lambda: certify(network(Mixing()), X), "depends on the others in its batch"),
        (lambda: certify(random_later(), X), "randomness besides the noise"),
        (lambda: certify(network(RandomInLargeBatches()), X), "randomness besides the noise"),
        (lambda: certify(with_weight(float("nan")), X), "is not finite"),
        (lambda: certify(linear(), at([0.5, float("nan"), 0.5])), "input 1 is not finite"),
        (lambda: certify(linear(), at([0.5, 1.5, 0.5])), r"input 1 has values from 0.5 to 1.5, outside 0..1"),
        (lambda: certify(linear(), 255 * X), r"outside 0..1; give input_range"),
        (
            lambda: certify(linear(), X[:, :2]),
            r"inputs have shape \[2, 2\]; valid: one or more examples of shape \[3\]",
        ),
        (lambda: certify(linear(), X[:0]), r"inputs have shape \[0, 3\]"),
        (lambda: certify(linear(), X.long()), "inputs are of type torch.int64"),
        (lambda: certify(linear(), X, indices=[1]), "indices must be 2 whole numbers"),
        (lambda: certify(linear(), X, indices=[1, 1]), "different from each other"),
        (lambda: certify(linear(), X, indices=[-1, 1]), "in 0..2³¹"),
        (lambda: certify(linear(), X, indices=[0.5, 1]), "indices must be 2 whole numbers"),
        (lambda: certify(linear(), X, CertifySettings(draws=9)), "9 draws cannot prove any radius.*at least 10 draws"),
        (
            lambda: certify(linear(), X, CertifySettings(radius=0.1, draws=100)),
            r"100 draws cannot prove the linf radius 0.1 with failure_prob 0.001, even if all agree; at least [\d,]+",
        ),
        (lambda: certify(linear(), X, CertifySettings(radius=50.0)), "no number of draws is enough"),
        (lambda: CertifySettings(norm="linff"), "did you mean 'linf'"),
        (lambda: CertifySettings(scores="sof"), "did you mean 'soft'"),
        (lambda: CertifySettings(others="eech"), "did you mean 'each'"),
        (lambda: CertifySettings(draws=0), "draws is 0"),
        (lambda: CertifySettings(selection_draws=0), "selection_draws is 0"),
        (lambda: CertifySettings(failure_prob=0.0), "failure_prob is 0.0"),
        (lambda: CertifySettings(failure_prob=1.0), "failure_prob is 1.0"),
        (lambda: CertifySettings(seed=-1), "seed is -1"),
        (lambda: CertifySettings(radius=-0.1), "radius is -0.1"),
        (lambda: CertifySettings(radius=float("nan")), "radius is nan"),
        (lambda: CertifySettings(tolerance=0.0), "tolerance is 0.0"),
        (lambda: CertifySettings(radius=0.1, tolerance=0.1), "not both"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_draws_it_asks_for_are_enough():
    """The number in the message works, one less does not."""
    settings = CertifySettings(norm="l2", radius=0.2, draws=20, input_range=None)
    with pytest.raises(InvalidInputError, match="at least") as caught:
        certify(linear(), X, settings)
    needed = int(str(caught.value).split("at least ")[1].split()[0].replace(",", ""))
    far = torch.full((1, 3), 0.5) + torch.tensor([[1.0, -2.0, 0.5]])  # unanimous
    yes = certify(linear(), far, CertifySettings(norm="l2", radius=0.2, draws=needed, input_range=None))
    assert yes.answer.tolist() == ["yes"]
    with pytest.raises(InvalidInputError, match=f"at least {needed:,} draws"):
        certify(linear(), far, CertifySettings(norm="l2", radius=0.2, draws=needed - 1, input_range=None))


def test_running_statistics_in_eval_mode_are_fine():
    model = network(nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5))
    assert len(certify(model, X, CertifySettings(draws=64, selection_draws=32))) == 2


def test_old_style_weight_norm_further_on_is_fine():
    """It cannot be copied; the model is then used as it is."""
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(6, 6))
    found = certify(network(layer), X, CertifySettings(draws=64, selection_draws=32))
    assert np.isfinite(found.radius["tight"]).all()
