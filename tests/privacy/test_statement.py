"""The statement carries the figure with everything it depends on."""

import importlib.metadata
import json
import math

import pytest

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    epsilon_spent,
    privacy_statement,
)

RUN = SampledGaussianSteps(sampling_rate=0.01, noise_multiplier=1.0, steps=100)


def test_a_guaranteed_statement():
    statement = privacy_statement([RUN], 1e-5, "rdp")
    assert statement.epsilon == statement.accounted_epsilon == epsilon_spent([RUN], 1e-5, "rdp")
    assert statement.guaranteed
    assert statement.reasons == statement.cautions == ()
    assert statement.adjacency == "zero-out"
    assert statement.accountant_version == f"dp-accounting {importlib.metadata.version('dp-accounting')}"
    shown = float(statement.in_words[1:].split(",")[0])
    assert statement.epsilon <= shown < statement.epsilon + 1e-4
    for part in ("1e-05", "replacing one training example by one that contributes nothing", "RDP", "dp-accounting"):
        assert part in statement.in_words


def test_an_unprotected_release_voids_the_guarantee_and_says_why():
    broken = UnprotectedRelease(label="redistribution r", reason="as published, from private gradients")
    statement = privacy_statement([RUN, broken], 1e-5)
    assert statement.epsilon == math.inf
    assert not statement.guaranteed
    assert statement.reasons == ("redistribution r: as published, from private gradients",)
    assert "not guaranteed: redistribution r: as published, from private gradients" in statement.in_words
    assert statement.accounted_epsilon == epsilon_spent([RUN], 1e-5)
    assert json.loads(json.dumps(statement.json(), allow_nan=False))["epsilon"] == "inf"


def test_no_noise_is_a_reason():
    statement = privacy_statement([GaussianRelease(noise_multiplier=0, label="mean")], 1e-5)
    assert statement.reasons == ("mean: noise multiplier 0 is no protection",)


def test_weak_settings_are_remarked():
    assert "above 1/n for n = 1000000" in privacy_statement([RUN], 1e-5, dataset_size=10**6).in_words
    assert not privacy_statement([RUN], 1e-5, dataset_size=60000).cautions
    little = SampledGaussianSteps(sampling_rate=0.01, noise_multiplier=0.05, steps=1)
    assert privacy_statement([little], 1e-5, "rdp").cautions
    with pytest.raises(InvalidInputError, match="dataset_size is 0"):
        privacy_statement([RUN], 1e-5, dataset_size=0)
