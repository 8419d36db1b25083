"""A plan says before training what training would do; settings fit the data; a template reads back as it was."""

import dataclasses
import json
import tomllib

import numpy as np
import pytest

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.config import RobustnessSettings, RunConfig, run_config
from securesgd.config_template import commented_toml, field_documentation
from securesgd.data.settings import DataSettings
from securesgd.errors import InvalidInputError
from securesgd.fitted_config import fitted_config
from securesgd.methods import METHODS
from securesgd.models.interval_network import IntervalSettings
from securesgd.planning import HOPELESS, WEAK, plan_run
from securesgd.presets import fit_delta, fit_sizes, preset
from securesgd.privacy.events import SampledGaussianSteps
from securesgd.privacy.ledger import read_ledger
from securesgd.run_training import train_run
from securesgd.training.settings import TrainingSettings
from tests.command_line import run_here

PRIVATE = [name for name, row in METHODS.items() if row.private]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("dpsgd", {}),  # by PLD, the others by the accountant that is quick
        ("secure-sgd", {"accountant": "rdp"}),
        ("secure-sgd", {"accountant": "rdp", "redistribution": "private"}),
        ("dp-ibp", {"accountant": "rdp", "epsilon": 3.0}),
    ],
)
def test_the_noise_of_a_plan_is_that_of_the_run(method, changes, tmp_path):
    """Also when a release of r takes a part of the budget."""
    config = run_config("digits", method, steps=6, batch_size=100, copies=1, **changes)
    plan = plan_run(config, 1500, (1, 8, 8), 10, batch_sizes=[100, 200], steps=[6], timed=False)
    train_run(config, tmp_path / "run")
    used = {record.event.noise_multiplier for record in read_ledger(tmp_path / "run" / "ledger.jsonl").records
            if isinstance(record.event, SampledGaussianSteps)}  # fmt: skip
    assert used == {plan.rows[0].noise_multiplier}
    assert plan.rows[1].noise_multiplier > plan.rows[0].noise_multiplier  # a larger sampling rate
    assert plan.rows[1].noise_per_example < plan.rows[0].noise_per_example


def test_a_timed_plan_has_minutes_that_grow_with_steps():
    config = run_config("digits", "dpsgd", accountant="rdp")
    plan = plan_run(config, 1500, (1, 8, 8), 10, batch_sizes=[64], steps=[100, 1000])
    short, long = (row.minutes for row in plan.rows)
    assert 0 < short < long < 10


def test_a_hopeless_budget_is_called_so():
    def plan(**changes):
        config = run_config("digits", "dpsgd", accountant="rdp", **changes)
        return plan_run(config, 1500, (1, 8, 8), 10, batch_sizes=[256], steps=[150, 300], timed=False)

    assert all(row.signal_to_noise < HOPELESS and "commonest class" in row.warning for row in plan(epsilon=0.05).rows)
    assert plan().suggested.signal_to_noise > WEAK
    assert plan().suggested.warning is None


def test_plan_command(tmp_path):
    result = run_here(
        "plan", "--examples", "455", "--input-shape", "30", "--classes", "2", "--method", "dpsgd", "--epsilon", "8",
        "--no-time", "--json", "--set", "accountant=rdp", "--steps", "400",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["network"] == "mlp"
    assert {"batch_size", "steps", "noise_multiplier", "minutes"} <= set(plan["rows"][0])
    assert all(row["batch_size"] <= 455 for row in plan["rows"])
    assert f"--set batch_size={plan['suggested']['batch_size']}" in plan["settings"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--examples is None"),
        (("--examples", "1"), "--examples is 1"),
        (("--examples", "50", "--batch-size", "60"), "valid: 1 to 50"),
        (("--examples", "50", "--batch-size", "x"), "--batch-size is 'x'"),
        (("--examples", "50", "--input-shape", "1x2"), "--input-shape is '1x2'"),
        (("--examples", "50", "--method", "sgd"), "valid: a private method"),
        (("--examples", "50", "--dataset", "digits"), "leave one out"),
    ],
)
def test_plan_refuses_in_one_line(options, words):
    result = run_here("plan", *options)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("examples", [3, 10, 455, 1500, 60_000, 10**6, 10**9])
def test_presets_fit_the_number_of_examples(examples):
    sizes, delta = fit_sizes(examples), fit_delta(examples)
    assert 1 <= sizes["batch_size"] <= max(1, examples // 3)
    assert delta <= 1e-5
    assert delta * examples < 1
    for method in METHODS:
        run_config("mine.npz", method, fit_to=(examples, (30,)))  # valid settings


def test_a_number_of_examples_that_is_not_public_changes_nothing():
    """Under add-or-remove-one the number of examples is private: a batch size computed from it would tell it."""
    for changes in ({"population": 5000}, {"sampling_rate": 0.1, "batch_size": 50}):
        first, second = (run_config("mine.npz", "dpsgd", fit_to=(n, (30,)), **changes) for n in (1000, 1001))
        assert first == second
    assert run_config("mine.npz", "dpsgd", fit_to=(10, (30,)), population=9000).training.batch_size > 10


@pytest.mark.parametrize(("shape", "network"), [((30,), "mlp"), ((1, 8, 8), "digits-cnn"), ((3, 64, 64), "tanh-cnn")])
def test_networks_fit_the_shape(shape, network):
    assert preset("mine", "dpsgd", examples=1000, input_shape=shape)["network"] == network


def test_own_data_are_read_for_their_settings(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((90, 5), dtype=np.float32), np.arange(90) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    fitted = fitted_config(str(tmp_path / "mine.npz"), "dpsgd")
    assert (fitted.examples, fitted.input_shape, fitted.classes) == (90, (5,), 2)
    assert fitted.config.training.batch_size == 30
    assert fitted.config.network == "mlp"


@pytest.mark.parametrize("method", METHODS)
def test_a_template_reads_back_as_the_same_configuration(method):
    config = run_config("digits", method)
    text = commented_toml(config)
    assert RunConfig.from_dict(tomllib.loads(text)) == config
    assert "# " in text


@pytest.mark.parametrize(
    "settings", [RunConfig, RobustnessSettings, TrainingSettings, DataSettings, IntervalSettings, AdlmSettings]
)
def test_every_setting_is_documented(settings):
    words = field_documentation(settings)
    assert list(words) == [field.name for field in dataclasses.fields(settings)]
    assert all(len(text) > 5 for text in words.values())


def test_config_command_writes_only_new_files(tmp_path):
    path = tmp_path / "mine.toml"
    assert run_here("config", "--template", "--out", str(path)).returncode == 0
    before = path.read_text()
    result = run_here("config", "--template", "--method", "dpsgd", "--out", str(path))
    assert result.returncode == 2
    assert path.read_text() == before
    trained = run_here("train", "--config", str(path), "--out", str(tmp_path / "run"), "--set", "steps=2", "--set",
                       "accountant=rdp")  # fmt: skip
    assert trained.returncode == 0, trained.stderr


def test_a_method_without_privacy_has_no_plan():
    with pytest.raises(InvalidInputError, match="valid: a private method"):
        plan_run(run_config("digits", "sgd"), 100, (1, 8, 8), 10)
