"""With equal noise on every pixel the tight rule is randomized smoothing (Cohen et al. 2019), here written plainly."""

import numpy as np
import torch
from scipy.stats import beta, norm

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings

SIGMA, N0, N, ALPHA = 0.25, 100, 10_000, 0.001
EXAMPLES = 20


@torch.no_grad()
def noisy_counts(classifier, x, count, generator):
    """Cohen et al., SampleUnderNoise: repeat x, add fresh noise, whole forward pass."""
    counts = np.zeros(10, dtype=int)
    while count > 0:
        size = min(count, 1_000)
        batch = x.repeat(size, 1, 1, 1)
        noise = SIGMA * torch.randn(batch.shape, generator=generator)
        counts += np.bincount(classifier(batch + noise).argmax(1).numpy(), minlength=10)
        count -= size
    return counts


def cohen_certify(classifier, x, generator):
    """Cohen et al., Algorithm Certify: (class, votes, radius); radius 0 is ABSTAIN."""
    guess = int(noisy_counts(classifier, x, N0, generator).argmax())
    votes = int(noisy_counts(classifier, x, N, generator)[guess])
    p = beta.ppf(ALPHA, votes, N - votes + 1) if votes else 0.0
    return guess, votes, SIGMA * norm.ppf(p) if p > 0.5 else 0.0


def test_example_by_example(smoothed_digits, digits):
    inputs = digits.test_inputs[:EXAMPLES]
    classifier = smoothed_digits.network[1]  # without our noise
    settings = CertifySettings(norm="l2", draws=N, selection_draws=N0, failure_prob=ALPHA, others="rest", seed=0)
    ours = certify(smoothed_digits, inputs, settings)
    better = certify(smoothed_digits, inputs, CertifySettings(norm="l2", draws=N, failure_prob=ALPHA, seed=0))
    generator = torch.Generator().manual_seed(1)
    theirs = [cohen_certify(classifier, x, generator) for x in inputs]
    assert abs(ours.sensitivity.upper * SIGMA - 1) < 1e-6
    compared = 0
    for i, (guess, votes, radius) in enumerate(theirs):
        if ours.prediction[i] != guess:  # two classes nearly tie: neither certifies much
            assert max(radius, ours.radius["tight"][i]) < 0.1
            continue
        # Two independent counts of the same probability: their lower bounds differ by five standard errors at most.
        p = votes / N
        error = 5 * np.sqrt(2 * max(p * (1 - p), 1 / N) / N)
        low, high = (beta.ppf(ALPHA, np.clip(votes + s * error * N, 1, N), np.clip(N - votes - s * error * N, 0, N) + 1)
                     for s in (-1, 1))  # fmt: skip
        assert max(0, SIGMA * norm.ppf(low)) - 1e-9 <= ours.radius["tight"][i]
        assert ours.radius["tight"][i] <= max(0, SIGMA * norm.ppf(high)) + 1e-9
        assert better.radius["tight"][i] >= max(0, SIGMA * norm.ppf(low)) - 1e-9  # `auto` is never worse than that
        compared += 1
    assert compared >= EXAMPLES - 2
    assert len({round(radius, 3) for _, _, radius in theirs}) > 10  # a comparison of many different radii
