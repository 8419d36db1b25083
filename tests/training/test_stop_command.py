"""`securesgd train` is stopped by a signal, resumed, finished and put on a device."""

import shlex
import signal
import time

import pytest
import torch

import securesgd as ss
from securesgd import load_run
from securesgd.config import run_config
from securesgd.privacy import read_ledger, replayed_statement
from securesgd.run_training import train_run
from securesgd.runtime.tensors import load_tensors
from tests.command_line import run_here
from tests.forked import COMMAND, Forked

from .conftest import no_step, small_data, small_model

STEPS = 160
QUICK = {"batch_size": 16, "copies": 1, "accountant": "rdp", "noise_seed": 3, "block_steps": 10}


def options(**changes):
    return [word for name, value in (QUICK | changes).items() for word in ("--set", f"{name}={value}")]


def start(folder, *arguments):
    threads = str(torch.get_num_threads())  # as many as here: the same bits
    return Forked(COMMAND, "train", "--out", folder, *arguments, OMP_NUM_THREADS=threads)


def wait_for_a_step(folder, worker):
    """Return when the ledger has a second block: the steps of the first have run."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and worker.returncode is None:
        if (folder / "ledger.jsonl").exists() and (folder / "ledger.jsonl").read_bytes().count(b"\n") >= 3:
            return
        time.sleep(0.02)
    pytest.fail(f"no step: {worker.communicate(1)}")


@pytest.mark.parametrize(("number", "option"), [(signal.SIGINT, "--resume"), (signal.SIGTERM, "--finish")])
def test_a_signal_ends_the_step_and_says_how_to_go_on(tmp_path, number, option):
    """The commands are run as they are printed: the resumed run has the bits of one that was never stopped."""
    folder = tmp_path / "a run"
    worker = start(folder, "--dataset", "digits", "--method", "dpsgd", *options(steps=STEPS, noise_multiplier=2.0))
    wait_for_a_step(folder, worker)
    worker.send_signal(number)
    ended = worker.communicate()
    err = ended.stderr
    assert (ended.returncode, ended.stdout) == (130, ""), err
    step = load_tensors(folder / "checkpoint.safetensors").record["step"]
    assert 10 <= step < STEPS
    assert "stopping after this step" in err
    assert "loss" not in err
    *_, stopped, resume, finish = err.splitlines()
    assert f"training stopped after step {step} of {STEPS}; epsilon " in stopped
    commands = {words[2]: words for words in (shlex.split(line.partition(":")[2]) for line in (resume, finish))}
    assert commands == {what: ["securesgd", "train", what, "--out", str(folder)] for what in ("--resume", "--finish")}
    result = run_here(*commands[option][1:])
    assert result.returncode == 0, result.stderr
    assert str(load_run(folder).privacy) in result.stdout
    assert (f"ended after step {step} of {STEPS}" in result.stdout) is (option == "--finish")
    last = step if option == "--finish" else STEPS
    config = run_config("digits", "dpsgd", steps=STEPS, noise_multiplier=2.0, **QUICK)
    expected = train_run(config, tmp_path / "never stopped", on_step=lambda report: report.step < last)
    ours, theirs = load_run(folder).model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def interrupted(folder, step, **changes):
    """A run of secure-sgd that was interrupted after `step` steps; returns its configuration."""
    config = run_config("digits", "secure-sgd", **QUICK | changes)

    def on_step(report):
        if report.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, folder, on_step=on_step)
    return config


def test_a_run_finished_after_two_fifths_can_be_certified_at_less_epsilon(tmp_path):
    """Secret noise here: what is stated is a guarantee."""
    config = interrupted(tmp_path / "run", 20, steps=50, noise_seed=None, epsilon=3.0, ema_decay=0.9)
    result = run_here("train", "--finish", "--out", tmp_path / "run", "--json")
    assert result.returncode == 0, result.stderr
    run = load_run(tmp_path / "run")
    assert run.privacy == replayed_statement(tmp_path / "run" / "ledger.jsonl")
    assert run.record["statement"] == run.privacy.json()
    assert run.privacy.guaranteed
    assert 0 < run.privacy.epsilon < train_run(config, tmp_path / "whole").privacy.epsilon
    records = read_ledger(tmp_path / "run" / "ledger.jsonl").records
    assert run.record["steps"] == sum(record.event.steps for record in records) == 20
    assert not (tmp_path / "run" / "secret.json").exists()
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    certificates = run.certify(draws=100, examples=5)
    assert certificates.examples == 5
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    for option in ("--resume", "--finish"):
        result = run_here("train", option, "--out", tmp_path / "run")
        assert result.returncode == 0
        assert result.stdout.startswith(f"{tmp_path / 'run'} is finished already\n")
        assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_what_cannot_be_finished_is_one_line(tmp_path):
    result = run_here("train", "--finish", "--out", tmp_path / "none")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "is not a run folder" in result.stderr
    config = run_config("digits", "dpsgd", steps=2, **QUICK)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text(config.to_toml())
    result = run_here("train", "--finish", "--out", tmp_path / "begun")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "has no run to finish" in result.stderr
    assert [file.name for file in (tmp_path / "begun").iterdir()] == ["config.toml"]


def test_an_interruption_before_the_first_step_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "securesgd.training.private_training.check_examples", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    command = ("train", "--dataset", "digits", "--method", "dpsgd", "--out", tmp_path / "new" / "run")
    result = run_here(*command)
    assert result.returncode == 130
    assert result.stderr == (
        "securesgd: interrupted before the first step; nothing was released, and nothing is left\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cuda:77", "nonsense", "mps", "meta"])
def test_a_device_that_is_not_there_is_one_line_before_anything_is_written(tmp_path, tiny_run, device):
    before = {file.name: file.stat().st_mtime_ns for file in tiny_run.iterdir()}
    for command in (
        ("train", "--dataset", "digits", "--method", "dpsgd", "--out", tmp_path / "run"),
        ("certify", tiny_run, "--again"), ("attack", tiny_run, "--again"),
    ):  # fmt: skip
        result = run_here(*command, "--device", device)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert f"device is '{device}'; valid here: cpu" in result.stderr
    assert not list(tmp_path.iterdir())
    assert before == {file.name: file.stat().st_mtime_ns for file in tiny_run.iterdir()}


def test_the_commands_name_code_from_outside_again(tmp_path):
    """A path in a folder is never imported by itself, so the printed command must have it."""
    from securesgd.cli.train import _command

    config = run_config("tests.data.sources:digits", "dpsgd", network="tests.nets:wide", steps=2, batch_size=8)
    command = shlex.split(_command("--resume", config, tmp_path / "a b", "cuda:1"))
    assert command == [
        "securesgd", "train", "--resume", "--out", str(tmp_path / "a b"), "--dataset", "tests.data.sources:digits",
        "--network", "tests.nets:wide", "--device", "cuda:1",
    ]  # fmt: skip


def test_other_commands_say_that_they_were_interrupted(tiny_run, monkeypatch):
    monkeypatch.setattr("securesgd.run.certify_run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run_here("certify", tiny_run)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "securesgd: interrupted\n")


def test_a_run_of_ones_own_module_is_finished_in_python(tmp_path):
    settings = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 12, "steps": 20, "accountant": "rdp"}

    def on_step(report):
        if report.step == 8:
            raise KeyboardInterrupt

    with pytest.raises(ss.TrainingInterrupted, match="after step 8 of 20"):
        ss.train(small_model(), small_data(), out=tmp_path / "run", on_step=on_step, **settings)
    with pytest.raises(ss.InvalidInputError, match="started with other settings"):
        ss.train(small_model(), small_data(), out=tmp_path / "run", finish=True, **settings | {"steps": 8})
    model = small_model(seed=5)
    run = ss.train(model, small_data(), out=tmp_path / "run", finish=True, on_step=no_step, **settings)
    assert run.record["steps"] == 8
    assert run.privacy == replayed_statement(tmp_path / "run" / "ledger.jsonl")
    reopened = load_run(tmp_path / "run", network=small_model(seed=6))
    assert all(torch.equal(a, b) for a, b in zip(reopened.model.parameters(), model.parameters(), strict=True))
    with pytest.raises(ss.InvalidInputError, match="has no run to finish"):
        ss.train(small_model(), small_data(), out=tmp_path / "none", finish=True, **settings)
    assert not (tmp_path / "none").exists()
