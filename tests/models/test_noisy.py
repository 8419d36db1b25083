"""The noisy first layer: heterogeneous and fresh noise, the right sensitivity, and refusal of what proves nothing."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory import NORMS, component_std


def small(place="first-layer"):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 4 * 4, 5)]
    return NoisyNetwork(nn.Sequential(*layers), (1, 8, 8), place=place)


def skewed(units):
    share = np.linspace(1, 9, units)
    return component_std(share / share.sum(), 0.7)


def noises(model, x, passes):
    """The noise of `passes` passes at the noisy layer: shape [passes, batch, units]."""
    clean = model.noisy.clean(x)
    return torch.stack([model.noisy(x) - clean for _ in range(passes)]).flatten(2).detach().double().numpy()


def accepts(sample, std):
    """Chi-square test of every unit's variance at 1e-7."""
    n = len(sample)
    statistic = (sample**2).sum(axis=0) / std**2
    return bool(np.all((chi2.ppf(1e-7, n) < statistic) & (statistic < chi2.ppf(1 - 1e-7, n))))


@pytest.mark.parametrize("place", ["first-layer", "input"])
def test_noise_is_heterogeneous(place):
    model = small(place)
    std = skewed(model.units)
    model.set_noise(std)
    torch.manual_seed(1)
    sample = noises(model, torch.rand(4, 1, 8, 8), 2000).reshape(-1, model.units)
    assert accepts(sample, std)
    assert not accepts(sample, std * 0.9)
    assert not accepts(sample, np.full_like(std, np.sqrt((std**2).mean())))  # uniform r


def test_noise_is_fresh_for_every_pass_example_and_unit():
    model = small()
    model.set_noise(np.ones(model.units))
    torch.manual_seed(2)
    sample = noises(model, torch.rand(2, 1, 8, 8), 4000)
    limit = 5 / np.sqrt(sample[1:, 0].size)
    assert abs(np.mean(sample[:-1] * sample[1:])) < limit  # passes
    assert abs(np.mean(sample[:, 0] * sample[:, 1])) < limit  # examples of a batch
    assert abs(np.mean(sample[:, :, :-1] * sample[:, :, 1:])) < limit  # units


def test_an_explicit_generator_repeats():
    model, x = small(), torch.rand(1, 1, 8, 8)
    model.noisy.noise.generator = torch.Generator().manual_seed(3)
    first = model(x)
    model.noisy.noise.generator.manual_seed(3)
    assert torch.equal(first, model(x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("place", ["first-layer", "input"])
def test_sensitivity_is_of_the_whitened_layer(norm, learned, place):
    """Against the Jacobian of the layer, by torch; learned or fixed r is the same mechanism."""
    model = small(place)
    std = skewed(model.units)
    model.set_noise(std, learned=learned)
    x = torch.zeros(1, 1, 8, 8)
    jacobian = torch.autograd.functional.jacobian(model.noisy.clean, x).reshape(model.units, 64).double().numpy()
    whitened = jacobian / model.noisy.noise.std.double().numpy().ravel()[:, None]
    bound = model.sensitivity(norm)
    size = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    assert np.linalg.norm(bound.direction, size) == pytest.approx(1)
    assert np.linalg.norm(whitened @ bound.direction) == pytest.approx(bound.lower, rel=1e-5)
    exact = {"l1": np.linalg.norm(whitened, axis=0).max(), "l2": np.linalg.norm(whitened, 2), "linf": bound.lower}[norm]
    assert exact * (1 - 1e-6) <= bound.upper <= exact * 1.1


def test_rest_of_the_network_runs_from_a_given_layer_output():
    model, x = small().eval(), torch.rand(3, 1, 8, 8)
    h = model.noisy.clean(x)
    with model.from_layer(h):
        assert torch.equal(model(x), model.network[1:](h))
    assert model.noisy.given is None


def test_the_clipping_engine_is_fast_on_it_and_sees_the_learned_scale():
    model = small()
    model.set_noise(skewed(model.units), learned=True)
    engine = ClippingEngine(model, 1.0)
    loss = lambda o, t: nn.functional.cross_entropy(o, t, reduction="none")  # noqa: E731
    result = engine.clipped_sum(torch.rand(6, 1, 8, 8), torch.randint(5, (6,)), loss, copies=2)
    assert engine.slow_reason is None
    assert result.gradients["noisy.scale.values"].abs().sum() > 0


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x) + x)


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 2)

    def forward(self, x):
        return self.first((x - 0.5) / 0.3)


class Threshold(Around):
    def forward(self, x):
        return self.last(self.first(x)) + (x[:, :1] > 0.5).float()


class Detached(Around):
    def forward(self, x):
        return self.last(self.first(x) + x.detach())


class Twice(Around):
    def forward(self, x):
        return self.last(self.first(x) - self.first(-50 * x))


def hooked():
    network = nn.Sequential(nn.Linear(4, 2))
    network[0].register_forward_hook(lambda module, inputs, output: 10 * output)
    return network


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NoisyNetwork(Threshold(), (4,), place="first-layer"), "uses its input besides the first layer"),
        (lambda: NoisyNetwork(Detached(), (4,), place="first-layer"), "uses its input besides the first layer"),
        (lambda: NoisyNetwork(Twice(), (4,), place="first-layer"), "called 2 times"),
        (lambda: NoisyNetwork(hooked(), (4,), place="first-layer"), "forward hooks"),
        (lambda: NoisyNetwork(nn.utils.weight_norm(nn.Linear(4, 2)), (4,), place="first-layer"), "forward hooks"),
        (lambda: NoisyNetwork(Around(), (4,), place="first-layer"), "uses its input besides the first layer"),
        (lambda: NoisyNetwork(Normalised(), (4,), place="first-layer"), "does not get the whole input as it is"),
        (
            lambda: NoisyNetwork(nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), (4,), place="first-layer"),
            "first layer is Tanh",
        ),
        (lambda: NoisyNetwork(nn.LSTM(4, 2), (4,), place="first-layer"), "first layer is LSTM"),
        (
            lambda: NoisyNetwork(
                nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), (1, 5, 5), place="first-layer"
            ),
            "padding_mode='circular'; valid: 'zeros'",
        ),
        (
            lambda: NoisyNetwork(nn.Conv2d(1, 2, (3, 4), padding="same"), (1, 5, 5), place="first-layer"),
            "valid: an odd kernel size, or padding in numbers",
        ),
        (lambda: NoisyNetwork(nn.Linear(4, 2), (5,), place="first-layer"), r"does not take inputs of shape \[5\]"),
        (lambda: NoisyNetwork(nn.Linear(5, 2), (3, 5), place="first-layer"), "does not get the whole input"),
        (lambda: NoisyNetwork(nn.Linear(5, 2), (5,), place="inptu"), "did you mean 'input'"),
        (lambda: small().set_noise(np.zeros(48)), "noise of every unit must be finite and > 0"),
    ],
)
def test_what_cannot_carry_a_certificate_is_refused(build, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dilation", [1, (2, 3)])
def test_same_padding_of_the_first_layer_is_the_padding_in_numbers(dilation):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, (5, 3), padding="same", dilation=dilation).double()
    x = torch.rand(4, 2, 8, 7, dtype=torch.float64)
    expected = layer(x)
    model = NoisyNetwork(nn.Sequential(layer, nn.Flatten(), nn.Linear(168, 4).double()), (2, 8, 7), place="first-layer")
    assert torch.equal(model.noisy.clean(x), expected)
    linear = (expected - layer.bias[:, None, None]).flatten(1).detach().numpy()
    np.testing.assert_allclose(model.linear_map().apply(x.flatten(1).T.numpy()).T, linear, atol=1e-12)


def test_flatten_before_linear_is_fine_and_the_papers_network_too():
    model = NoisyNetwork(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 2)), (1, 8, 8), place="first-layer"
    )
    assert model.units == 7
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 2)
    assert NoisyNetwork(network("mnist-cnn", (1, 28, 28), 10), (1, 28, 28), place="first-layer").units == 28 * 28 * 32


def test_sensitivity_is_not_below_the_truth_by_single_precision():
    for std in np.random.default_rng(0).uniform(0.5, 1, 50):
        model = NoisyNetwork(nn.Linear(1, 1), (1,), place="first-layer")
        model.set_noise(np.array([std]))
        exact = abs(float(model.noisy.layer.weight.detach().double())) / float(model.noisy.noise.std.double())
        assert model.sensitivity("l2").upper >= exact
