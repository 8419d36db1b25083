"""Each error of the paper listed in docs/reference/errata.md, shown by a counter-example."""

import numpy as np
import pytest
from scipy.stats import norm

from securesgd import HeterogeneousGaussianMechanism
from securesgd.errors import InvalidInputError
from securesgd.theory import delta_from, from_scores, noise_multiplier, validated, whitened_radius

GENERATOR = np.random.default_rng(0)


def test_a_component_without_noise_is_published_exactly():
    """r_k = 0: two data sets that differ in component k are told apart with certainty, so no epsilon is enough."""
    with pytest.raises(InvalidInputError, match="published exactly"):
        validated([0.5, 0.5, 0.0])
    r = np.array([0.5, 0.5 - 1e-12, 1e-12])
    mechanism = HeterogeneousGaussianMechanism.for_components([0, 0, 1], r, epsilon=1, delta=1e-5)
    assert mechanism.sensitivity > 5e5  # and infinite in the limit


def test_extended_is_not_always_below_classic():
    """The paper: "a little bit better than the traditional mechanism when epsilon <= 1". Not at epsilon = 1."""
    assert noise_multiplier(0.5, 1e-5, "extended") < noise_multiplier(0.5, 1e-5, "classic")
    assert noise_multiplier(1.0, 1e-5, "extended") > noise_multiplier(1.0, 1e-5, "classic")


def test_condition_one_is_needed():
    """Beyond delta = √(2/π) the printed formula has no value at all, and from 0.48 on its proof does not hold."""
    delta = 0.9
    assert np.log(np.sqrt(2 / np.pi) / delta) < 0
    assert delta_from(noise_multiplier(1, delta, "extended"), 1) <= delta


def test_redistribution_works_with_the_analytic_mechanism():
    """The paper: AGM cannot redistribute. Whitening shows it can: the worst case of a skewed r, exactly private."""
    r, bounds = np.array([0.05, 0.15, 0.8]), np.array([1.0, 2.0, 0.5])
    mechanism = HeterogeneousGaussianMechanism.for_components(bounds, r, epsilon=1, delta=1e-5)
    distance = np.linalg.norm(bounds / mechanism.std)
    assert delta_from(1 / distance, 1) == pytest.approx(1e-5, rel=1e-6)
    extended = HeterogeneousGaussianMechanism.for_components(bounds, r, epsilon=1, delta=1e-5, mechanism="extended")
    assert (mechanism.std < 0.8 * extended.std).all()


def test_r_from_private_data_leaks():
    """The paper: r "does not risk any privacy leakage". One example can make r differ with certainty."""
    without = np.array([[1.0, 0.0], [1.0, 0.0]])  # |∂L/∂h₁| of two examples
    with_one_more = np.vstack([without, [[0.0, 1.0]]])
    assert from_scores(without.mean(axis=0))[1] != from_scores(with_one_more.mean(axis=0))[1]


def test_noise_drawn_once_is_an_offset():
    """Alg. 1 line 3 draws γ once: then every "vote" agrees, p = 1, at a point as close to the boundary as you like."""
    gamma = GENERATOR.standard_normal()
    x = 0.01 - gamma  # so that x + γ = 0.01: the prediction flips at distance 0.01
    votes = np.full(10_000, x + gamma > 0)
    assert votes.mean() == 1
    assert whitened_radius(votes.mean() - 1e-3, 1e-3) > 100 * 0.01
    fresh = x + GENERATOR.standard_normal(10_000) > 0
    assert fresh.mean() != votes.mean()


def test_clipping_by_the_norm_of_squares_does_not_clip():
    """The equation in the text divides by max(1, ‖g²‖/C); Algorithm 1 has ‖g‖₂. The former leaves norms above C."""
    gradient, bound = np.array([0.2, 0.0]), 0.1
    printed = gradient / max(1, np.linalg.norm(gradient**2) / bound)
    algorithm = gradient / max(1, np.linalg.norm(gradient) / bound)
    assert np.linalg.norm(printed) > bound
    assert np.linalg.norm(algorithm) == pytest.approx(bound)


def test_drawing_r_anew_with_every_vote_needs_the_worst_r():
    """The paper: r "can also be randomly drawn" per vote. With the sensitivity of the average r the radius is wrong."""
    margin = 0.5  # distance to the plane x₁ = 0, in units of σ
    p = np.mean([norm.cdf(margin / np.sqrt(2 * share)) for share in (0.9, 0.1)])
    assert whitened_radius(p, 1 - p) > margin  # Δ = 1 of the uniform average
    assert whitened_radius(p, 1 - p) * np.sqrt(2 * 0.1) < margin  # Δ of the worst r
