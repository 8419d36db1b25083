"""Certificates against the truth: never above it, close to it with many draws, wrong no more often than stated."""

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import binom

from securesgd.certificates.bounds import select_class
from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.sampling import StoppingRule, count_votes
from securesgd.certificates.votes import NoiseSource, Votes
from securesgd.models.split_network import SplitNetwork
from securesgd.theory import NORMS

from .closed_forms import bumpy_network, linear_input, linear_truth, middle_network, two_class_linear

WEIGHTS = np.array([1.0, -2.0, 0.5])
REPETITIONS, ALPHA = 2_000, 0.05
# A procedure that fails with at most ALPHA exceeds this with probability 1e-6; seeds are fixed.
MOST_FAILURES = int(binom.ppf(1 - 1e-6, REPETITIONS, ALPHA))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("place", ["first-layer", "input"])
def test_linear_classifier(norm, place):
    """With noise in the layer the certificate is the exact distance, but for the confidence bound; never above."""
    model = two_class_linear(WEIGHTS, 0.3, place)
    inputs = torch.stack([linear_input(WEIGHTS, p, 0.3, place) for p in (0.55, 0.8, 0.9, 0.99, 0.999)])
    found = certify(model, inputs, CertifySettings(norm=norm, input_range=None, seed=0))
    exact = np.array([linear_truth(WEIGHTS, x, norm, 0.3, place)[1] for x in inputs])
    for rule in ("tight", "analytic", "extended", "classic"):
        assert (found.radius[rule] <= exact).all(), rule
    assert ((found.prediction == 0) | found.abstained).all()
    assert not found.abstained[1:].any()
    if place == "first-layer" or norm == "l2":  # noise at the input is isotropic: as good as exact in l2 only
        assert (found.radius["tight"][1:] > 0.9 * exact[1:]).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(4))
def test_network_by_quadrature(norm, seed):
    truth = bumpy_network(seed)
    inputs = torch.rand(24, 4, generator=torch.Generator().manual_seed(seed))
    found = certify(truth.model, inputs, CertifySettings(norm=norm, draws=5_000, seed=0))
    for i, x in enumerate(inputs):
        top, _, exact = truth.truth(x, norm)
        assert found.radius["tight"][i] <= exact
        assert found.abstained[i] or found.prediction[i] == top


@pytest.mark.parametrize(("p", "failure_prob"), [(0.8, 0.05), (0.9, 0.001), (0.99, 0.001), (0.999, 0.05)])
def test_within_two_percent_of_the_truth_at_a_hundred_thousand_draws(p, failure_prob):
    """At p = 0.999 and failure_prob 0.001 no bound can: 3.09 standard errors of Φ⁻¹(p) are 3 % of it."""
    model, x = two_class_linear(WEIGHTS, 0.3), linear_input(WEIGHTS, p, 0.3)
    settings = CertifySettings(norm="linf", draws=100_000, failure_prob=failure_prob, input_range=None, seed=0)
    found = certify(model, x[None], settings)
    exact = linear_truth(WEIGHTS, x, "linf", 0.3)[1]
    assert 0.98 * exact <= found.radius["tight"][0] <= exact


def outcomes(network, x, settings, seeds):
    """(selected class, SampledBounds) of one input for each seed: independent repetitions of a certification."""
    for seed in seeds:
        votes = [
            Votes(network, x[None], np.arange(1), source=NoiseSource.from_seed(seed), purpose=p)
            for p in ("selection", "counted")
        ]
        first = votes[0].draw(np.arange(1), settings.selection_draws)
        selection = select_class(
            first, settings.selection_draws, settings.others, settings.draws, settings.failure_prob
        )
        yield int(selection.top[0]), count_votes(votes[1], selection, StoppingRule(radius=settings.radius), settings)


def test_failure_rate_over_repetitions_of_the_whole():
    """A failure: p_lower above the truth. A bound that is off by one standard error is caught by the same count."""
    p, draws = 0.9, 320
    network, x = SplitNetwork(two_class_linear(WEIGHTS, 0.3)), linear_input(WEIGHTS, p, 0.3)
    settings = CertifySettings(draws=draws, selection_draws=32, failure_prob=ALPHA, input_range=None)
    lower = np.array([s.p_lower[0] for top, s in outcomes(network, x, settings, range(REPETITIONS)) if top == 0])
    assert len(lower) == REPETITIONS
    failures = int((lower > p).sum())
    assert 0 < failures <= MOST_FAILURES
    wrong = lower + np.sqrt(p * (1 - p) / draws)
    assert int((wrong > p).sum()) > MOST_FAILURES


class Multinomial:
    """Votes of many examples with known probabilities, as `count_votes` wants them."""

    def __init__(self, probabilities, count, generator):
        self.probabilities = np.tile(probabilities, (count, 1))
        self.totals, self.drawn = np.zeros(self.probabilities.shape), np.zeros(count, dtype=np.int64)
        self.generator = generator

    def draw(self, examples, until, on_draws=None):
        more = until - int(self.drawn[examples[0]])
        self.totals[examples] += self.generator.multinomial(more, self.probabilities[examples])
        self.drawn[examples] = until
        return self.totals[examples]


def simulated(probabilities, settings, seed=0):
    generator = np.random.default_rng(seed)
    first = generator.multinomial(settings.selection_draws, probabilities, REPETITIONS).astype(float)
    selection = select_class(first, settings.selection_draws, settings.others, settings.draws, settings.failure_prob)
    return selection, count_votes(
        Multinomial(probabilities, REPETITIONS, generator), selection, StoppingRule(radius=settings.radius), settings
    )


def false_certificates(probabilities, selection, found):
    """How often p_lower, q_upper together say more than is true of the chosen class."""
    probabilities = np.asarray(probabilities)
    p = probabilities[selection.top]
    q = np.array([np.delete(probabilities, top).max() for top in selection.top])
    return int(((found.p_lower > p) | (found.q_upper < q)).sum())


@pytest.mark.parametrize("others", ["rest", "each", "auto"])
@pytest.mark.parametrize("radius", [None, 0.3, 0.8], ids=str)
@pytest.mark.parametrize("probabilities", [(0.8, 0.1, 0.1), (0.45, 0.3, 0.25), (0.35, 0.33, 0.32)], ids=str)
def test_failure_rate_of_every_way_to_bound_and_stop(probabilities, radius, others):
    settings = CertifySettings(draws=2_000, failure_prob=ALPHA, others=others, radius=radius)
    selection, found = simulated(probabilities, settings)
    assert false_certificates(probabilities, selection, found) <= MOST_FAILURES


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("p", [0.55, 0.8, 0.95])
def test_failure_rate_at_the_edge_is_as_stated_and_not_far_below(p, asked):
    """A radius just above the true one: every yes is false. With ten times the failure probability it is noticed."""
    radius = float(ndtri(p)) * 1.0001 if asked else None
    for failure_prob, caught in ((ALPHA, False), (10 * ALPHA, True)):
        settings = CertifySettings(draws=2_000, failure_prob=failure_prob, radius=radius)
        selection, found = simulated((p, 1 - p), settings)
        failures = false_certificates((p, 1 - p), selection, found)
        assert (failures > MOST_FAILURES) == caught
        assert failures > 0
        if asked:
            assert (found.answer == "yes").sum() <= failures


def test_choosing_the_class_on_the_counted_draws_is_caught():
    """Three classes that tie: whoever leads by chance would be certified too often by its own votes."""
    probabilities, settings = (1 / 3, 1 / 3, 1 / 3), CertifySettings(draws=2_000, failure_prob=ALPHA, others="rest")
    generator = np.random.default_rng(0)
    totals = generator.multinomial(settings.draws, probabilities, REPETITIONS).astype(float)

    class Same:
        drawn = np.full(REPETITIONS, settings.draws)

        def draw(self, examples, until, on_draws=None):
            return totals

    peeked = select_class(totals, settings.draws, "rest", settings.draws, ALPHA)
    assert (
        false_certificates(probabilities, peeked, count_votes(Same(), peeked, StoppingRule(), settings)) > MOST_FAILURES
    )
    selection, found = simulated(probabilities, settings)
    assert false_certificates(probabilities, selection, found) <= MOST_FAILURES


def test_rivals_one_by_one_prove_more_than_the_rest_together_and_stay_sound():
    """In the middle of `middle_network` the top class has 68 % and each rival 16 %: 1 − p is twice the best rival."""
    truth = middle_network()
    x = torch.zeros(1, 2)
    top, probabilities, exact = truth.truth(x[0], "l2")
    assert top == 1
    found = {o: certify(truth.model, x, CertifySettings(norm="l2", others=o, seed=0)) for o in ("rest", "each", "auto")}
    radius = {others: float(c.radius["tight"][0]) for others, c in found.items()}
    assert radius["rest"] < 0.7 * radius["each"]
    assert radius["auto"] == radius["each"] <= exact
    best = (ndtri(probabilities[1]) - ndtri(probabilities[0])) / 2 * truth.sigma / np.linalg.norm(truth.weights)
    assert radius["auto"] == pytest.approx(best, rel=0.06)
