import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, multinomial

from securesgd.errors import InvalidInputError
from securesgd.theory.majority import ahead_log_p_value, allowed_failures, proven_ahead


@pytest.mark.parametrize(("first", "second"), [(0, 5), (1, 0), (7, 3), (60, 40), (900, 100), (5, 5)])
def test_p_value_is_the_one_of_an_independent_implementation(first, second):
    expected = binomtest(first, first + second, 0.5, alternative="greater").pvalue
    assert math.exp(ahead_log_p_value(first, second)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("probabilities", [(0.5, 0.5, 0.0), (0.3, 0.3, 0.4), (0.1, 0.1, 0.8), (0.3, 0.35, 0.35)])
def test_a_class_that_is_not_ahead_is_called_so_no_more_often_than_stated(probabilities):
    """Exact, by adding up all outcomes of 30 draws of three classes."""
    draws, alpha = 30, 0.05
    counts = np.array(
        [(a, b, draws - a - b) for a, b in itertools.product(range(draws + 1), repeat=2) if a + b <= draws]
    )
    called = proven_ahead(counts[:, 0], counts[:, 1], alpha)
    rate = multinomial.pmf(counts[called], draws, probabilities).sum()
    assert rate <= alpha
    if probabilities == (0.5, 0.5, 0.0):
        assert rate > alpha / 3  # and not by never saying so


def test_power():
    assert proven_ahead(560, 440, 1e-3)
    assert not proven_ahead(520, 480, 1e-3)
    assert not proven_ahead(0, 0, 0.5)
    assert list(proven_ahead([900, 100], [100, 900], 1e-6)) == [True, False]


@pytest.mark.parametrize("claims", [0, 1, 10, 500, 10_000])
def test_allowed_failures_is_the_quantile(claims):
    for failure_prob in (0.001, 0.05):
        allowed = allowed_failures(claims, failure_prob)
        assert binom.sf(allowed, claims, failure_prob) <= 1e-3
        assert allowed == 0 or binom.sf(allowed - 1, claims, failure_prob) > 1e-3


def test_bad_votes_are_refused():
    with pytest.raises(InvalidInputError, match="whole numbers"):
        ahead_log_p_value(0.5, 1)
    with pytest.raises(InvalidInputError, match=r"failure_prob is .*; valid: a number in \(0, 1\)"):
        proven_ahead(1, 0, 1.0)
