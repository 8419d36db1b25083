"""Ways to obtain r: valid, recorded, and a private one that is the Gaussian mechanism it claims to be."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.gradient_scores import SENSITIVITY, _clipped_scores, redistribution_from_gradients
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.redistribution import Redistribution, prior, random, uniform
from securesgd.runtime.key_stream import KeyStream
from securesgd.theory import validated


def stream(seed):
    return KeyStream.from_generator(np.random.default_rng(seed))


def model(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 4)]
    return NoisyNetwork(nn.Sequential(*layers), (1, 6, 6), place="first-layer")


def data(count=40):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 6, 6, generator=generator), torch.randint(4, (count,), generator=generator)


@pytest.mark.parametrize("r", [uniform((3, 6, 6)), random((3, 6, 6), seed=1), prior((3, 6, 6))])
def test_independent_ways_are_valid_and_saved(r, tmp_path):
    assert validated(r.per_unit, 108).size == 108
    r.save(tmp_path / "r.json")
    assert Redistribution.load(tmp_path / "r.json") == r
    assert r.std(2.0) == pytest.approx(2 * np.sqrt(108 * r.per_unit))


def test_prior_grows_outwards_and_needs_an_image():
    r = prior((1, 7, 7)).per_unit.reshape(7, 7)
    assert r[3, 3] == r.min()
    assert r[0, 0] == pytest.approx(r.max())
    with pytest.raises(InvalidInputError, match="height and width"):
        prior((5,))


@pytest.mark.parametrize("per", ["unit", "channel"])
@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_one_example_contributes_at_most_one(per, beta):
    """The sensitivity of the release: each example's vector has l2 norm at most 1, whatever its gradients."""
    net = model()
    for scale in (1e-25, 1e-12, 1.0, 1e12):
        with torch.no_grad():
            net.network[3].weight.copy_(torch.full_like(net.network[3].weight, scale) * torch.randn(4, 108))
        norms = _clipped_scores(net, *data(), beta, per).norm(dim=1)
        assert bool((norms <= 1).all())


def test_tiny_gradients_of_a_wide_layer_do_not_escape_the_norm():
    """In single precision the squares of these vanish from the norm but not from the vector: 35 times the bound."""
    net = NoisyNetwork(nn.Sequential(nn.Linear(1, 20_000), nn.Linear(20_000, 2)), (1,), place="first-layer")
    with torch.no_grad():
        net.network[1].weight.copy_(torch.tensor([[5e-12], [-5e-12]]).expand(2, 20_000))
        net.network[1].weight[:, 0] *= 2
    scores = _clipped_scores(net, torch.rand(2, 1), torch.tensor([0, 1]), 2.0, "unit")
    assert bool((scores.double().norm(dim=1) <= 1).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_an_example_without_a_finite_gradient_contributes_nothing_and_raises_nothing(bad):
    """Replaced by such a null record, an example changes the sum by no more than the sensitivity."""
    net = model()
    inputs, targets = data(8)
    net.noisy.noise.generator = torch.Generator()
    sums = []
    for null in (False, True):
        net.noisy.noise.generator.manual_seed(0)
        if null:
            inputs[3] = bad
        scores = _clipped_scores(net, inputs, targets, 1.0, "unit")
        assert scores.isfinite().all()
        sums.append(scores)
    assert torch.equal(sums[0][[0, 1, 2, 4, 5, 6, 7]], sums[1][[0, 1, 2, 4, 5, 6, 7]])
    if bad != 1e38:
        assert sums[1][3].norm() == 0
        assert (sums[0].sum(dim=0) - sums[1].sum(dim=0)).norm() <= SENSITIVITY


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_zero(monkeypatch, bad):
    net = model()
    gradient = torch.rand(8, *net.output_shape)
    gradient[3].view(-1)[5] = bad
    monkeypatch.setattr(torch.autograd, "grad", lambda *_: (gradient,))
    scores = _clipped_scores(net, *data(8), 1.0, "unit")
    assert scores.norm(dim=1).tolist() == pytest.approx([float(i != 3) for i in range(8)])


def test_noise_of_a_private_release_has_the_stated_size(monkeypatch):
    """Accepts z, rejects 0.9 z: the noisy sums of many releases around the exact one."""
    sums = []

    def recorded(scores, **_):
        sums.append(scores)
        return np.full(scores.size, 1 / scores.size)

    monkeypatch.setattr("securesgd.models.gradient_scores.from_scores", recorded)
    net, batches = model(), [data(600)]
    net.noisy.noise.generator = torch.Generator()
    for z, seeds in ((0.0, [0]), (3.0, range(60))):
        for seed in seeds:
            net.noisy.noise.generator.manual_seed(0)
            redistribution_from_gradients(net, batches, way="private", noise_multiplier=z, stream=stream(seed))
    noise = np.array(sums[1:]) - sums[0]
    statistic, n = (noise**2).sum() / 3.0**2, noise.size
    assert chi2.ppf(1e-7, n) < statistic < chi2.ppf(1 - 1e-7, n)
    assert not chi2.ppf(1e-7, n) < statistic / 0.9**2 < chi2.ppf(1 - 1e-7, n)


def test_directions_are_opposite():
    net = model()
    net.noisy.noise.generator = torch.Generator()
    shares = {}
    for direction in ("vulnerable", "inverse"):
        net.noisy.noise.generator.manual_seed(0)
        shares[direction] = redistribution_from_gradients(
            net, [data()], way="public", noise_multiplier=0, stream=stream(0), direction=direction
        ).per_unit
    assert np.corrcoef(shares["vulnerable"], shares["inverse"])[0, 1] < -0.5


def test_bad_records(tmp_path):
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(DamagedFileError, match="not a redistribution record"):
        Redistribution.load(tmp_path / "r.json")
    with pytest.raises(InvalidInputError, match="per unit or per channel"):
        Redistribution(way="x", shape=(2,), per="row", r=(0.5, 0.5), details={})
    with pytest.raises(InvalidInputError, match="one entry per component"):
        Redistribution(way="x", shape=(2,), per="unit", r=(0.5, 0.25, 0.25), details={})
