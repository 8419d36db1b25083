"""`certify`: what changes a certificate, what does not, and several processes."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from securesgd.certificates.certify import certify, draws_needed
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.sensitivity import ProvenSensitivities, published_whitened_sensitivity
from securesgd.certificates.votes import smoothed_votes
from securesgd.theory import NORMS, certified_radius, clopper_pearson_lower, published_sensitivity
from securesgd.theory.certificates import BUILT_IN_RULES
from tests.ranks import outputs_of_two

from .closed_forms import linear_input, middle_network, two_class_linear
from .test_votes import INDICES, INPUTS, small, votes

QUICK = CertifySettings(draws=512, selection_draws=64, seed=0)


def columns(found):
    names = ("index", "prediction", "abstained", "answer", "draws", "votes", "p_lower", "q_upper")
    return {name: getattr(found, name).tolist() for name in names} | {r: v.tolist() for r, v in found.radius.items()}


@pytest.mark.parametrize(
    "settings", [QUICK, replace(QUICK, radius=0.01), replace(QUICK, scores="soft")], ids=["all", "asked", "soft"]
)
def test_results_do_not_depend_on_chunks_order_or_company(settings, monkeypatch):
    model = small()
    whole = certify(model, INPUTS, settings, indices=INDICES)
    monkeypatch.setattr("securesgd.certificates.certify._CHUNK", 5)
    assert columns(certify(model, INPUTS, settings, indices=INDICES)) == columns(whole)
    order = np.random.default_rng(0).permutation(len(INPUTS))
    mixed = certify(model, INPUTS[order], settings, indices=INDICES[order])
    assert np.array_equal(mixed.p_lower, whole.p_lower[order])
    some = certify(model, INPUTS[3:5], settings, indices=INDICES[3:5])
    assert np.array_equal(some.radius["tight"], whole.radius["tight"][3:5])


def one_radius(model, x, **changes):
    settings = CertifySettings(**{"norm": "l2", "draws": 2_000, "input_range": None, "seed": 0} | changes)
    return float(certify(model, x[None], settings).radius["tight"][0])


def test_everything_a_certificate_depends_on_changes_it():
    """Confidence, draws, r, the size of the noise, the norm and the weights; each in the right direction."""
    w = np.array([1.0, -2.0, 0.5])
    model, x = two_class_linear(w, 0.3), linear_input(w, 0.9, 0.3)
    base = one_radius(model, x)
    assert one_radius(model, x, failure_prob=1e-6) < base
    assert one_radius(model, x, draws=20_000) > base
    assert one_radius(model, x, seed=1) != base
    assert one_radius(model, x, norm="linf") < base < one_radius(model, x, norm="l1")
    assert one_radius(two_class_linear(w, 0.6), x) != base  # σ_r
    assert one_radius(two_class_linear(w * [1, 1, 2], 0.3), x) != base  # weights
    uneven = two_class_linear(w, 0.3)
    uneven.set_noise(np.array([0.2, np.sqrt(2 * 0.3**2 - 0.2**2)]))  # the same σ_r, another r
    assert one_radius(uneven, x) < base * 0.99
    rest = middle_network()
    assert one_radius(rest.model, torch.zeros(2)) != one_radius(middle_network(half_width=0.6).model, torch.zeros(2))


def test_bounds_are_of_the_counted_draws_and_the_class_of_the_others():
    """By hand from the votes: Clopper–Pearson of the counted ones, for the class the selection draws chose."""
    model = small()
    found = certify(model, INPUTS, replace(QUICK, others="rest"), indices=INDICES)
    chosen = votes(model, INPUTS, INDICES, 64, purpose="selection").argmax(1)
    counted = votes(model, INPUTS, INDICES, 512)[np.arange(len(INPUTS)), chosen]
    assert np.array_equal(found.prediction, chosen)
    assert np.array_equal(found.votes, votes(model, INPUTS, INDICES, 512))
    assert np.array_equal(found.p_lower, clopper_pearson_lower(counted, 512, 0.001))
    assert np.array_equal(found.q_upper, 1 - found.p_lower)


@pytest.mark.parametrize("norm", NORMS)
def test_radii_of_all_rules_come_from_the_same_bounds(norm):
    model = small()
    found = certify(model, INPUTS, replace(QUICK, norm=norm))
    assert tuple(found.radius) == BUILT_IN_RULES
    delta = model.sensitivity(norm).upper
    for rule in ("tight", "analytic", "extended", "classic"):
        expected = certified_radius(
            found.p_lower, found.q_upper, sigma=1, sensitivity=delta, rule=rule, rounding=model.rounding(INPUTS)
        )
        assert np.array_equal(found.radius[rule], expected)
    assert (found.radius["classic"] <= found.radius["analytic"]).all()
    assert (found.radius["analytic"] <= found.radius["tight"]).all()
    assert np.array_equal(found.abstained, found.p_lower <= found.q_upper)
    other = found.in_norm("l1", model)
    again = certify(model, INPUTS, replace(QUICK, norm="l1"))
    assert np.array_equal(other.radius["tight"], again.radius["tight"])
    assert other.settings.norm == "l1"


def test_the_published_sensitivity_is_used_by_the_published_rule_only():
    model = small()
    found = certify(model, INPUTS, QUICK)
    variance = 1 / model.whitening**2
    expected = published_sensitivity(model.linear_map(), variance / variance.sum()) / np.sqrt(variance.mean())
    assert found.published_sensitivity == pytest.approx(expected)
    assert found.published_sensitivity != pytest.approx(found.sensitivity.upper, rel=0.01)
    proven = model.sensitivity("l2")
    assert published_whitened_sensitivity(model, proven) == proven.upper  # the paper has none in l2


def test_a_given_sensitivity_is_used_and_must_be_of_the_norm():
    model = small()
    bound = model.sensitivity("linf")
    doubled = replace(bound, upper=2 * bound.upper)
    once, twice = (certify(model, INPUTS, QUICK, sensitivity=b).radius["tight"] for b in (bound, doubled))
    np.testing.assert_allclose(twice, once / 2, rtol=1e-9)
    with pytest.raises(ValueError, match="sensitivity is in linf, the radii are asked in l2"):
        certify(model, INPUTS, replace(QUICK, norm="l2"), sensitivity=bound)


def test_the_votes_of_an_example_are_those_until_it_stopped():
    found = certify(small(), INPUTS, replace(QUICK, radius=0.01), indices=INDICES)
    assert len(set(found.draws.tolist())) > 1
    assert np.array_equal(found.votes.sum(1), found.draws)


def test_a_sensitivity_is_proven_once_for_the_weights_and_anew_for_others(monkeypatch):
    model, known, calls = small(), ProvenSensitivities(), []
    prove = type(model).sensitivity
    monkeypatch.setattr(type(model), "sensitivity", lambda *words: calls.append(words[1]) or prove(*words))
    first = known.of(model, "linf")
    assert known.of(model, "linf") is first
    assert known.of(model, "l2").norm == "l2"
    assert calls == ["linf", "l2"]
    with torch.no_grad():
        model.noisy.layer.weight.mul_(2)
    assert known.of(model, "linf").upper == pytest.approx(model.sensitivity("linf").upper)
    assert known.of(model, "linf").upper > 1.1 * first.upper
    assert known.of(torch.nn.Linear(2, 2), "linf") is None


def test_soft_scores_are_sound():
    """E softmax by 200,000 independent draws lies inside the bounds."""
    model = small()
    found = certify(model, INPUTS, CertifySettings(draws=3_000, scores="soft", seed=0))
    for i in range(4):
        torch.manual_seed(i)
        with torch.no_grad():
            mean = model(INPUTS[i : i + 1].expand(200_000, 1, 8, 8)).softmax(1).double().mean(0).numpy()
        assert found.p_lower[i] <= mean[found.prediction[i]] + 0.002
        assert np.delete(mean, found.prediction[i]).max() <= found.q_upper[i] + 0.002
        assert found.q_upper[i] - mean.max() < 0.2  # and they say something


def test_progress_ends_at_the_end_and_counts_the_draws():
    seen = []
    found = certify(small(), INPUTS, replace(QUICK, radius=0.01), on_progress=seen.append)
    assert seen[-1].examples == seen[-1].of == len(INPUTS)
    assert seen[-1].draws == found.draws.sum() + 64 * len(INPUTS)
    assert all(a.examples <= b.examples for a, b in itertools.pairwise(seen))


def test_draws_needed_is_exact():
    for settings in (CertifySettings(), CertifySettings(radius=0.1), CertifySettings(scores="soft")):
        for p in (0.5, 0.99):
            needed = draws_needed(p, settings)
            assert 1 < needed < 5_000
            model = two_class_linear([1_000.0], 1.0)
            x = torch.tensor([[0.9]])  # unanimous
            ask = replace(settings, draws=needed, radius=None if settings.radius is None else 0.0, others="rest")
            if not ask.adaptive:
                assert certify(model, x, ask).p_lower[0] > p
                if p > 0.5:
                    assert not certify(model, x, replace(ask, draws=needed - 1)).p_lower[0] > p
    assert draws_needed(1.0, CertifySettings()) == np.inf


def test_rechecking_uses_draws_of_its_own():
    model = small()
    fresh = smoothed_votes(model, INPUTS, 512, indices=INDICES)
    assert np.array_equal(fresh, smoothed_votes(model, INPUTS, 512, indices=INDICES))
    assert (fresh.sum(1) == 512).all()
    assert not np.array_equal(fresh, votes(model, INPUTS, INDICES, 512))
    twice = smoothed_votes(model, INPUTS[:1].expand(2, 1, 8, 8), 512, indices=[4, 4])
    assert np.array_equal(twice[0], twice[1])


WORKER = """
import json, sys
import torch
import torch.distributed as dist
from tests.certificates.test_certify import INDICES, INPUTS, QUICK, columns, replace, small
from securesgd.certificates.certify import certify

dist.init_process_group("gloo")
print(json.dumps([columns(certify(small(), INPUTS, replace(QUICK, radius=r), indices=INDICES)) for r in (None, 0.01)]))
dist.destroy_process_group()
"""


@pytest.mark.slow  # the command in two processes is in `test_run_certificates.py`
def test_two_processes_certify_what_one_does():
    alone = [columns(certify(small(), INPUTS, replace(QUICK, radius=r), indices=INDICES)) for r in (None, 0.01)]
    first, second = (json.loads(out) for out in outputs_of_two(WORKER))
    assert first == second == alone
