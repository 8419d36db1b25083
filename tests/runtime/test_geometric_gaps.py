"""Samples by gaps: the table is exact, the law is that of independent coins, the cost is that of the sample.

The statistical tests have a fixed seed; each would fail by chance for one seed in 10,000 or fewer.
"""

import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2

from securesgd.runtime.geometric_gaps import MOST_GAP, _first_above, gap_sample, gap_table
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import MOST_BY_WORD, Randomness
from securesgd.training.fingerprint import ResumeFingerprint
from securesgd.training.loop import per_example_cross_entropy
from securesgd.training.settings import MAX_STEPS, TrainingSettings

UNIT = Fraction(1, 2**128)
FLAKE = 1e-4


def stream(step=0):
    return KeyStream(bytes(range(16))).child(str(step))


def chi_square(counts, expected):
    """The probability of a statistic at least as large, if the expected counts are the true ones."""
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


@pytest.mark.parametrize("rate", [0.5, 0.3, 1 / 3, 2.0**-20, 1e-3, 1e-9, 5e-324])
def test_every_entry_of_the_table_is_within_a_unit_of_the_exact_probability(rate):
    high, low = gap_table(rate)
    assert 1 <= len(high) == len(low) <= MOST_GAP
    stays = 1 - Fraction(rate)
    few = sorted({j for j in (1, 2, 3, 7, 50, 200) if j <= len(high)}) if rate > 1e-300 else [1]
    for j in few:
        entry = Fraction((int(high[j - 1]) << 64) + int(low[j - 1])) * UNIT
        assert abs(entry - (1 - stays**j)) < Fraction(101, 100) * UNIT


@pytest.mark.parametrize("rate", [1e-3, 1e-7])
def test_the_last_entries_are_exact_too(rate):
    mpmath = pytest.importorskip("mpmath")
    high, low = gap_table(rate)
    with mpmath.workdps(120):
        for j in (len(high) // 2, len(high) - 1, len(high)):
            exact = (1 - (1 - mpmath.mpf(rate)) ** j) * mpmath.mpf(2) ** 128
            assert abs(exact - ((int(high[j - 1]) << 64) + int(low[j - 1]))) < 1.01
    entries = high.astype(object) * 2**64 + low.astype(object)
    assert (np.diff(entries) >= 0).all()


def test_equal_high_words_are_decided_by_the_low_ones():
    high, low = np.array([3, 5, 5, 9], np.uint64), np.array([0, 4, 8, 1], np.uint64)
    words = [(2, 9), (3, 0), (5, 3), (5, 4), (5, 7), (5, 8), (9, 0), (9, 1), (10, 0)]
    table = [int(h) * 2**64 + int(v) for h, v in zip(high, low, strict=True)]
    expected = [next((i for i, entry in enumerate(table) if h * 2**64 + v < entry), 4) for h, v in words]
    found = _first_above(high, low, *(np.array(part, np.uint64) for part in zip(*words, strict=True)))
    assert found.tolist() == expected == [0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("rate", [0.0002, 0.01, 0.3, 0.5, 0.7, 0.999])
def test_sizes_are_binomial_and_positions_uniform(rate):
    count, draws = 3000, 3000
    samples = [gap_sample(stream(i), count, rate) for i in range(draws)]
    assert all((np.diff(sample) > 0).all() and (len(sample) == 0 or sample[-1] < count) for sample in samples)
    sizes = np.array([len(sample) for sample in samples])
    edges = np.unique(binom.ppf(np.linspace(0, 1, 9)[1:-1], count, rate))
    shares = np.diff(np.concatenate([[0], binom.cdf(edges, count, rate), [1]]))
    counts = np.bincount(np.searchsorted(edges, sizes), minlength=len(shares))
    assert chi_square(counts, draws * shares) > FLAKE
    members = np.bincount(np.concatenate(samples), minlength=count).reshape(20, -1).sum(axis=1)
    variance = draws * (count / 20) * rate * (1 - rate)
    assert chi2.sf(((members - draws * (count / 20) * rate) ** 2 / variance).sum(), 20) > FLAKE


@pytest.mark.parametrize("rate", [0.02, 0.4, 0.8])
def test_neighbours_are_independent(rate):
    """The four outcomes of two examples, near and far, first and last, have the frequencies of two coins."""
    count, draws = 300, 20_000
    member = np.zeros((draws, count), bool)
    for i in range(draws):
        member[i, gap_sample(stream(i), count, rate)] = True
    expected = draws * np.outer([1 - rate, rate], [1 - rate, rate]).ravel()
    for a, b in ((0, 1), (0, 2), (100, 107), (0, 299), (298, 299)):
        outcomes = np.bincount(2 * member[:, a] + member[:, b], minlength=4)
        assert chi_square(outcomes, expected) > FLAKE


def test_gaps_beyond_the_table_have_the_same_law():
    """At rate 1e-5 half of all gaps are longer than the table: they are passed by in several words."""
    rate, count = 1e-5, 2 * 10**9
    sample = gap_sample(stream(), count, rate)
    gaps = np.diff(np.concatenate([[-1], sample]))
    edges = np.array([1000, 20_000, MOST_GAP - 1, MOST_GAP, MOST_GAP + 100, 2 * MOST_GAP, 3 * MOST_GAP, 500_000])
    shares = np.diff(np.concatenate([[0], -np.expm1(edges * np.log1p(-rate)), [1]]))
    counts = np.bincount(np.searchsorted(edges, gaps), minlength=len(shares))
    large = shares * len(gaps) > 5
    assert chi_square(counts[large], shares[large] * len(gaps)) > FLAKE
    assert abs(len(sample) - count * rate) < 5 * np.sqrt(count * rate)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, []), (1.0, list(range(7)))])
def test_rates_at_the_ends(rate, expected):
    assert gap_sample(stream(), 7, rate).tolist() == expected
    assert gap_sample(stream(), 0, 0.3).tolist() == []
    assert gap_sample(stream(), 10**6, 1e-300).tolist() == []


def test_few_examples_keep_the_words_they_had():
    """Seeded runs were recorded with one word per example; only larger data sets are sampled by gaps."""
    randomness, rate = Randomness.from_seed(0, "test"), 0.003
    words = randomness.stream("sampling", 5).words(MOST_BY_WORD)
    by_word = np.flatnonzero(words < np.uint64(int(rate * 2.0**64)))
    assert np.array_equal(randomness.poisson_sample(5, MOST_BY_WORD, rate), by_word)
    above = randomness.poisson_sample(5, MOST_BY_WORD + 1, rate)
    assert np.array_equal(above, gap_sample(randomness.stream("sampling", 5), MOST_BY_WORD + 1, rate))
    assert np.array_equal(above, randomness.poisson_sample(5, MOST_BY_WORD + 1, rate))
    assert not np.array_equal(above[:100], by_word[:100])


def test_a_run_that_was_sampled_by_words_is_not_resumed_by_gaps(monkeypatch):
    """A step repeated with another sample would be a second release under the same noise."""
    settings = TrainingSettings(delta=1e-5, epsilon=3.0, batch_size=64, steps=5)

    def digest(examples):
        model = torch.nn.Linear(2, 2)
        return ResumeFingerprint(settings, model, per_example_cross_entropy, examples, 1, None, 1.0).digest(1.0)

    by_gaps, by_word = digest(MOST_BY_WORD + 1), digest(MOST_BY_WORD)
    monkeypatch.setattr("securesgd.training.fingerprint.MOST_BY_WORD", 10**12)
    assert digest(MOST_BY_WORD) == by_word
    assert digest(MOST_BY_WORD + 1) != by_gaps


def test_the_cost_is_that_of_the_sample():
    """A thousand times as many examples: the same number of words, and far from a thousand times the time."""
    randomness, seconds = Randomness.from_seed(0, "test"), {}
    for count in (200_000, 200_000_000):
        randomness.poisson_sample(0, count, 256 / count)  # makes the table
        began = time.perf_counter()
        for step in range(20):
            randomness.poisson_sample(step, count, 256 / count)
        seconds[count] = time.perf_counter() - began
    assert seconds[200_000_000] < 50 * seconds[200_000]


def test_the_distance_from_the_law_is_nothing_in_the_longest_run():
    distance = MAX_STEPS * (9 * 3 * 10**10 + 2 * MOST_GAP) * UNIT
    assert distance < Fraction(1, 10**20)
    for rate in (0.5, 0.01, 1e-4, 1e-8):  # what the docstring says about the length of the table
        assert len(gap_table(rate)[0]) * rate <= 7 + rate
