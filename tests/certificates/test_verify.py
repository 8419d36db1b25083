"""One input at a time, and the classifier that abstains."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from securesgd.certificates.certify import certify
from securesgd.certificates.record import FRESH, SEEDED, CertifySettings
from securesgd.certificates.verify import CertifiedClassifier, verify
from securesgd.certificates.votes import NoiseSource, NoiseStream, smoothed_votes, stream_number
from securesgd.models.noisy import NoisyNetwork

from .closed_forms import linear_input, linear_truth, two_class_linear

W = np.array([1.0, -2.0, 0.5])
ANY = {"norm": "l2", "input_range": None, "seed": 0}
ANYBODYS = {"norm": "l2", "input_range": None}


def test_verify_answers_the_question_of_algorithm_one():
    model, x = two_class_linear(W, 0.3), linear_input(W, 0.95, 0.3)
    exact = linear_truth(W, x, "l2", 0.3)[1]
    small, large = verify(model, x, 0.7 * exact, **ANY), verify(model, x, 1.01 * exact, **ANY)
    assert small.is_robust
    assert small.label == 0
    assert 0.7 * exact <= small.radius <= exact
    assert not large.is_robust
    assert large.radius <= exact
    assert small.draws < 10_000
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.label = 1
    assert verify(model, linear_input(W, 0.5, 0.3), 0.0, **ANY).label is None  # a tie is nobody's


def test_the_classifier_abstains_where_nothing_is_proven():
    model = two_class_linear(W, 0.3)
    X = torch.stack([linear_input(W, p, 0.3) for p in (0.99, 0.5, 0.02)])
    classifier = CertifiedClassifier(model, CertifySettings(draws=1_000, **ANY))
    found = classifier.predict(X)
    assert found.mask.tolist() == [False, True, False]
    assert found.filled(-1).tolist() == [0, -1, 1]
    assert np.array_equal(classifier.predict(X.numpy()).filled(-1), [0, -1, 1])  # arrays are as good as tensors
    assert classifier.score(X, [0, 0, 1]) == pytest.approx(2 / 3)
    assert classifier.score(X, [1, 0, 1]) == pytest.approx(1 / 3)
    assert (classifier.certify(X).draws == 1_000).all()


def test_the_classifier_notices_that_the_weights_have_changed():
    """A sensitivity kept from other weights would make radii false."""
    model, x = two_class_linear(W, 0.3), linear_input(W, 0.95, 0.3)
    classifier = CertifiedClassifier(model, CertifySettings(draws=1_000, **ANY))
    classifier.certify(x[None])
    with torch.no_grad():
        model.noisy.layer.weight.mul_(10)
        model.noisy.layer.bias.mul_(10)
    after = classifier.certify(x[None])
    assert after.sensitivity.upper == pytest.approx(model.sensitivity("l2").upper)
    assert after.radius["tight"][0] <= linear_truth(10 * W, x, "l2", 0.3)[1]


class Product(torch.nn.Module):
    """Class 0 if the two halves of the layer have an inner product above a limit."""

    def forward(self, h):
        first, second = h.chunk(2, dim=1)
        over = (first * second).sum(1) - 500
        return torch.stack([over, -over], dim=1)


def test_somebody_who_knows_the_seed_makes_an_input_with_a_false_certificate_and_fresh_noise_does_not_give_it():
    """The input is made after the noise: its product with every known draw is the same, far above what chance gives."""
    size, settings = 300, CertifySettings(norm="l2", draws=100, selection_draws=32, input_range=None, seed=0)
    layer = torch.nn.Linear(2 * size, 2 * size, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2 * size))
    model = NoisyNetwork(torch.nn.Sequential(layer, Product()), (2 * size,), place="first-layer").eval()
    stream = int(stream_number(np.array([0]))[0])
    known = torch.cat([
        NoiseStream(NoiseSource.from_seed(0), purpose, stream, (2 * size,), torch.float32).draws(0, draws)[:, size:]
        for purpose, draws in (("selection", 32), ("counted", 100))
    ])  # fmt: skip
    made = torch.linalg.lstsq(known, torch.full((len(known), 1), 1_000.0)).solution[:, 0]
    x = torch.cat([made, torch.zeros(size)])
    truth = smoothed_votes(model, x[None], 4_000)[0]
    assert truth[1] > 0.6 * 4_000  # class 1 wins
    seeded = certify(model, x[None], settings)
    assert not seeded.abstained[0]
    assert seeded.prediction[0] == 0  # and is certified as class 0, as sure as 1 − 0.001
    for _ in range(5):
        answer = verify(model, x, 0.0, draws=100, selection_draws=32, norm="l2", input_range=None)
        assert answer.label != 0
    found = CertifiedClassifier(model, replace(settings, seed=None)).predict(x[None])
    assert found.mask[0] or found[0] == 1


def test_noise_is_fresh_for_inputs_from_outside():
    """Whoever knows a seed can choose an input after its noise: of no default may the noise be known."""
    model, x = two_class_linear(W, 0.3), linear_input(W, 0.8, 0.3)
    radii = {verify(model, x, 0.0, draws=512, norm="l2", input_range=None).radius for _ in range(8)}
    assert len(radii) > 1
    assert verify(model, x, 0.0, **ANYBODYS).noise == FRESH
    assert verify(model, x, 0.0, **ANY).noise == SEEDED
    classifier = CertifiedClassifier(model)
    assert classifier.settings.seed is None
    assert CertifySettings().seed is None
    classifier = CertifiedClassifier(model, CertifySettings(draws=512, **ANYBODYS))
    X = torch.stack([x] * 4)
    first, second = classifier.certify(X), classifier.certify(X)
    assert first.noise == FRESH
    assert not np.array_equal(first.p_lower, second.p_lower)
    seeded = CertifiedClassifier(model, CertifySettings(draws=512, **ANY))
    assert seeded.certify(X).noise == SEEDED
    assert np.array_equal(seeded.certify(X).p_lower, seeded.certify(X).p_lower)
