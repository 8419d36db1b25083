"""Votes and accuracy of noisy and plain models, against a loop that does the obvious."""

import numpy as np
import torch
from torch import nn

from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import accuracy, tally, vote_counts


def model(place="first-layer"):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 4)]
    noisy = NoisyNetwork(nn.Sequential(*layers), (1, 6, 6), place=place)
    noisy.set_noise(np.full(noisy.units, 0.5))
    return noisy.eval()


X = torch.rand(7, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def test_votes_of_a_plain_model_are_its_predictions():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()
    counts = vote_counts(plain, X, 9, torch.Generator(), batch=3)
    assert torch.equal(counts.argmax(1), plain(X).argmax(1))
    assert (counts.sum(1) == 1).all()


def test_every_example_gets_noise_of_its_own_and_all_draws():
    noisy, same = model(), X[:1].expand(200, 1, 6, 6)
    counts = vote_counts(noisy, same, 30, torch.Generator().manual_seed(0), batch=64)
    assert counts.shape == (200, 4)
    assert (counts.sum(1) == 30).all()
    assert len(torch.unique(counts, dim=0)) > 5
    again = vote_counts(noisy, same, 30, torch.Generator().manual_seed(0), batch=64)
    assert torch.equal(counts, again)
    assert not torch.equal(counts, vote_counts(noisy, same, 30, torch.Generator().manual_seed(1), batch=64))


def test_votes_agree_with_plain_forward_passes():
    """Two samples of the same probabilities: 2,000 draws each, five standard errors."""
    for place in ("first-layer", "input"):
        noisy = model(place)
        torch.manual_seed(2)
        with torch.no_grad():
            passes = torch.stack([noisy(X).argmax(1) for _ in range(2_000)])
        slow = nn.functional.one_hot(passes, 4).sum(0) / 2_000
        fast = vote_counts(noisy, X, 2_000, torch.Generator().manual_seed(3)) / 2_000
        assert ((slow - fast).abs() < 5 * (2 * slow * (1 - slow) / 2_000).sqrt() + 1e-3).all()


def test_tally_of_shared_and_own_noise():
    class Identity:
        def outputs(self, h):
            return h

    clean = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    shared = torch.tensor([[[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]]])
    assert tally(Identity(), clean, [shared]).tolist() == [[1, 2], [2, 1]]
    assert tally(Identity(), clean, [shared, shared], together=2).tolist() == [[2, 4], [4, 2]]
    own = torch.tensor([[[0.0, 0.0]], [[0.0, 5.0]]])
    assert tally(Identity(), clean, [own], together=2).tolist() == [[0, 1], [0, 1]]
    soft = tally(Identity(), clean, [shared], scores="soft")
    assert torch.allclose(soft, (clean[:, None] + shared).softmax(2).sum(1).double())


def test_accuracy_leaves_the_mode_as_it_was():
    noisy = model()
    targets = vote_counts(noisy, X, 200, torch.Generator().manual_seed(0)).argmax(1)
    noisy.train()
    assert accuracy(noisy, X, targets, draws=200) > 0.8
    assert accuracy(noisy, X, (targets + 1) % 4, draws=200) < 0.2
    assert noisy.training
