"""One training run with canaries: each leaves its own trace through the real engine, and guesses are honest."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.audit.canaries import AuditedNetwork, CanaryCounts, audited_examples, audited_loss
from securesgd.audit.claim import Claim, sampled_epsilon_bound
from securesgd.audit.game import play
from securesgd.audit.guesses import count_right, white_box_scores
from securesgd.audit.measure import AuditSettings, audit_config, audited_training
from securesgd.audit.sabotage import SABOTAGES
from securesgd.clipping.engine import ClippingEngine
from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.theory.audit import gaussian_epsilon_bound
from securesgd.training.consistency import joint_loss
from securesgd.training.loop import per_example_cross_entropy
from securesgd.training.settings import TrainingSettings

COUNTS = CanaryCounts(weights=2_000, biases=200, data=50)
SMALL = {"delta": 1e-5, "network": "mlp", "batch_size": 512, "steps": 6, "accountant": "rdp"}


def audit(epsilon=1.0, method="dpsgd", changes=None, **settings):
    config = run_config("digits", method, **{"epsilon": epsilon} | SMALL | (changes or {}))
    return audit_config(config, AuditSettings(canaries=COUNTS, seed=0, **settings))


def test_every_canary_adds_the_clipping_norm_in_its_own_direction_and_examples_add_nothing_there():
    counts = CanaryCounts(weights=10, biases=12, data=10)
    model = AuditedNetwork(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2), counts)
    coins = np.random.default_rng(0).random(32) < 0.5
    inputs, targets = torch.rand(7, 1, 2, 2), torch.arange(7) % 3
    data = (torch.rand(10, 1, 2, 2), torch.arange(10) % 3)
    examples = audited_examples(inputs, targets, coins, counts, data, 3)
    assert len(examples) == 7 + coins.sum()
    loss = audited_loss(model, per_example_cross_entropy, 3, 0.5)
    engine = ClippingEngine(model, 0.5)
    sums = engine.clipped_sum(*examples.batch(np.arange(len(examples))), loss)
    assert engine.slow_reason is None
    assert model.traces(sums.gradients) == pytest.approx(0.5 * coins[:22], abs=1e-6)
    norms = sums.norms[7 : 7 + int(coins[:22].sum())].numpy()
    assert norms == pytest.approx(np.full(len(norms), 50.0), rel=1e-5)  # far above the limit
    alone = ClippingEngine(model, 0.5).clipped_sum(*examples.batch(np.arange(7)), loss)
    assert not model.traces(alone.gradients).any()
    biases = sums.gradients["biases.bias"].numpy()
    assert biases == pytest.approx(0.5 * coins[10:22] / np.sqrt(1.01), abs=1e-6)


def test_copies_that_are_to_agree_leave_the_traces_of_canaries_as_they_are():
    counts, copies = CanaryCounts(weights=10, biases=12, data=10), 3
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3))
    model, coins = AuditedNetwork(network, (1, 2, 2), counts), np.random.default_rng(0).random(32) < 0.5
    inputs, targets = torch.rand(7, 1, 2, 2), torch.arange(7) % 3
    data = (torch.rand(10, 1, 2, 2), torch.arange(10) % 3)
    settings = TrainingSettings(delta=1e-5, epsilon=1.0, batch_size=4, steps=1, copies=copies, consistency=50.0)
    loss = audited_loss(model, joint_loss(per_example_cross_entropy, settings), 3, 0.5)
    engine = ClippingEngine(model, 0.5)
    examples = audited_examples(inputs, targets, coins, counts, data, 3)
    sums = engine.clipped_sum(*examples.batch(np.arange(len(examples))), loss, copies)
    assert engine.slow_reason is None
    assert model.traces(sums.gradients) == pytest.approx(0.5 * coins[:22], abs=1e-6)
    assert sums.losses[:7].mean() > 2  # the term is there


def test_the_losses_of_examples_are_those_of_the_network_itself():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = AuditedNetwork(network, (1, 2, 2), CanaryCounts(weights=10, biases=10, data=10))
    inputs, targets = torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 1, 0])
    outputs = model(torch.cat([torch.zeros(5, 1), inputs.flatten(1)], dim=1))
    losses = audited_loss(model, per_example_cross_entropy, 3, 1.0)(outputs, targets)
    assert torch.allclose(losses, per_example_cross_entropy(network(inputs), targets))


def test_the_score_is_the_log_likelihood_ratio():
    generator = np.random.default_rng(1)
    traces = 2.0 * generator.normal(size=(40, 5_000))
    scores = white_box_scores(traces, sampling_rate=0.3, clipping_norm=1.0)
    noise = np.median(np.abs(traces - np.median(traces))) / 0.6744897501960817
    assert noise == pytest.approx(2.0, rel=0.02)
    expected = np.log(0.7 + 0.3 * np.exp((traces - 0.5) / noise**2)).sum(axis=0)
    assert scores == pytest.approx(expected, abs=1e-9)
    full = white_box_scores(traces, sampling_rate=1.0, clipping_norm=1.0)
    assert full == pytest.approx(((traces - 0.5) / noise**2).sum(axis=0), abs=1e-9)


def test_noise_of_two_steps_that_is_the_same_is_found_and_cancelled():
    generator, rate = np.random.default_rng(2), 0.3
    coins = generator.random(4_000) < 0.5
    sampled = (generator.random((8, 4_000)) < rate) & coins
    noise = 5.0 * generator.normal(size=(8, 4_000))
    noise[6] = noise[2]
    scores = white_box_scores(sampled + noise, sampling_rate=rate, clipping_norm=1.0)
    assert ((scores > 1e5) == (sampled[2] != sampled[6])).all()
    assert count_right(scores, coins, 500) == 500
    noise[6] = 5.0 * generator.normal(size=4_000)
    assert white_box_scores(sampled + noise, sampling_rate=rate, clipping_norm=1.0).max() < 100


def test_guesses_are_the_furthest_scores_and_do_not_depend_on_the_coins():
    scores = np.array([3.0, -2.0, 0.5, -0.1, 1.0])
    assert count_right(scores, np.array([True, False, False, True, False]), 2) == 2
    assert count_right(scores, np.array([False, False, True, True, True]), 3) == 2


def test_the_bound_by_the_curve_of_the_steps_is_near_that_of_a_gaussian_and_above_the_claim_only_for_less_noise():
    claim = Claim(epsilon=3.0, delta=1e-5, sampling_rate=0.34, noise_multiplier=2.39, steps=20)
    bounds = [sampled_epsilon_bound(21_000, 1_050, right, claim, 0.04) for right in (525, 873, 1026, 1050)]
    assert bounds[0] == 0
    assert bounds == sorted(bounds)
    for right, bound in ((873, bounds[1]), (1026, bounds[2])):
        assert bound == pytest.approx(gaussian_epsilon_bound(21_000, 1_050, right, 1e-5, 0.04), rel=0.06)
    assert bounds[1] < 3 < bounds[2]


def test_shipped_training_keeps_its_claim_and_null_proves_nothing():
    record = audit()
    assert record["holds"]
    assert record["white_box"]["canaries"] == 2_200
    assert record["white_box"]["guesses"] == 110
    assert record["claim"]["epsilon"] == 1.0
    null = audit(insert=False)
    assert null["epsilon_lower_bound"] == 0
    assert record["coins_sha256"] != null["coins_sha256"]


@pytest.mark.parametrize("name", [name for name in SABOTAGES if name != "half-noise"])
def test_broken_training_is_caught_with_few_canaries(name):
    record = audit(sabotage=name)
    assert not record["holds"]
    assert record["white_box"]["tradeoff"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_half_the_noise_is_caught_with_all_canaries_and_the_bound_is_near_the_claim_without(epsilon):
    """The seeds are fixed; of 20 seeds at least 19 came out so (results/audit)."""
    config = run_config("digits", "dpsgd", epsilon=epsilon, **SMALL | {"steps": 20, "accountant": "pld"})
    assert not audit_config(config, AuditSettings(seed=0, sabotage="half-noise"))["holds"]
    honest = audit_config(config, AuditSettings(seed=0))
    assert honest["holds"]
    assert honest["white_box"]["tradeoff"] > 0.35 * epsilon


@pytest.mark.parametrize(
    ("method", "own"),
    [("secure-sgd", {}), ("secure-sgd", {"copies": 2, "consistency": 5.0}), ("dp-ibp", {})],
    ids=["noise", "consistency", "boxes"],
)
def test_networks_with_noise_and_with_boxes_are_audited_too(method, own):
    network = "interval-cnn" if method == "dp-ibp" else "digits-cnn"
    changes = {"network": network, "steps": 1, "batch_size": 1024, "copies": 1} | own
    record = audit(method=method, changes=changes, sabotage="no-clipping")
    assert not record["holds"]


def test_seeds_repeat_an_audit_and_secret_coins_differ():
    config = run_config("digits", "dpsgd", epsilon=3.0, **SMALL | {"steps": 1})
    claim = Claim(epsilon=3.0, delta=1e-5, sampling_rate=0.3, noise_multiplier=1.0, steps=1)
    results = []
    for seed in (5, 5, None, None):
        training = audited_training(config, claim, input_shape=(1, 8, 8), classes=10)
        results.append(play(training, COUNTS, seed=seed))
    assert np.array_equal(results[0].white_box, results[1].white_box)
    assert results[0].coins_sha256 == results[1].coins_sha256
    assert len({result.coins_sha256 for result in results}) == 3


def test_data_of_the_user_are_not_read_unless_asked_for():
    config = run_config("digits", "dpsgd", epsilon=3.0, **SMALL)
    claim = Claim(epsilon=3.0, delta=1e-5, sampling_rate=0.25, noise_multiplier=1.0, steps=1)
    own = audited_training(run_config("nowhere.csv", "dpsgd", epsilon=3.0, **SMALL), claim, input_shape=(3,), classes=2)
    assert own.inputs.shape == (2048, 3)
    assert not own.private
    mine = (torch.rand(30, 1, 8, 8), torch.zeros(30, dtype=torch.long))
    given = audited_training(config, claim, input_shape=(1, 8, 8), classes=10, own_examples=mine)
    assert given.private
    assert len(given.inputs) == 30


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: audit(method="sgd", changes={"epsilon": None}), "method is sgd"),
        (lambda: audit(sabotage="half"), "unknown sabotage 'half'"),
        (lambda: audit(failure_prob=0.7), "failure_prob is 0.7"),
        (lambda: CanaryCounts(weights=3), "weights is 3"),
        (lambda: AuditedNetwork(nn.Embedding(3, 2), (1,), COUNTS), "takes tokens"),
    ],
)
def test_what_cannot_be_audited_is_refused(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()
