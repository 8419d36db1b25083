"""Secret randomness: right distribution, fresh per step, repeatable, independent of threads."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm

from securesgd.training.randomness import Randomness, _state_is_mersenne_twister


def drawn(randomness, step, size=300_000, std=1.0, dtype=torch.float32):
    tensors = [torch.zeros(size // 3, dtype=dtype), torch.zeros(2, size // 3, dtype=dtype)]
    randomness.add_noise(tensors, std, step)
    return torch.cat([t.flatten() for t in tensors]).double().numpy()


def accepts_std(sample, std):
    n = sample.size
    return chi2.ppf(1e-7, n) < (sample**2).sum() / std**2 < chi2.ppf(1 - 1e-7, n)


def test_noise_is_gaussian_of_the_given_std():
    sample = drawn(Randomness.from_seed(0), 5, std=2.5)
    assert accepts_std(sample, 2.5)
    assert not accepts_std(sample, 2.5 * 0.98)
    assert not accepts_std(sample, 2.5 * 1.02)
    assert kstest(sample / 2.5, norm.cdf).pvalue > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_and_independence_of_neighbours(dtype):
    """Frequencies beyond 3, 4 and 4.5 standard deviations; squares of the two halves Box and Muller make together."""
    sample = drawn(Randomness.from_seed(1), 0, size=6_000_000, dtype=dtype)
    for limit in (3.0, 4.0, 4.5):
        expected = sample.size * 2 * norm.sf(limit)
        assert abs(np.sum(np.abs(sample) > limit) - expected) < 5 * np.sqrt(expected)
    first, second = sample[: sample.size // 2], sample[sample.size // 2 :]
    bound = 5 / np.sqrt(first.size)
    assert abs(np.corrcoef(first, second)[0, 1]) < bound
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < bound
    assert np.isfinite(sample).all()


def test_steps_and_keys_are_independent_and_repeatable():
    randomness = Randomness.from_seed(0)
    first, again = drawn(randomness, 0), drawn(randomness, 0)
    assert np.array_equal(first, again)
    limit = 5 / np.sqrt(first.size)
    for other in (
        drawn(randomness, 1),
        drawn(Randomness.from_seed(1), 0),
        np.roll(first, first.size // 2),
        np.roll(first, 1),
    ):
        assert abs(np.mean(first * other)) < limit


def test_number_of_threads_does_not_change_the_noise():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = drawn(Randomness.from_seed(0), 0)
        torch.set_num_threads(2)
        assert np.array_equal(one, drawn(Randomness.from_seed(0), 0))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rate", [0.001, 0.2, 1.0])
def test_poisson_sampling_includes_each_example_independently(rate):
    randomness, count, steps = Randomness.from_seed(0), 500, 4000
    member = np.zeros((steps, count), dtype=bool)
    for step in range(steps):
        member[step, randomness.poisson_sample(step, count, rate)] = True
    sizes = member.sum(axis=1)
    expected = count * rate
    assert abs(sizes.mean() - expected) <= 5 * np.sqrt(expected * (1 - rate) / steps)
    if rate < 1:  # the size itself varies like a binomial: a fixed batch size would not
        assert sizes.var() == pytest.approx(expected * (1 - rate), rel=0.15)
        assert abs(np.corrcoef(member[:, 0], member[:, 1])[0, 1]) < 5 / np.sqrt(steps) or rate < 0.01


def test_secret_keys_differ_and_do_not_show():
    first, second = Randomness.secret(), Randomness.secret()
    assert first.key != second.key
    assert str(first.key) not in repr(first)
    assert first.stream("a") != second.stream("a")
    assert first.stream("a") != first.stream("b")


def test_model_noise_has_the_whole_key_behind_it():
    """torch.manual_seed keeps 32 bits; the state is set from the key instead, and differs from every seeded one."""
    first, second = Randomness.from_seed(0), Randomness.from_seed(1)
    assert _state_is_mersenne_twister()
    with torch.random.fork_rng():
        draws = []
        for randomness, position in ((first, 0), (first, 0), (first, 1), (second, 0)):
            randomness.seed_model(position)
            draws.append(torch.randn(50_000))
        torch.manual_seed(int(first.generator("model", 0).integers(2**63)))
        seeded = torch.randn(50_000)
    assert torch.equal(draws[0], draws[1])
    for other in (draws[2], draws[3], seeded):
        assert abs(float((draws[0] * other).mean())) < 5 / np.sqrt(50_000)
    assert kstest(draws[0].numpy(), norm.cdf).pvalue > 1e-6
