"""One input at a time, and the classifier that abstains."""

import dataclasses

import numpy as np
import pytest
import torch

from securesgd.certify import CertifiedClassifier, CertifySettings, verify

from .closed_forms import linear_input, linear_truth, two_class_linear

W = np.array([1.0, -2.0, 0.5])
ANY = {"norm": "l2", "input_range": None, "seed": 0}


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
