"""Held-out accuracy over time in metrics.jsonl, and the same curves for TensorBoard: never the loss."""

import json
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import securesgd as ss
from securesgd.config import run_config
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.run_training import train_run
from tests.command_line import run_here

from .conftest import small_data, small_model

STEPS = 40
OPTIONS = {"steps": STEPS, "batch_size": 32, "copies": 1, "accountant": "rdp", "noise_seed": 3, "holdout": 50,
           "block_steps": 5, "checkpoint_steps": 6, "redistribution": "private", "epsilon": 4.0}  # fmt: skip


def config(**changes):
    return run_config("digits", "secure-sgd", **OPTIONS | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_run(config(), tmp_path_factory.mktemp("held-out") / "whole")


def raising(error, step):
    def on_step(report):
        if report.step == step:
            raise error

    return on_step


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_twenty_lines_without_a_callback_then_the_test_set(whole):
    *looks, last = lines_of(whole.path)
    assert [line["step"] for line in looks] == list(range(2, STEPS + 1, 2))
    assert all(line.keys() == {"step", "epsilon", "held_out_accuracy", "held_out_images"} for line in looks)
    assert {line["held_out_images"] for line in looks} == {50}
    assert last.keys() == {"step", "epsilon", "test_accuracy", "test_images", "test_balance"}
    assert last["step"] == STEPS
    epsilons = [line["epsilon"] for line in looks]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == last["epsilon"] == whole.privacy.accounted_epsilon
    assert whole.test_accuracy == last["test_accuracy"]
    assert looks[-1]["held_out_accuracy"] > looks[0]["held_out_accuracy"]


@pytest.mark.parametrize(
    ("error", "step"), [(KeyboardInterrupt(), 17), (RuntimeError("crash"), 17), (RuntimeError("crash"), 4)]
)
def test_the_file_of_an_interrupted_run_is_that_of_another(whole, tmp_path, error, step):
    """The crashes lose the steps after 12, and all: their lines go, and a ledger that is ahead changes no epsilon."""
    with pytest.raises(type(error)):
        train_run(config(), tmp_path / "run", on_step=raising(error, step))
    assert lines_of(tmp_path / "run")[-1]["step"] == step // 2 * 2
    train_run(config(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()


def test_finishing_drops_the_lines_after_the_checkpoint(whole, tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        train_run(config(), tmp_path / "run", on_step=raising(RuntimeError("crash"), 17))
    run = train_run(config(), tmp_path / "run", finish=True)
    *looks, last = lines_of(run.path)
    assert looks == lines_of(whole.path)[:6]
    assert (last["step"], last["test_accuracy"]) == (12, run.test_accuracy)
    assert run.record["steps"] == 12


def test_without_held_out_examples_there_is_one_line(tmp_path):
    train_run(config(holdout=0, steps=4), tmp_path / "run")
    assert len(lines_of(tmp_path / "run")) == 1


def test_damaged_lines_are_refused_in_one_line(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_run(config(), tmp_path / "run", on_step=raising(KeyboardInterrupt(), 17))
    for content in (b"{", b"[]\n", b'{"step": "x"}\n', b"\xff\n"):
        (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged") as caught:
            train_run(config(), tmp_path / "run", resume=True)
        assert "\n" not in str(caught.value)


def curves(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: {point.step: point.value for point in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_has_no_private_curve(tmp_path):
    words = [f"{name}={value}" for name, value in OPTIONS.items() if name != "epsilon"]
    settings = [word for setting in words for word in ("--set", setting)]
    result = run_here(
        "train", "--dataset", "digits", "--method", "secure-sgd", "--epsilon", "4", "--out", tmp_path / "run",
        "--tensorboard", tmp_path / "log", *settings,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    shown = curves(tmp_path / "log")
    assert shown.keys() == {
        "privacy/epsilon", "training/learning rate", "accuracy/held-out", "speed/seconds per step",
    }  # fmt: skip
    held_out = {line["step"]: line.get("held_out_accuracy") for line in lines_of(tmp_path / "run")[:-1]}
    assert shown["accuracy/held-out"] == pytest.approx(held_out)
    assert shown["privacy/epsilon"].keys() == set(range(1, STEPS + 1))
    assert all(value > 0 for value in shown["speed/seconds per step"].values())


def test_the_logger_in_python_shows_the_learning_rate_of_each_step(tmp_path):
    settings = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 12, "steps": 10, "accountant": "rdp"}

    def decay(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    ss.train(
        small_model(), small_data(), out=tmp_path / "run", on_step=ss.tensorboard_logger(tmp_path / "log"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), scheduler=decay, **settings,
    )  # fmt: skip
    shown = curves(tmp_path / "log")
    assert shown["training/learning rate"] == {step: 0.5 ** (step - 1) for step in range(1, 11)}
    assert "accuracy/held-out" not in shown


def test_without_tensorboard_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    command = ("train", "--dataset", "digits", "--method", "dpsgd", "--out", tmp_path / "run")
    result = run_here(*command, "--tensorboard", tmp_path / "log")
    assert result.returncode == 2
    assert "pip install 'securesgd[tensorboard]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInputError, match="is a file"):
        ss.tensorboard_logger(tmp_path / "file")
