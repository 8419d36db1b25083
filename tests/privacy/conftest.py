"""A ledger of one release and three blocks."""

import pytest

from securesgd.privacy import (
    GaussianRelease,
    Ledger,
    SampledGaussianSteps,
)

RELEASE = GaussianRelease(noise_multiplier=10.0, label="redistribution r")


def block(count, noise=2.0, rate=0.05):
    return SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=count)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def written(path):
    """A closed ledger of one release and three blocks."""
    with Ledger.create(path, delta=1e-5, target_epsilon=3.0, accountant="rdp") as ledger:
        ledger.record(RELEASE)
        for first in (0, 50, 100):
            ledger.reserve(block(50), first_step=first, stream="run")
    return path
