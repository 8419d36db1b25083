"""Attacks on features that are kept: front ends that mix examples where no check looks, examples that are random."""

import secrets

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from securesgd.errors import InvalidInputError
from securesgd.models.front_end import FeatureNetwork, FrontEnd
from securesgd.runtime.randomness import Randomness
from securesgd.training.examples import as_examples
from securesgd.training.kept_features import KeptFeatures
from tests.training.conftest import small_settings


class Later(nn.Module):
    """A front end that mixes examples when it was called often enough for all checks to be over."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def forward(self, x):
        self.left -= 1
        return x - x.mean(0) if self.left < 0 else x


class Large(nn.Module):
    """A front end that mixes the examples of large batches."""

    def forward(self, x):
        return x - x.mean(0) if len(x) > 16 else x


def kept(layer, data, folder):
    model = FeatureNetwork(nn.Sequential(FrontEnd(layer, nn.Flatten()), nn.Linear(36, 3)))
    settings = small_settings(noise_seed=None, copies=2, kept_copies=True)
    return KeptFeatures(model, as_examples(data), settings, Randomness(b"0123456789abcdef"), folder)


def pictures(count=300):
    return torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(count, dtype=torch.long)


def test_a_later_front_end_that_mixes_is_refused(tmp_path, monkeypatch):
    """After sixteen passes before, two for the block that is tried, here the first: in the second block."""
    monkeypatch.setattr(secrets, "choice", lambda blocks: blocks[0])
    with pytest.raises(InvalidInputError, match="the front end mixes examples"):
        kept(Later(18), pictures(), tmp_path)


def test_a_large_front_end_that_mixes_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="the front end mixes examples"):
        kept(Large(), pictures(), tmp_path)


def test_numbers_that_are_not_finite_do_not_pass_for_mixing(tmp_path):
    """An example must not end the run: NaN is not equal to itself."""
    inputs, targets = pictures(40)
    features = kept(nn.Threshold(0.0, torch.nan), (inputs - 0.5, targets), tmp_path)
    assert torch.isnan(features.batch(np.arange(40))[0]).any()


class RandomExamples(Dataset):
    """Examples that are moved at random when they are read."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((1, 6, 6), index / 20) + 0.01 * torch.rand(1, 6, 6), 0


def test_features_of_random_examples_are_the_same_in_a_second_attempt(tmp_path):
    """Read before the generator was seeded, they were others: other gradients under the same noise."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(kept(nn.Identity(), RandomExamples(), tmp_path).batch(np.arange(20))[0])
    assert torch.equal(*found)
