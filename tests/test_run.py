"""From configuration to run folder, through Python and the command line, on the embedded digits."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from securesgd.config import RunConfig, run_config
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.methods import METHODS
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import accuracy
from securesgd.models.redistribution import Redistribution
from securesgd.privacy import GaussianRelease, Ledger, replayed_statement
from securesgd.run import load_run
from securesgd.run_training import train_run
from tests.command_line import run_here

QUICK = {"steps": 12, "batch_size": 200, "copies": 1, "accountant": "rdp", "noise_seed": 1}


def quick(method, **changes):
    return run_config("digits", method, **QUICK | changes)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_a_complete_run_folder(method, tmp_path):
    folder = tmp_path / "run"
    result = train_run(quick(method), folder)
    expected = {"config.toml", "model.safetensors", "model.json", "ledger.jsonl", "metrics.jsonl", "environment.json"}
    expected |= {"MODEL_CARD.md"}
    expected |= {"redistribution.json", "redistribution.png"} if METHODS[method].noisy else set()
    assert {file.name for file in folder.iterdir()} == expected
    assert result.privacy.guaranteed_but_for_seed == METHODS[method].private
    assert not result.privacy.guaranteed
    assert replayed_statement(folder / "ledger.jsonl").epsilon == result.privacy.epsilon
    loaded = load_run(folder)
    config, model = loaded.config, loaded.model
    assert config == result.config
    again = load_run(folder)
    assert (again.config, again.test_accuracy, again.privacy) == (config, result.test_accuracy, result.privacy)
    assert accuracy(model, result.data.test_inputs, result.data.test_targets) == result.test_accuracy
    assert isinstance(model, NoisyNetwork) == METHODS[method].noisy
    if isinstance(model, NoisyNetwork):
        wanted = config.robustness.radius_per_std(METHODS[method].mechanism)
        assert model.sensitivity("linf").upper <= 1.05 / wanted
        r = Redistribution.load(folder / "redistribution.json")
        assert len(set(r.r)) > 1 or METHODS[method].redistribution == "uniform"


def test_private_r_is_in_the_ledger_and_in_the_epsilon(tmp_path):
    result = train_run(quick("secure-sgd", redistribution="private", epsilon=4.0), tmp_path / "run")
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        (release,) = [event for event in ledger.events if isinstance(event, GaussianRelease)]
        assert release.label == "redistribution vector r"
        assert ledger.steps_charged == 12
    assert replayed_statement(tmp_path / "run" / "ledger.jsonl") == result.privacy
    assert 4.0 - 4e-3 < result.privacy.accounted_epsilon <= 4.0


BY_BLOCKS = {"redistribution": "learned", "scale_grid": 2, "scale_share": 100.0}


@pytest.mark.parametrize(
    "changes", [{"place": "first-layer"}, {"redistribution": "private", "checkpoint_steps": 1}, BY_BLOCKS]
)
def test_a_resumed_run_ends_with_the_same_bits(changes, tmp_path):
    """The control of Δ and the release of r have state and randomness of their own; both must survive a crash."""
    config = quick("secure-sgd", **{"checkpoint_steps": 2} | changes)
    whole = train_run(config, tmp_path / "whole")

    def crash(report):
        if report.step == 5:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        train_run(config, tmp_path / "broken", on_step=crash)
    resumed = train_run(config, tmp_path / "broken", resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_published_r_voids_the_guarantee(tmp_path):
    statement = train_run(quick("secure-sgd", redistribution="as-published"), tmp_path / "run").privacy
    assert not statement.guaranteed
    assert "not guaranteed" in statement.in_words


@pytest.mark.parametrize("way", ["uniform", "random", "prior", "learned", "private"])
def test_ways_to_redistribute_have_equal_sensitivity(way, tmp_path):
    """All ways spend the same: what differs is where the noise goes."""
    result = train_run(quick("secure-sgd", redistribution=way), tmp_path / "run")
    wanted = result.config.robustness.radius_per_std("analytic")
    assert result.model.sensitivity("linf").upper == pytest.approx(1 / wanted, rel=0.02)


def test_configuration_round_trip_and_precedence(tmp_path):
    config = quick("secure-sgd", norm="l2", unit=0.3, direction="inverse")
    assert RunConfig.from_dict(tomllib.loads(config.to_toml())) == config
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "digits"\nmethod = "dpsgd"\n[training]\nsteps = 7\nlearning_rate = 0.25\n')
    from_file = run_config(file=file, **{"training.learning_rate": 0.75})
    assert (from_file.training.steps, from_file.training.learning_rate) == (7, 0.75)
    assert from_file.training.batch_size == 256  # the preset's
    assert run_config("digits", "dpsgd", noise_multiplier=1.5).training.epsilon is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run_config("digits", "secure-sdg"), "did you mean 'secure-sgd'"),
        (lambda: run_config("digits"), "a data set and a method are needed"),
        (lambda: run_config("digits", "dpsgd", learningrate=1), "did you mean 'learning_rate'"),
        (lambda: quick("secure-sgd", norm="linff"), "did you mean 'linf'"),
        (lambda: quick("secure-sgd", redistribution="privat"), "did you mean 'private'"),
        (lambda: quick("secure-sgd", redistribution="public"), "needs public_dataset"),
        (lambda: quick("hgm-pixeldp", redistribution="private"), "needs a private method"),
        (lambda: quick("pixeldp", robust_epsilon=4.0), "0 < epsilon <= 1 only"),
        (lambda: quick("secure-sgd", attack_size=0), "attack_size is 0"),
        (lambda: quick("sgd", epsilon=3.0), "epsilon"),
    ],
)
def test_bad_configuration_is_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_unfinished_or_foreign_folders_are_not_loaded(tmp_path):
    with pytest.raises(DamagedFileError, match=r"no readable config.toml"):
        load_run(tmp_path)
    (tmp_path / "config.toml").write_text(quick("dpsgd").to_toml())
    with pytest.raises(DamagedFileError, match="is not finished"):
        load_run(tmp_path)


def test_train_command(tmp_path):
    folder = str(tmp_path / "run")
    options = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    first = run_here(
        "train", "--dataset", "digits", "--method", "secure-sgd", "--epsilon", "6", "--out", folder, *options
    )
    assert first.returncode == 0, first.stderr
    assert "differentially private" in first.stdout
    assert "297 test examples" in first.stdout
    again = run_here("train", "--out", folder, "--resume", "--json")
    assert json.loads(again.stdout)["statement"]["accounted_epsilon"] <= 6
    for arguments, message in (
        (["--dataset", "digits", "--method", "dpsgd", "--out", folder], "is not empty"),
        (["--dataset", "mnits", "--method", "dpsgd", "--out", str(tmp_path / "b")], "did you mean 'mnist'"),
        (
            ["--dataset", "digits", "--method", "dpsgd", "--out", str(tmp_path / "c"), "--set", "steps"],
            "takes key=value",
        ),
        (["--resume", "--out", str(tmp_path / "none")], "no readable config.toml"),
        (["--resume", "--out", folder, "--epsilon", "9"], "leave out epsilon = 9.0"),
        (["--dataset", "digits", "--method", "dpsgd"], "out"),
    ):
        result = run_here("train", *arguments)
        assert result.returncode == 2, arguments
        assert result.stderr.count("\n") == 1
        assert message in result.stderr
    for setting in ("batch_size=9999", "network=tanh-cnn", "network=tanhcnn"):
        refused = run_here(
            "train", "--dataset", "digits", "--method", "dpsgd", "--out", str(tmp_path / "d"), "--set", setting
        )
        assert refused.returncode == 2
        assert not (tmp_path / "d").exists()  # the next try starts from a clean folder


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return train_run(quick("dpsgd", steps=2), folder)


@pytest.fixture
def small_run(trained_once, tmp_path):
    return Path(shutil.copytree(trained_once.path, tmp_path / "run"))


def test_resuming_a_damaged_run_deletes_nothing(trained_once, small_run):
    """Without its ledger a run cannot go on; what is left of it stays."""
    folder, config = small_run, trained_once.config
    (folder / "ledger.jsonl").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SecureSGDError):
        train_run(config, folder, resume=True)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_refused_run_leaves_the_users_own_folder(tmp_path):
    config = run_config("digits", "dpsgd", steps=2, batch_size=10**6)
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", tmp_path / "new"):
        with pytest.raises(SecureSGDError):
            train_run(config, folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_resuming_a_finished_run_changes_nothing_and_reads_its_own_settings(trained_once, small_run):
    folder, config, first = small_run, trained_once.config, trained_once
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = train_run(config, folder, resume=True)
    assert (again.privacy, again.test_accuracy) == (first.privacy, first.test_accuracy)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("steps = 2", "steps = 3"))
    with pytest.raises(DamagedFileError, match=r"config\.toml is not the one this run was trained with"):
        train_run(config, folder, resume=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("garbage", r"model\.json is damaged"),
        ("[]", r"model\.json is damaged"),
        ('{"format": 1, "classes": 10}', "input_shape"),
        ('{"format": 99, "input_shape": [1, 8, 8], "classes": 10, "class_names": []}', "has format 99"),
        ('{"format": 1, "input_shape": [1, 8, 8], "classes": 7, "class_names": []}', "does not fit config.toml"),
    ],
)
def test_a_damaged_model_record_is_refused(text, reason, small_run):
    (small_run / "model.json").write_text(text)
    with pytest.raises(DamagedFileError, match=reason):
        load_run(small_run)


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("momentum", "abc", "a number"), ("noise_seed", "abc", "an integer"), ("r_step", "x", "a number"),
        ("beta", -1.0, "> 0"), ("network", 3, "a text"), ("optimizer", 5, "a text"), ("momentum", True, "a number"),
        ("private", False, "is private"), ("training", 3, "a table"), ("public_dataset", "foo", "'public'"),
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_named(name, value, valid):
    with pytest.raises(InvalidInputError, match=valid) as caught:
        run_config("digits", "secure-sgd", **{name: value})
    assert name.split("_")[0] in str(caught.value)
