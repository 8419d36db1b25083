"""Rounding is in the proof: half precision is refused, and what the layer's own sums lose is taken off the radius."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import nn

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.votes import smoothed_votes
from securesgd.errors import InvalidInputError
from securesgd.models import validate_network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork
from securesgd.theory import NORMS, certified_radius

from .test_votes import INPUTS, small

BIG = 2.0**24  # above it, single precision counts in steps of 2


class Minus(nn.Module):
    """Takes the bias off again, exactly, and compares with 1."""

    def __init__(self, bias=BIG):
        super().__init__()
        self.bias = bias

    def forward(self, h):
        h = h - self.bias
        return torch.cat([1 - h, h - 1], dim=1)


def coarse():
    """h = 2x + 2²⁴ with noise of one standard deviation: what is added to x below a step of h is lost or doubled."""
    model = NoisyNetwork(nn.Sequential(nn.Linear(1, 1), Minus()), (1,), place="first-layer").eval()
    with torch.no_grad():
        model.noisy.layer.weight.fill_(2.0)
        model.noisy.layer.bias.fill_(BIG)
    model.set_noise(np.ones(1))
    return model


def test_a_coarse_layer_certifies_nothing_where_its_rounding_flips_the_class():
    """Without the rounding the radius is 0.4; a change of 0.0002 flips the class."""
    model, x = coarse(), torch.tensor([[0.4999]])
    found = certify(model, x, CertifySettings(norm="l2", draws=2_000, seed=0))
    before = certified_radius(found.p_lower, found.q_upper, sigma=1.0, sensitivity=2.0)
    assert before > 0.4
    votes = smoothed_votes(model, torch.tensor([[0.4999], [0.5001]]), 2_000)
    assert votes.argmax(1).tolist() == [0, 1]  # the flip
    assert found.radius["tight"][0] == 0
    assert found.abstained[0]
    assert found.rounding[0] > 2  # the move of h, in standard deviations
    for norm in NORMS:  # far from x the error grows with x', and Δ with it
        assert model.sensitivity(norm).upper >= 2 * (1 + 4 * 2**-24)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("learned", [False, True])
def test_the_layer_never_moves_further_than_sensitivity_and_rounding_allow(norm, learned):
    """Random layers with a large bias, moved by many directions and the worst one, in any batch."""
    size = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    rng = np.random.default_rng(0)
    for seed in range(3):
        model = small(seed=seed, learned=learned)
        with torch.no_grad():
            model.noisy.layer.bias.mul_(10.0 ** rng.uniform(0, 6))
        bound, rounding = model.sensitivity(norm), model.rounding(INPUTS[:4])
        directions = [*rng.standard_normal((20, 64)), bound.direction]
        for length in (1e-7, 1e-3, 1.0):
            moves = torch.tensor(np.array([d * length / np.linalg.norm(d, size) for d in directions])).float()
            for x, extra in zip(INPUTS[:4], rounding, strict=True):
                moved = x + moves.reshape(-1, 1, 8, 8)
                h = model.noisy.clean(torch.cat([x[None], moved])).detach().double()
                shift = ((h[1:] - model.noisy.clean(x[None]).double()) / model.noisy.noise.std).flatten(1).norm(dim=1)
                sizes = torch.linalg.vector_norm((moved.double() - x.double()).flatten(1), size, dim=1)
                assert (shift <= bound.upper * sizes + extra).all()


def test_rounding_grows_with_the_bias_and_shrinks_with_precision():
    model = small()
    base = model.rounding(INPUTS[:1])[0]
    assert 0 < base < 1e-3
    assert small().double().rounding(INPUTS[:1].double())[0] < 1e-7 * base
    with torch.no_grad():
        model.noisy.layer.bias.fill_(1e4)
    assert model.rounding(INPUTS[:1])[0] > 100 * base
    at_input = small("input").rounding(INPUTS[:1])[0]
    assert at_input <= 8 * 2**-24 * float((INPUTS[0] / small("input").noisy.noise.std).norm())


def test_radii_are_smaller_by_the_rounding():
    model = small()
    found = certify(model, INPUTS, CertifySettings(norm="l2", draws=512, selection_draws=64, seed=0))
    without = certified_radius(found.p_lower, found.q_upper, sigma=1.0, sensitivity=found.sensitivity.upper)
    proven = found.radius["tight"] > 0
    lost = (without - found.radius["tight"])[proven] * found.sensitivity.upper
    np.testing.assert_allclose(lost, model.rounding(INPUTS)[proven], rtol=1e-6)


def test_a_question_is_answered_with_the_rounding_taken_off():
    model = coarse()
    x = torch.tensor([[0.0]])
    for bias, is_proven in ((0.0, True), (2.0**20, False)):  # there rounding is worth half a standard deviation
        with torch.no_grad():
            model.noisy.layer.bias.fill_(bias)
        model.network[1].bias = bias
        found = certify(model, x, CertifySettings(norm="l2", draws=5_000, radius=0.3, seed=0))
        assert (found.answer[0] == "yes") == is_proven
        assert (found.radius["tight"][0] >= 0.3) == is_proven
        assert found.p_lower[0] > ndtr(0.3 * 2)  # without rounding it would be proven


def test_noise_at_the_input_is_not_cut_where_the_sum_of_roundings_is_not_the_rounding_of_the_sum():
    """W₁x and W₁n each rounded lose what W₁(x + n) keeps, or the other way: votes would be another network's."""
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(BIG)
    model = NoisyNetwork(nn.Sequential(layer, Minus()), (1,), place="input").eval()
    model.set_noise(np.array([0.5]))
    votes = smoothed_votes(model, torch.tensor([[0.45]]), 4_000)[0]
    generator = torch.Generator().manual_seed(0)
    noisy = torch.tensor([[0.45]]) + 0.5 * torch.randn(4_000, 1, generator=generator)
    with torch.no_grad():
        share = float((model.network[1](noisy).argmax(1) == 0).float().mean())
    assert abs(votes[0] / 4_000 - share) < 0.05
    assert SplitNetwork(model).shape == (1,)
    assert SplitNetwork(small("input")).shape == (3, 4, 4)  # ordinary weights are cut


def half(kind):
    return small().to(kind)


def with_half_buffer():
    model = small()
    model.register_buffer("extra", torch.zeros(1, dtype=torch.float16))
    return model


def with_half_noise():
    model = small()
    model.noisy.noise.std = model.noisy.noise.std.half()
    return model


def with_double_noise():
    model = small()
    model.noisy.noise.std = model.noisy.noise.std.double()
    return model


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(self.first(x.flatten(1))).float()


def under_autocast():
    model = small()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return certify(model, INPUTS)


QUICK = CertifySettings(draws=64, selection_draws=32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certify(half(torch.float16), INPUTS, QUICK), "of type torch.float16; valid: torch.float32 or float64"),
        (lambda: certify(half(torch.bfloat16), INPUTS, QUICK), "of type torch.bfloat16"),
        (lambda: certify(with_half_buffer(), INPUTS, QUICK), "extra of the model is of type torch.float16"),
        (lambda: certify(with_half_noise(), INPUTS, QUICK), "of type torch.float16"),
        (lambda: certify(with_double_noise(), INPUTS, QUICK), "of the noisy layer is of type torch.float32, its noise"),
        (lambda: certify(small(), INPUTS.half(), QUICK), "inputs are of type torch.float16"),
        (lambda: certify(small(), INPUTS.bfloat16(), QUICK), "inputs are of type torch.bfloat16"),
        (under_autocast, "autocast is on"),
        (lambda: NoisyNetwork(Autocast(), (1, 8, 8), place="first-layer"), "autocast"),
    ],
)
def test_half_precision_is_refused(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_lowered_matrix_products_are_refused():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(InvalidInputError, match="matmul_precision"):
            certify(small(), INPUTS, QUICK)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_layer_less_precise_than_its_type_is_refused(monkeypatch):
    """Whatever the reason: sums in half precision behind our back are seen, if need be at the inputs themselves."""
    exact = nn.Conv2d._conv_forward

    def coarse_below(limit):
        def forward(layer, x, *others):
            h = exact(layer, x, *others)
            return h.bfloat16().float() if h.dtype == torch.float32 and x.min() < limit else h

        return forward

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", coarse_below(np.inf))
    with pytest.raises(InvalidInputError, match=r"its (own )?weights times the input"):
        small()
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", coarse_below(-0.5))
    with pytest.raises(InvalidInputError, match=r"weights times the input \(convolution, min, lt"):
        small()  # the branch itself is seen
    monkeypatch.setattr(validate_network, "require_one_product", lambda model, x: None)
    model = small()
    with pytest.raises(InvalidInputError, match="more than its type's rounding explains"):
        certify(model, INPUTS - 1, CertifySettings(draws=64, selection_draws=32, input_range=None))


def test_double_precision_is_certified():
    model = small().double()
    found = certify(model, INPUTS.double(), CertifySettings(draws=512, selection_draws=64, seed=0))
    assert (found.rounding < 1e-12).all()
    assert found.radius["tight"].max() > 0
    model.set_noise(np.full(model.units, 0.5))
    assert model.noisy.noise.std.dtype == torch.float64
