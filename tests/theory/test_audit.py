"""Lower bounds of epsilon from guesses: against a linear program, another library's numbers, and at the ends."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from securesgd.errors import InvalidInputError
from securesgd.theory import delta_from, epsilon_from
from securesgd.theory.audit import (
    GaussianTradeoff,
    LineTradeoff,
    gaussian_epsilon_bound,
    gaussian_mu,
    simple_epsilon_bound,
    simple_p_value,
    tradeoff_p_value,
    tradeoff_rejects,
)

# jax_privacy 2.0.0, CanaryScoreAuditor with an Explicit threshold: canaries, guesses, right, delta, failure_prob,
# epsilon_one_run, epsilon_one_run_fdp.
RECORDED = [
    (1000, 100, 90, 1e-05, 0.05, 1.6261436787042223, 2.4564050672094146),
    (1000, 100, 90, 0.001, 0.01, 0.0, 1.3442647510409849),
    (1000, 60, 60, 1e-05, 0.05, 2.9438888005003823, 4.434002012462314),
    (5000, 250, 210, 1e-05, 0.05, 1.3591265622893507, 1.83010865400561),
    (21000, 1050, 873, 1e-05, 0.05, 1.449997607883204, 1.8611773853937799),
    (21000, 1050, 1050, 1e-05, 0.05, 5.20783568050044, 8.420045820550646),
    (400, 200, 130, 1e-05, 0.05, 0.36599646426986665, 0.6656307712040366),
    (400, 200, 130, 0.001, 0.01, 0.0, 0.2534200838574342),
    (100, 50, 26, 1e-05, 0.05, 0.0, 0.0),
    (1000, 1000, 640, 1e-05, 0.05, 0.4649612167613361, 0.889884199108858),
]


def lines_of_gaussian(mu: float) -> tuple[list[float], list[float]]:
    epsilons = np.linspace(0, 6, 121)
    return list(epsilons), [float(delta_from(1 / mu, e)) for e in epsilons]


def largest_tail(canaries: int, guesses: int, right: int, epsilons: list[float], deltas: list[float]) -> float:
    """Return max Σ_{j >= right} p_j over all distributions with A_i <= e^ε·B_i + δ, and the same of complements.

    Written from the inequalities, without the recursion: one row for each i and each (ε, δ).
    """
    j = np.arange(guesses + 1)
    rows, limits = [], []
    for i in range(1, guesses + 1):
        a = (j >= i) * j / canaries
        b = (j >= i - 1) * (guesses - j) / canaries
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            rows += [a - math.exp(epsilon) * b, a * math.exp(epsilon) - b]
            limits += [delta, math.exp(epsilon) - 1 + delta]
    result = linprog(
        -(j >= right).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(guesses + 1)], b_eq=[1.0], bounds=(0, 1)
    )
    assert result.status == 0
    return -float(result.fun)


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(20, 10, 8), (20, 10, 10), (12, 12, 9), (60, 8, 7)])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_recursion_is_the_linear_program(canaries, guesses, right, mu):
    epsilons, deltas = lines_of_gaussian(mu)
    value = tradeoff_p_value(canaries, guesses, right, LineTradeoff(epsilons, deltas))
    assert value == pytest.approx(largest_tail(canaries, guesses, right, epsilons, deltas), rel=1e-3)


def test_lines_are_above_the_curve_they_are_tangents_of():
    lines, exact = LineTradeoff(*lines_of_gaussian(0.7)), GaussianTradeoff(0.7)
    for probability in np.linspace(1e-4, 0.9999, 60):
        assert lines.least(probability) == pytest.approx(exact.least(probability), abs=2e-3)
        assert lines.least(probability) <= exact.least(probability) + 1e-12
    assert exact.least(0.0) == 0.0
    assert exact.least(1.0) == 1.0


@pytest.mark.parametrize("recorded", RECORDED)
def test_bounds_are_those_of_jax_privacy(recorded):
    *game, delta, failure_prob, simple, tradeoff = recorded
    assert simple_epsilon_bound(*game, delta, failure_prob) == pytest.approx(simple, abs=3e-4)
    assert gaussian_epsilon_bound(*game, delta, failure_prob) == pytest.approx(tradeoff, abs=2e-3)


def test_recorded_numbers_are_what_jax_privacy_computes_here():
    auditing = pytest.importorskip("jax_privacy.auditing")
    for canaries, guesses, right, delta, failure_prob, simple, tradeoff in RECORDED:
        inside = right + (canaries - guesses) // 2
        ins = np.r_[np.ones(right), np.zeros(inside - right)]
        outs = np.r_[np.ones(guesses - right), np.zeros(canaries - inside - guesses + right)]
        auditor, at = auditing.CanaryScoreAuditor(ins, outs), auditing.Explicit(0.5)
        assert auditor.epsilon_one_run(failure_prob, delta, threshold_strategy=at) == pytest.approx(simple, abs=1e-6)
        assert auditor.epsilon_one_run_fdp(failure_prob, delta, threshold_strategy=at) == pytest.approx(
            tradeoff, abs=1e-6
        )


def test_without_delta_the_p_value_is_a_binomial_tail():
    for epsilon in (0.0, 0.5, 2.0):
        tail = binom.sf(69, 100, 1 / (1 + math.exp(-epsilon)))
        assert simple_p_value(1000, 100, 70, epsilon, 0.0) == pytest.approx(tail, rel=1e-12)
        assert simple_p_value(1000, 100, 70, epsilon, 1e-4) > tail


def test_all_right_proves_what_the_binomial_says():
    for guesses, epsilon in ((60, 2.97), (1000, 5.81)):
        assert simple_epsilon_bound(guesses, guesses, guesses, 1e-12, 0.05) == pytest.approx(epsilon, abs=0.01)


def test_tossed_coins_prove_something_as_seldom_as_promised():
    """Right guesses are Binomial(r, 1/2) then: exactly, the probability of a bound above 0 is at most failure_prob."""
    guesses, canaries, failure_prob = 200, 400, 0.05
    for bound in (simple_epsilon_bound, gaussian_epsilon_bound):
        least = next(v for v in range(guesses) if bound(canaries, guesses, v, 1e-6, failure_prob) > 0)
        alarm = float(binom.sf(least - 1, guesses, 0.5))
        assert 0.005 < alarm <= failure_prob


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_gaussian_mechanism_at_the_claim_is_not_accused_and_one_of_half_the_noise_is(epsilon):
    """Scores N(mu, 1) and N(0, 1), fixed seed; at the claim at most 5 % of the audits are wrong."""
    generator, canaries, guesses, delta = np.random.default_rng(0), 20_000, 1_000, 1e-5
    mu = gaussian_mu(epsilon, delta)
    assert float(epsilon_from(1 / mu, delta)) == pytest.approx(epsilon, abs=1e-6)
    for scale, accused in ((1.0, False), (2.0, True)):
        for _ in range(20):
            coins = generator.random(canaries) < 0.5
            scores = generator.normal(size=canaries) + scale * mu * coins - scale * mu / 2
            guessed = np.argsort(-np.abs(scores))[:guesses]
            right = int(np.sum((scores[guessed] > 0) == coins[guessed]))
            assert tradeoff_rejects(canaries, guesses, right, GaussianTradeoff(mu), 0.05) is accused


def test_more_right_guesses_and_a_weaker_confidence_prove_more():
    bounds = [gaussian_epsilon_bound(1000, 100, right, 1e-5, 0.05) for right in (50, 70, 80, 90, 100)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0
    assert gaussian_epsilon_bound(1000, 100, 90, 1e-5, 0.01) < bounds[3]
    assert gaussian_epsilon_bound(1000, 100, 90, 1e-3, 0.05) < bounds[3]


@pytest.mark.parametrize(
    ("game", "words"),
    [((0, 1, 0), "canaries is 0"), ((10, 11, 0), "guesses is 11"), ((10, 5, 6), "right is 6"), ((10, 5, -1), "right")],
)
def test_counts_that_do_not_fit_are_refused(game, words):
    for bound in (simple_epsilon_bound, gaussian_epsilon_bound):
        with pytest.raises(InvalidInputError, match=words):
            bound(*game, 1e-5, 0.05)
