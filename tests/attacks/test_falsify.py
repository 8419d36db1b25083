"""The search on a linear classifier, whose boundary is known in every norm, and on real certificates."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.attacks.ball import sizes
from securesgd.attacks.falsify import falsify_certificates
from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork

DUAL = {"linf": 1, "l2": 2, "l1": np.inf}
QUICK = {"restarts": 1, "steps": 10, "eot": 30, "proof_draws": 20_000}


def linear(norm, n=30, size=20):
    """Return model, inputs, predictions and the exact distances to the boundary."""
    generator = torch.Generator().manual_seed(4)
    layer = nn.Linear(size, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, size, generator=generator))
    model = NoisyNetwork(layer, (size,), place="input")
    model.set_noise(np.full(size, 0.1))
    model.eval()
    x = torch.rand(n, size, generator=generator)
    with torch.no_grad():
        scores = layer(x)
    ahead = (scores[:, 1] - scores[:, 0]).double().numpy()
    slope = (layer.weight[1] - layer.weight[0]).detach().double().numpy()
    # far enough that 1.3 times the distance shows in the draws: half a standard deviation of the noise
    far = np.abs(ahead) > 0.5 * 0.1 * np.linalg.norm(slope)
    distance = np.abs(ahead) / np.linalg.norm(slope, DUAL[norm])
    return model, x[far], (ahead > 0).astype(int)[far], distance[far]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_radii_that_are_too_large_are_caught_and_true_ones_are_not(norm):
    model, x, predicted, distance = linear(norm)
    assert len(x) > 15
    wrong = falsify_certificates(model, x, predicted, 1.3 * distance, norm, **QUICK)
    assert wrong.flipped.all()
    assert bool((sizes(wrong.points.double() - x.double(), norm).numpy() < 1.3 * distance).all())
    assert (wrong.winner == 1 - predicted).all()
    assert "certificates are WRONG" in wrong.in_words
    right = falsify_certificates(model, x, predicted, distance, norm, **QUICK)
    assert right.tested.any()  # it came near, and still nothing is claimed
    assert not right.flipped.any()
    assert "proved no counter-example" in right.in_words


def test_the_worst_direction_alone_finds_the_flip():
    model, x, predicted, distance = linear("linf")
    slope = model.network[1].weight.detach().double().numpy()
    along = np.sign(slope[1] - slope[0])
    settings = QUICK | {"restarts": 0, "steps": 1}
    assert falsify_certificates(model, x, predicted, 1.3 * distance, "linf", direction=along, **settings).flipped.all()
    with pytest.raises(InvalidInputError, match="direction has 3 numbers, an input 20"):
        falsify_certificates(model, x, predicted, distance, "linf", direction=along[:3], **settings)


def test_chance_does_not_count_as_a_flip():
    # On the boundary both classes win half the draws: of many points many look flipped, none may be claimed.
    model, x, predicted, _ = linear("l2")
    slope = model.network[1].weight[1] - model.network[1].weight[0]
    offset = model.network[1].bias[1] - model.network[1].bias[0]
    with torch.no_grad():
        on = x - ((x @ slope + offset) / slope.square().sum())[:, None] * slope
    result = falsify_certificates(model, on, predicted, np.full(len(x), 1e-4), "l2", **QUICK | {"proof_draws": 1000})
    assert result.tested.all()
    assert (result.votes[:, 1] > result.votes[:, 0]).any()
    assert not result.flipped.any()


def test_failure_prob_is_shared_among_the_points():
    # 60 % of 100 draws: proof enough for one point (p = 0.03), not for one of thirty.
    from securesgd.attacks import falsify

    counts = np.tile([[40.0, 60.0]], (30, 1))
    original = falsify.smoothed_votes
    falsify.smoothed_votes = lambda model, points, *args, **kwargs: counts[: len(points)]
    try:
        model, points = nn.Identity(), torch.zeros(30, 2)
        predicted, winner = np.zeros(30, dtype=int), np.ones(30, dtype=int)
        alone = np.arange(30) == 0
        assert falsify._prove_flips(model, points, predicted, winner, alone, 100, 0.05, 0)[1].sum() == 1
        assert not falsify._prove_flips(model, points, predicted, winner, alone | True, 100, 0.05, 0)[1].any()
    finally:
        falsify.smoothed_votes = original


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_certificates_of_a_trained_network_survive_and_enlarged_ones_do_not(noisy, images, norm):
    x = images[0][:40]
    certificates = certify(noisy, x, CertifySettings(norm=norm, draws=2000, seed=0))
    settings = {
        "restarts": 1,
        "steps": 10,
        "eot": 20,
        "proof_draws": 4000,
        "direction": certificates.sensitivity.direction,
    }
    held = falsify_certificates(noisy, x, certificates.prediction, certificates.radius["tight"], norm, **settings)
    assert held.searched.sum() > 25
    assert not held.flipped.any()
    broken = falsify_certificates(noisy, x, certificates.prediction, 4 * certificates.radius["tight"], norm, **settings)
    assert broken.flipped.mean() > 0.5


def test_no_ball_no_search(noisy, images):
    result = falsify_certificates(noisy, images[0][:3], images[1][:3], np.zeros(3), "linf", **QUICK)
    assert not (result.searched | result.tested | result.flipped).any()
    assert torch.equal(result.points, images[0][:3])


def test_bad_input_is_refused(plain, noisy, images):
    x, labels = images[0][:3], images[1][:3]
    with pytest.raises(InvalidInputError, match="no noise"):
        falsify_certificates(plain, x, labels, np.ones(3), "linf")
    with pytest.raises(InvalidInputError, match="as many predictions and radii"):
        falsify_certificates(noisy, x, labels, np.ones(2), "linf")
    with pytest.raises(InvalidInputError, match="finite and >= 0"):
        falsify_certificates(noisy, x, labels, np.array([1, np.nan, 1]), "linf")
    with pytest.raises(InvalidInputError, match="did you mean 'linf'"):
        falsify_certificates(noisy, x, labels, np.ones(3), "lin")
