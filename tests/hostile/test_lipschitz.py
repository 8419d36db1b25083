"""Attempts to get a false l2 radius from a network of wavelets: odd images, other layers, numbers put in place."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import securesgd as ss
from securesgd.certificates.lipschitz.linear_head import read_linear_head
from securesgd.certificates.lipschitz.radius import lipschitz_radius
from securesgd.errors import InvalidInputError
from securesgd.models.feature_weights import ChannelWeights
from securesgd.models.front_end import FrontEnd
from securesgd.models.standardise import Standardise
from securesgd.models.wavelets import Wavelets
from securesgd.theory.group_norm import least_alignment
from tests.certificates.lipschitz_networks import fitted, flipped

NAMES = ["scatter-linear", "wavelet-linear"]


def copied(name="wavelet-linear"):
    return copy.deepcopy(fitted(name)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 1e-30, 0.5, 1.0, -3.0, 1e4])
def test_a_constant_image_has_a_radius_that_holds_or_none(name, value):
    """The variance of its groups is nearly 0: they turn around within a small distance."""
    network = copied(name)
    network[2].bias[3] += 30.0  # so that there is a class to lose
    x = torch.full((1, 1, 8, 8), value)
    result = lipschitz_radius(network, x)
    assert np.isfinite(result.radius).all()
    if result.radius[0] > 0:
        classes = torch.as_tensor(result.prediction)
        assert not flipped(network, x, classes, torch.as_tensor(result.radius), steps=50, starts=3).any()


@pytest.mark.parametrize("name", NAMES)
def test_every_image_with_nearly_equal_pixels_keeps_its_class_within_its_radius(name):
    network, generator = fitted(name)[0], torch.Generator().manual_seed(0)
    x = 0.5 + torch.rand(12, 1, 8, 8, generator=generator) * (10.0 ** -torch.arange(12.0))[:, None, None, None]
    result = lipschitz_radius(network, x)
    classes, radius = torch.as_tensor(result.prediction), torch.as_tensor(result.radius)
    some = radius > 0
    if some.any():
        assert not flipped(network, x[some], classes[some], radius[some], steps=50, starts=3).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e6, 1e12, 1e19, 1e30, 3e38])
def test_huge_values_have_a_radius_that_holds_or_none(name, size):
    """Squares of 1e19 overflow in float32."""
    network, x = fitted(name)
    x = x[:4] * size
    result = lipschitz_radius(network, x)
    assert np.isfinite(result.radius).all()
    assert size < 1e12 or not result.radius.any()
    classes, radius = torch.as_tensor(result.prediction), torch.as_tensor(result.radius)
    if bool((radius > 0).all()):
        assert not flipped(network, x, classes, radius, steps=20, starts=2).any()


@pytest.mark.parametrize("name", NAMES)
def test_one_image_whose_squares_overflow_in_float64_leaves_the_others_their_radii(name):
    network, x = copied(name).double(), fitted(name)[1][:4].double()
    expected = lipschitz_radius(network, x).radius
    x[1] *= 1e200
    found = lipschitz_radius(network, x).radius
    assert found[1] == 0
    np.testing.assert_allclose(found[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_tiny_values_keep_their_class_within_their_radius(name):
    network, x = fitted(name)
    for size in (1e-3, 1e-10, 1e-25, 1e-40):
        result = lipschitz_radius(network, x[:6] * size)
        some = torch.as_tensor(result.radius > 0)
        if some.any():
            classes, radius = torch.as_tensor(result.prediction)[some], torch.as_tensor(result.radius)[some]
            assert not flipped(network, x[:6][some] * size, classes, radius, steps=30, starts=2).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    network, x = copied(), fitted("wavelet-linear")[1].clone()
    x[3, 0, 2, 2] = bad
    with pytest.raises(InvalidInputError, match="inputs hold a number that is not finite"):
        lipschitz_radius(network, x)
    for name in ("0.0.filters", "0.1.inverse_std", "2.bias"):
        network = copied()
        dict([*network.named_buffers(), *network.named_parameters()])[name].view(-1)[0] = bad
        with pytest.raises(InvalidInputError, match=f"{name} holds a number that is not finite"):
            lipschitz_radius(network, x[:2])


class Half(nn.Module):
    def forward(self, x):
        return x / 2


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x.relu())


class OwnSequential(nn.Sequential):
    def forward(self, x):
        return super().forward(1 - x)


def with_front_end(change):
    network = copied()
    layers = list(network[0])
    change(layers)
    return nn.Sequential(FrontEnd(*layers), *list(network)[1:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.network("wavelet-cnn", (1, 8, 8), 10), "layer 1 of the network is Conv2d"),
        (lambda: ss.network("linear", (1, 8, 8), 10), "layer 0 of the network is Flatten"),
        (lambda: nn.Sequential(*list(copied())[:2]), "the network ends after 2 layers"),
        (lambda: nn.Sequential(nn.Dropout(0.5), *copied()), "layer 0 of the network is Dropout"),
        (lambda: nn.Sequential(*copied(), nn.Softmax(1)), "layer 3 of the network is Softmax"),
        (lambda: OwnSequential(*copied()), "the network is OwnSequential"),
        (lambda: nn.Sequential(*list(copied())[:2], OwnLinear(136, 10)), "layer 2 of the network is OwnLinear"),
        (lambda: with_front_end(lambda layers: layers.insert(0, Half())), "layer 0 of its front end is Half"),
        (lambda: with_front_end(lambda layers: layers.insert(1, nn.Dropout())), "layer 1 of its front end is Dropout"),
        (lambda: with_front_end(lambda layers: layers.insert(2, layers[1])), "layer 2 of its front end is Standardise"),
        (lambda: with_front_end(lambda layers: layers.pop()), "its front end ends after 2 layers"),
        (lambda: with_front_end(lambda layers: layers.__setitem__(2, nn.BatchNorm2d(34, affine=False))),
         "layer 2 of its front end is BatchNorm2d"),
        (lambda: with_front_end(lambda layers: layers.append(nn.ReLU())), "layer 3 of its front end is ReLU"),
        (lambda: with_front_end(lambda layers: layers.__setitem__(2, nn.GroupNorm(2, 68, affine=False))),
         "GroupNorm is for 68"),
        (lambda: nn.Sequential(copied()[0], nn.Flatten(2), copied()[2]), "Flatten is from 2 to -1"),
        (lambda: ss.NoisyNetwork(copied(), (1, 8, 8), place="input"), "the network has noise"),
        (lambda: nn.Sequential(*list(copied())[:2], nn.Linear(136, 1)), "the network has 1 score"),
        (lambda: nn.Sequential(*list(copied())[:2], nn.Linear(100, 10)), "the layers do not fit"),
        (lambda: torch.compile(copied()), "the network is OptimizedModule"),
    ],
)  # fmt: skip
def test_a_network_of_other_layers_is_refused_by_name(make, message):
    with pytest.raises(InvalidInputError, match=message):
        lipschitz_radius(make(), fitted("wavelet-linear")[1][:2])


def hooked(network):
    network[0][1].register_forward_hook(lambda module, args, out: -out)


def hooked_before(network):
    network.register_forward_pre_hook(lambda module, args: (1 - args[0],))


def replaced(network):
    network[0][0].forward = lambda x: torch.zeros(len(x), 34, 2, 2)


def replaced_call(network):
    network[2]._compiled_call_impl = lambda x: x


def parametrized(network):
    parametrizations.weight_norm(network[2])


def half(network):
    network.half()


def mixed(network):
    network[0].double()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hooked, "0.1 has forward hooks"),
        (hooked_before, "the network has forward hooks"),
        (replaced, "0.0 has something in place of a method"),
        (replaced_call, "2 has something in place of a method"),
        (parametrized, "layer 2 of the network is ParametrizedLinear"),
        (half, "parameters are of type float16"),
        (mixed, "no plain tensor of torch.float32"),
    ],
)
def test_what_changes_a_layer_is_refused(change, message):
    network = copied()
    change(network)
    with pytest.raises(InvalidInputError, match=message):
        lipschitz_radius(network, fitted("wavelet-linear")[1][:2])


def test_a_hook_for_all_modules_is_refused():
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: -out)
    try:
        with pytest.raises(InvalidInputError, match="forward hooks for all modules"):
            lipschitz_radius(copied(), fitted("wavelet-linear")[1][:2])
    finally:
        handle.remove()


def test_autocast_is_refused():
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(InvalidInputError, match="autocast is on"),
    ):
        lipschitz_radius(copied(), fitted("wavelet-linear")[1][:2])


def test_convolutions_in_bfloat16_by_the_environment_are_refused(monkeypatch):
    """A step of 1e-5 over the middle between numbers of bfloat16 changed a class within a radius of 1e-3."""
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(InvalidInputError, match="ONEDNN_DEFAULT_FPMATH_MODE is 'BF16'"):
        lipschitz_radius(copied(), fitted("wavelet-linear")[1][:2])


@pytest.mark.parametrize("name", NAMES)
def test_filters_that_were_made_larger_have_bounds_of_their_own(name):
    """The bounds are of the numbers in the buffers, not of those the module was made with."""
    network, x = copied(name), fitted(name)[1][:8]
    before = read_linear_head(network).bound.squares(np.ones(81 if name == "scatter-linear" else 34))
    with torch.no_grad():
        for buffer in network[0][0].buffers():
            if buffer.dim() > 2:
                buffer *= 3.0
    after = lipschitz_radius(network, x)
    some = torch.as_tensor(after.radius > 0)
    squares = read_linear_head(network).bound.squares(np.ones(81 if name == "scatter-linear" else 34))
    assert squares >= 8.99 * before
    if some.any():
        classes, radius = torch.as_tensor(after.prediction), torch.as_tensor(after.radius)
        assert not flipped(network, x[some], classes[some], radius[some], steps=30, starts=2).any()


def test_a_filter_that_is_no_filter_is_refused():
    network = copied("scatter-linear")
    network[0][0].fine[2, 1, 1, 0] += 0.1
    with pytest.raises(InvalidInputError, match="two numbers for one frequency"):
        lipschitz_radius(network, fitted("scatter-linear")[1][:2])


def test_scores_that_do_not_depend_on_the_image_and_ties():
    network, x = copied(), fitted("wavelet-linear")[1][:3]
    network[2].weight.zero_()
    network[2].bias.zero_()
    assert (lipschitz_radius(network, x).radius == 0).all()  # a tie is no class
    network[2].bias[4] = 1.0
    result = lipschitz_radius(network, x)
    assert (result.prediction == 4).all()
    assert np.isfinite(result.radius).all()


def test_weights_near_overflow_have_no_radius():
    network, x = copied(), fitted("wavelet-linear")[1][:3]
    network[2].weight *= 1e30
    assert (lipschitz_radius(network, x).radius == 0).all()


def test_neither_the_network_nor_the_inputs_nor_random_numbers_change():
    network, x = copied("scatter-linear"), fitted("scatter-linear")[1][:3].clone()
    before, state = copy.deepcopy(network.state_dict()), torch.random.get_rng_state()
    lipschitz_radius(network, x)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(x, fitted("scatter-linear")[1][:3])
    assert network[0][0].fine.dtype == torch.float32


def test_an_input_that_wants_gradients_and_one_in_another_memory_layout():
    network, x = fitted("wavelet-linear")
    expected = lipschitz_radius(network, x[:4])
    for other in (x[:4].clone().requires_grad_(), x[:4].transpose(2, 3).contiguous().transpose(2, 3), x[:8:1][:4]):
        np.testing.assert_allclose(lipschitz_radius(network, other).radius, expected.radius, rtol=1e-5)


# Numbers at the ends of their type


def two_classes(groups=1, eps=1e-5, weights=None):
    """A network with a head of two classes; with weights of channels, only the channel 5 counts."""
    transform, layers = Wavelets(1, 8, 8), [] if weights is None else [ChannelWeights(weights)]
    normalise = nn.GroupNorm(groups, 34, eps=eps, affine=False)
    front_end = FrontEnd(transform, Standardise(transform, (1, 8, 8)), normalise, *layers)
    network = nn.Sequential(front_end, nn.Flatten(), nn.Linear(136, 2)).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    network[2].weight.copy_(torch.randn(2, 136, generator=generator))
    network[2].bias.zero_()
    return network


def test_features_that_underflow_before_a_huge_head_have_no_radius():
    """As exact numbers the head makes up for the weight of its channel; in float32 ten steps are left of a feature."""
    weights = np.ones(34)
    weights[5] = 7e-45
    network = two_classes(34, weights=weights)
    network[2].weight.zero_()
    rows = network[2].weight.view(2, 34, 4)
    rows[0, 5, :2], rows[1, 5, 2:] = 1e37 * torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    x = torch.rand(500, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    result, scores = lipschitz_radius(network, x), network(x)
    assert (scores[:, 0] == scores[:, 1]).any()  # though no exact scores are equal
    assert not result.radius.any()


def test_weights_of_channels_that_overflow_before_a_tiny_head_are_refused():
    network = two_classes(weights=np.ones(34))
    network[0][3].weights.fill_(3e38)
    network[2].weight *= 1e-38
    x = fitted("wavelet-linear")[1][:4]
    assert network(x).isnan().any()
    with pytest.raises(InvalidInputError, match=r"weights of ChannelWeights holds 3e\+38; valid: up to 1e\+12"):
        lipschitz_radius(network, x)


def with_filters(size):
    """Standardising undoes the size of the filters, so that no feature is large."""
    network = copied()
    network[0][0].filters *= size
    network[0][1].mean *= size
    network[0][1].inverse_std /= size
    return network


def test_filters_whose_squares_overflow_are_refused():
    network, x = with_filters(1e20), fitted("wavelet-linear")[1][:4]
    assert network(x).isnan().any()
    with pytest.raises(InvalidInputError, match="filters of Wavelets holds"):
        lipschitz_radius(network, x)


def test_images_whose_waves_overflow_when_squared_have_no_radius():
    """Features are far below 1e12, and no fixed number is large."""
    network, x = with_filters(5e5), 3e11 * fitted("wavelet-linear")[1][:4] / 4
    network[0][0].planes *= 1e5
    network[0][1].inverse_std *= 1e-9
    network[2].bias[0] += 1e3  # the class that argmax finds among NaN
    assert (lipschitz_radius(network, 1e-9 * x).radius > 0).all()
    assert network(x).isnan().any()
    assert not lipschitz_radius(network, x).radius.any()


@pytest.mark.parametrize("name", ["filters", "planes"])
def test_numbers_that_enlarge_what_underflowed_before_them_are_refused(name):
    network = copied()
    getattr(network[0][0], name).mul_(1e30)
    with pytest.raises(InvalidInputError, match=f"{name} of Wavelets holds"):
        lipschitz_radius(network, fitted("wavelet-linear")[1][:2])


@pytest.mark.parametrize("t", [0.51, 0.7, 0.99])
def test_an_angle_that_rounding_hides_counts(t):
    """a/|w| = 1 − 1e-16 is 1 in float64, but the angle between them is 1.4e-8."""
    angle = math.acos(1 - 2**-53) + math.asin(t)
    assert least_alignment(np.float64(1), np.float64(1), np.float64(t)) <= math.cos(angle)
    assert least_alignment(np.float64(1), np.float64(1), np.float64(t)) >= math.cos(angle + 3e-7)


def test_no_attack_in_float64_is_within_twice_the_radius_where_the_network_is_linear():
    """With a huge eps and one low-pass feature nothing but the norm of a filter stands between bound and truth."""
    network = two_classes(2, eps=1e8).double()
    x = torch.rand(6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network[2].weight.zero_()
    network[2].weight.view(2, 34, 4)[0, 16, 1] = 1e3
    scores = network(x)[:, 0]
    network[2].bias[1] = scores.median() - 0.1 * scores.std()
    result = lipschitz_radius(network, x)
    classes, radius = torch.as_tensor(result.prediction), torch.as_tensor(result.radius)
    assert (radius > 0).all()
    assert not flipped(network, x, classes, radius, steps=40, starts=2).any()
    assert flipped(network, x, classes, 4 * radius, steps=40, starts=1).any()
