import numpy as np
import pytest
from scipy.stats import binom, binomtest

from securesgd.errors import InvalidInputError
from securesgd.theory.confidence import wilson_interval


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (1, 10), (81, 263), (500, 1000), (1000, 1000)])
@pytest.mark.parametrize("failure_prob", [0.05, 0.001])
def test_interval_is_the_one_of_an_independent_implementation(successes, n, failure_prob):
    other = binomtest(successes, n).proportion_ci(1 - failure_prob, method="wilson")
    assert wilson_interval(successes, n, failure_prob) == pytest.approx((other.low, other.high), abs=1e-12)


@pytest.mark.parametrize("n", [50, 500])
def test_coverage_is_what_it_says_on_average_over_the_true_share(n):
    successes = np.arange(n + 1)
    lower, upper = wilson_interval(successes, n)
    shares = np.linspace(0.01, 0.99, 197)
    inside = (lower <= shares[:, None]) & (shares[:, None] <= upper)
    coverage = (binom.pmf(successes, n, shares[:, None]) * inside).sum(1).mean()
    assert 0.945 < coverage < 0.957


def test_arrays_and_edges():
    lower, upper = wilson_interval([0, 5, 10], [10, 10, 10])
    assert lower[0] == 0
    assert upper[2] == 1
    assert np.all(lower <= [0, 0.5, 1])
    assert np.all(upper >= [0, 0.5, 1])
    assert np.all(upper - lower > 0.2)


@pytest.mark.parametrize(
    ("successes", "n", "failure_prob", "message"),
    [
        (11, 10, 0.05, "between 0 and n"),
        (0, 0, 0.05, "n >= 1"),
        (-1, 10, 0.05, "successes is .*; valid: a finite number >= 0"),
        (1, 10, 0, r"failure_prob is .*; valid: a number in \(0, 1\)"),
    ],
)
def test_bad_counts_are_refused(successes, n, failure_prob, message):
    with pytest.raises(InvalidInputError, match=message):
        wilson_interval(successes, n, failure_prob)
