"""A stopped run can be finished: the weights of its checkpoint at the epsilon of its ledger, never trained further."""

import json
import shutil

import pytest
import torch

from securesgd.errors import InvalidInputError
from securesgd.privacy import read_ledger, replayed_statement
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.loop import train

from .conftest import no_step, small_data, small_model, small_settings


def stopped(folder, step=7, **changes):
    def on_step(report):
        if report.step == step:
            raise KeyboardInterrupt

    settings = small_settings(**changes)
    with pytest.raises(TrainingInterrupted):
        train(small_model(), small_data(), settings, folder, on_step=on_step)
    return settings


def finished(folder, settings, **options):
    model = small_model(seed=8)
    return train(model, small_data(), settings, folder, **{"finish": True, "on_step": no_step} | options), model


@pytest.mark.parametrize(
    "changes", [{}, {"ema_decay": 0.9, "momentum": 0.9}, {"private": False, "noise_multiplier": None}]
)
def test_finishing_is_what_stopping_by_a_callback_is(tmp_path, weights, changes):
    settings = stopped(tmp_path / "run", **changes)
    result, model = finished(tmp_path / "run", settings)
    other = small_model()
    expected = train(other, small_data(), settings, tmp_path / "other", on_step=lambda report: report.step < 7)
    assert torch.equal(weights(model), weights(other))
    assert (result.steps, result.statement) == (expected.steps, expected.statement) == (7, result.statement)
    assert result.statement == replayed_statement(tmp_path / "run" / "ledger.jsonl")
    assert not model.training
    names = [{file.name for file in (tmp_path / name).iterdir()} for name in ("run", "other")]
    assert names == [{"ledger.jsonl", "model.safetensors"}] * 2
    records = [load_tensors(tmp_path / name / "model.safetensors").record for name in ("run", "other")]
    assert records[0].pop("ledger")[0] == records[1].pop("ledger")[0]  # the digest has the time of the start in it
    assert records[0] == records[1]


def test_it_costs_less_than_the_whole_run_and_counts_the_whole_block(tmp_path):
    """Steps 5 to 9 were reserved together, so all of them are paid for."""
    result, _ = finished(tmp_path / "run", stopped(tmp_path / "run"))
    costs = {}
    for steps in (7, 10, 20):
        run = train(small_model(), small_data(), small_settings(steps=steps), tmp_path / str(steps))
        costs[steps] = run.statement.accounted_epsilon
    assert costs[7] < result.statement.accounted_epsilon == costs[10] < costs[20]


def test_a_finished_run_is_never_trained_further(tmp_path, weights):
    settings = stopped(tmp_path / "run")
    first, model = finished(tmp_path / "run", settings)
    for options in ({"finish": True}, {"finish": False, "resume": True}):
        result, again = finished(tmp_path / "run", settings, **options)
        assert (result.steps, result.statement) == (7, first.statement)
        assert torch.equal(weights(again), weights(model))


@pytest.mark.parametrize("option", [{"finish": True}, {"finish": False, "resume": True}])
def test_a_crash_between_the_weights_and_the_key(tmp_path, weights, monkeypatch, option):
    """The weights are released, so the run has ended; whatever comes next removes the key and runs no step."""
    settings, folder = stopped(tmp_path / "run"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "tidy", lambda self: (_ for _ in ()).throw(OSError("power cut")))
        with pytest.raises(OSError, match="power cut"):
            finished(folder, settings)
    assert (folder / "secret.json").exists()
    result, model = finished(folder, settings, **option)
    assert result.steps == 7
    assert {file.name for file in folder.iterdir()} == {"ledger.jsonl", "model.safetensors"}
    stored = load_tensors(folder / "model.safetensors").tensors
    assert torch.equal(weights(model), torch.cat([stored[name].flatten() for name, _ in model.named_parameters()]))


def test_a_crash_before_the_weights_leaves_a_run_that_can_be_resumed(tmp_path, weights, monkeypatch):
    settings, folder = stopped(tmp_path / "run"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda self, model: (_ for _ in ()).throw(OSError("power cut")))
        with pytest.raises(OSError, match="power cut"):
            finished(folder, settings)
    resumed, whole = small_model(), small_model()
    train(resumed, small_data(), settings, folder, resume=True)
    train(whole, small_data(), settings, tmp_path / "whole")
    assert torch.equal(weights(resumed), weights(whole))


def test_a_finished_copy_reveals_nothing_that_the_original_does_not_pay_for(tmp_path, weights):
    """The copy's weights are those the original had after 7 steps, and its ledger begins the original's."""
    settings, copy, original = stopped(tmp_path / "run"), tmp_path / "copy", tmp_path / "run"
    shutil.copytree(original, copy)
    seen = []
    _, early = finished(copy, settings)
    model = small_model()
    train(model, small_data(), settings, original, resume=True)
    whole = small_model()
    train(whole, small_data(), settings, tmp_path / "whole", on_step=lambda _: seen.append(weights(whole).clone()))
    assert torch.equal(weights(early), seen[6])
    assert torch.equal(weights(model), weights(whole))
    short, long = ((folder / "ledger.jsonl").read_bytes() for folder in (copy, original))
    assert long.startswith(short)
    assert len(short) < len(long)


def test_what_cannot_be_finished_is_refused_and_left_as_it_is(tmp_path):
    settings = small_settings()
    with pytest.raises(InvalidInputError, match="has no run to finish"):
        finished(tmp_path / "none", settings)
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="has no run to finish"):
        finished(tmp_path / "empty", settings)
    assert not list((tmp_path / "empty").iterdir())
    folder = tmp_path / "killed"

    def crash(report):
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):  # after a step, but before the first checkpoint of one
        train(small_model(), small_data(), settings, folder, on_step=crash)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(InvalidInputError, match="has no step in its checkpoint yet, so nothing to finish"):
        finished(folder, settings)
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(InvalidInputError, match="not those"):
        finished(stopped(tmp_path / "run") and tmp_path / "run", small_settings(learning_rate=0.1))


def test_another_device_may_finish_a_run_but_not_repeat_its_steps(tmp_path):
    """Sums have other last bits there: under the same noise, a step that is run again would be a second release."""
    settings, folder = stopped(tmp_path / "run"), tmp_path / "run"
    saved = load_tensors(folder / "checkpoint.safetensors")
    assert saved.record["device"] == "cpu"
    save_tensors(folder / "checkpoint.safetensors", Checkpoint(saved.tensors, saved.record | {"device": "cuda"}))
    with pytest.raises(InvalidInputError, match="was started on cuda; valid: to resume it there"):
        finished(folder, settings, finish=False, resume=True)
    assert finished(folder, settings)[0].steps == 7


def test_the_epsilon_of_a_step_is_the_same_after_a_crash(tmp_path):
    """A crash leaves a block more in the ledger; what a step is said to cost is what it costs without a crash."""

    def recorded(folder, crash_at=None, **options):
        def on_step(report):
            seen[report.step] = report.epsilon
            if report.step == crash_at:
                raise RuntimeError("crash")

        settings = small_settings(checkpoint_steps=6)
        seen.clear()
        if crash_at is None:
            train(small_model(), small_data(), settings, folder, on_step=on_step, **options)
        else:
            with pytest.raises(RuntimeError, match="crash"):
                train(small_model(), small_data(), settings, folder, on_step=on_step, **options)
        return dict(seen)

    seen = {}
    whole = recorded(tmp_path / "whole")
    recorded(tmp_path / "run", crash_at=11)  # the checkpoint is at 6, in block 5 to 9; the block of 10 to 14 is paid
    resumed = recorded(tmp_path / "run", resume=True)
    assert resumed == {step: epsilon for step, epsilon in whole.items() if step > 6}
    assert len(set(whole.values())) == 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    assert whole[20] == read_ledger(tmp_path / "run" / "ledger.jsonl").records[-1].epsilon
