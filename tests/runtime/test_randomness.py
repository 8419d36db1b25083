"""Secret randomness: samples of the right law, fresh per step, repeatable, with the whole key behind them."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from securesgd.runtime.randomness import Randomness, _state_is_mersenne_twister


def seeded(seed=0):
    return Randomness.from_seed(seed, "test")


def test_steps_purposes_and_keys_have_streams_of_their_own():
    words = [
        randomness.stream(purpose, step).words(1000)
        for randomness in (seeded(0), seeded(1))
        for purpose in ("noise", "sampling", "model", "one-off release")
        for step in (0, 1)
    ]
    assert len({part.tobytes() for part in words}) == len(words)
    assert np.array_equal(words[0], seeded(0).stream("noise", 0).words(1000))


@pytest.mark.parametrize("rate", [0.001, 0.2, 1.0])
def test_poisson_sampling_includes_each_example_independently(rate):
    randomness, count, steps = seeded(), 500, 4000
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
    assert first.key.hex() not in repr(first)
    assert str(first.key) not in repr(first)
    assert first.name("a") != second.name("a")
    assert first.name("a") != first.name("b")


def test_a_seed_gives_another_key_for_another_context():
    assert Randomness.from_seed(3, "a").key == Randomness.from_seed(3, "a").key
    assert Randomness.from_seed(3, "a").key != Randomness.from_seed(3, "b").key
    assert Randomness.from_seed(3, "a").key != Randomness.from_seed(4, "a").key


def test_model_noise_has_the_whole_key_behind_it():
    """torch.manual_seed keeps 32 bits; the state is set from the key instead, and differs from every seeded one."""
    first, second = seeded(0), seeded(1)
    assert _state_is_mersenne_twister()
    with torch.random.fork_rng():
        draws = []
        for randomness, position in ((first, 0), (first, 0), (first, 1), (second, 0)):
            randomness.seed_model(position)
            draws.append(torch.randn(50_000))
        torch.manual_seed(int(first.stream("model", 0).words(1)[0] >> np.uint64(1)))
        from_32_bits = torch.randn(50_000)
    assert torch.equal(draws[0], draws[1])
    for other in (draws[2], draws[3], from_32_bits):
        assert abs(float((draws[0] * other).mean())) < 5 / np.sqrt(50_000)
    assert kstest(draws[0].numpy(), norm.cdf).pvalue > 1e-6
