"""AdLM from configuration to run folder on the embedded digits: what is claimed, what is not, and resuming."""

import json
import tomllib

import numpy as np
import pytest
import torch

from securesgd.baselines.adlm.network import AdlmNetwork
from securesgd.baselines.adlm.preparation import mean_relevance, pretrain_network
from securesgd.build import build_model
from securesgd.config import RunConfig, run_config
from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError
from securesgd.models.predict import accuracy
from securesgd.privacy import Ledger, UnprotectedRelease
from securesgd.run import load_run
from securesgd.run_training import train_run
from securesgd.training.examples import as_examples
from tests.command_line import run_here

from .test_adlm_network import NOISE

QUICK = {"steps": 12, "batch_size": 200, "noise_seed": 1, "pretrain_steps": 20, "relevance_examples": 200}


def quick(**changes):
    return run_config("digits", "adlm", **QUICK | changes)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_statement_says_not_guaranteed_and_why(tmp_path):
    result = train_run(quick(epsilon=1.5), tmp_path / "run")
    assert not result.privacy.guaranteed
    assert result.privacy.epsilon == float("inf")
    words = result.privacy.in_words
    for part in ("not guaranteed", "guarantee not endorsed", "claims epsilon = 1.5", "act on each noisy example",
                 "no composition is counted", "trained on the private data without noise",
                 "smallest and largest", "read the private data without noise"):  # fmt: skip
        assert part in words
    assert "the method does not protect" not in words
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert [event.label for event in ledger.events] == ["training", "AdLM relevance"]
        assert all(isinstance(event, UnprotectedRelease) for event in ledger.events)
    assert json.loads((tmp_path / "run" / "model.json").read_text())["statement"]["guaranteed"] is False


def test_it_learns_when_the_noise_is_small_and_the_loaded_model_has_no_noise(tmp_path):
    """At an absurd epsilon what is left is the order-2 loss: the digits must be learned."""
    config = run_config("digits", "adlm", epsilon=1e5, noise_seed=0, steps=150)
    result = train_run(config, tmp_path / "run")
    assert result.test_accuracy > 0.85
    model = load_run(tmp_path / "run").model
    assert isinstance(model, AdlmNetwork)
    assert not any(getattr(model, name).any() for name in NOISE)
    assert accuracy(model, result.data.test_inputs, result.data.test_targets) == result.test_accuracy


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_resumed_run_ends_with_the_same_bits(stop, tmp_path):
    """P, input noise and beta come from the run's key: a crash before or after the first checkpoint changes nothing."""
    config = quick(checkpoint_steps=4, epsilon=40.0)
    whole = train_run(config, tmp_path / "whole")

    def crash(report):
        if report.step == stop:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        train_run(config, tmp_path / "broken", on_step=crash)
    resumed = train_run(config, tmp_path / "broken", resume=True)
    assert torch.equal(weights(whole.model), weights(resumed.model))
    with Ledger.open(tmp_path / "broken" / "ledger.jsonl") as ledger:
        assert len(ledger.events) == 2


def test_another_noise_seed_gives_other_noise(tmp_path):
    models = [train_run(quick(noise_seed=seed), tmp_path / str(seed)).model for seed in (1, 2)]
    assert not torch.allclose(weights(models[0]), weights(models[1]))


def test_micro_batches_share_the_noise_of_their_step(tmp_path, monkeypatch):
    """As many draws as steps, however many parts a batch has."""
    drawn = []
    monkeypatch.setattr(AdlmNetwork, "draw", lambda model: drawn.append(int(model.draws)) or model.draws.add_(1))
    for micro_batch in (None, 40):
        drawn.clear()
        train_run(quick(steps=3, micro_batch=micro_batch), tmp_path / str(micro_batch))
        assert drawn == [0, 1, 2]


def test_pretraining_learns_and_leaves_the_model_alone():
    config, data = quick(pretrain_steps=300), load_data("digits")
    model = build_model(config, data.input_shape, 10)
    assert isinstance(model, AdlmNetwork)
    before, examples = weights(model), as_examples((data.train_inputs, data.train_targets))
    trained = pretrain_network(model, examples, np.random.default_rng(0))
    assert torch.equal(weights(model), before)
    assert accuracy(trained, data.test_inputs, data.test_targets) > 0.9
    mean = mean_relevance(trained, model, examples, np.random.default_rng(0))
    assert mean.shape == (8, 8)
    empty = data.train_inputs.amax(dim=(0, 1)).numpy() == 0
    assert (mean[empty] == 0).all()  # what no image uses is relevant to none
    assert np.abs(mean).max() > 0


def test_epsilon_goes_to_the_adlm_table_and_the_presets_have_the_published_shares():
    config = run_config("mnist", "adlm", epsilon=2.0)
    assert config.training.epsilon is None
    assert (config.adlm.relevance_epsilon, config.adlm.input_epsilon, config.adlm.loss_epsilon) == (0.5, 0.5, 1.0)
    published = run_config("mnist", "adlm").adlm
    assert (published.relevance_epsilon, published.input_epsilon, published.loss_epsilon) == (0.075, 0.075, 0.15)
    cifar = run_config("cifar10", "adlm").adlm
    assert (cifar.relevance_epsilon, cifar.input_epsilon, cifar.loss_epsilon) == pytest.approx((0.25, 1.5, 0.75))
    assert (cifar.hidden, cifar.crop) == (30, 20)
    assert RunConfig.from_dict(tomllib.loads(config.to_toml())) == config
    assert "[adlm]" not in run_config("digits", "dpsgd").to_toml()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quick(hiden=3), "did you mean 'hidden'"),
        (lambda: quick(**{"training.epsilon": 3.0}), "unknown setting 'training.epsilon'"),
        (lambda: run_config("digits", "dpsgd", relevance_power=2), "unknown setting 'relevance_power'"),
        (lambda: quick(epsilon=-1), "epsilon is -1"),
        (lambda: RunConfig.from_dict({"dataset": "digits", "method": "sgd", "network": "digits-cnn", "adlm": {},
            "training": {"private": False, "delta": 1e-4, "batch_size": 1, "steps": 1}}), "for the method adlm"),
    ],
)  # fmt: skip
def test_bad_configuration_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_command_line(tmp_path):
    folder = str(tmp_path / "run")
    options = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    first = run_here("train", "--dataset", "digits", "--method", "adlm", "--epsilon", "1", "--out", folder, *options)
    assert first.returncode == 0, first.stderr
    assert "not guaranteed" in first.stdout
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["adlm"]["epsilon"] == 1
    refused = run_here(
        "train", "--dataset", "digits", "--method", "adlm", "--out", str(tmp_path / "b"), "--set", "crop=99"
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "b").exists()
