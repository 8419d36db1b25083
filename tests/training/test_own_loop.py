"""The engine in a loop of the user's own: what train gives, in her hands, and every misuse refused in one line."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.privacy import Ledger, replayed_statement
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.tensors import load_tensors
from securesgd.training.asked_steps import AskedSteps
from securesgd.training.loop import per_example_cross_entropy, train
from securesgd.training.private_training import PrivateTraining

from .conftest import small_data, small_model, small_settings


def started(folder, model=None, *, optimizer=None, scheduler=None, resume=False, project=None, data=None, **changes):
    model = small_model() if model is None else model
    data = small_data() if data is None else data
    options = {"optimizer": optimizer, "scheduler": scheduler, "resume": resume, "project": project}
    return PrivateTraining(model, data, small_settings(**changes), folder, **options)


def jittered(batch):
    return batch.replace(inputs=batch.inputs + 0.1 * torch.randn_like(batch.inputs))


def run_all(training, *, until=None, transform=lambda batch: batch, loss=None):
    for batch in training.batches():
        training.step(transform(batch), loss)
        if training.step_number == until:
            break
    return training


def test_the_loop_gives_what_train_gives(tmp_path, weights):
    """Without noise, which is bound to what each step is asked; sample, dropout, optimizer and average are the same."""
    changes = {"noise_multiplier": 0.0, "momentum": 0.9, "ema_decay": 0.9, "schedule": "cosine", "noise_seed": 3}
    theirs, ours = small_model(), small_model()
    keys = Randomness(b"0123456789abcdef")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Randomness, "from_seed", classmethod(lambda *_: keys))
        result = train(theirs, small_data(), small_settings(**changes), tmp_path / "theirs")
        training = run_all(started(tmp_path / "ours", ours, **changes))
    finished = training.finish()
    assert torch.equal(weights(theirs), weights(ours))
    assert finished.statement == result.statement
    assert (training.step_number, training.steps, finished.steps) == (20, 20, 20)
    assert not ours.training
    assert {file.name for file in (tmp_path / "ours").iterdir()} == {"ledger.jsonl", "model.safetensors"}


def test_noise_is_bound_to_what_a_step_is_asked(tmp_path, weights):
    """Zero gradients leave the noise alone: the same for the same question, another for other inputs, whatever seed."""
    released = []
    for number, scale in enumerate((1.0, 1.0, 2.0)):
        model = small_model()
        before = weights(model)
        training = started(tmp_path / str(number), model, steps=1)
        run_all(training, transform=lambda b, s=scale: b.replace(inputs=b.inputs * s), loss=lambda o, t: o.sum(1) * 0)
        training.finish()
        released.append(weights(model) - before)
    assert torch.equal(released[0], released[1])
    assert not torch.allclose(released[0], released[2], atol=1e-3)


@pytest.mark.parametrize("by_instance", [True, False])
def test_ended_early_by_finish(tmp_path, by_instance):
    """The ledger counts whole blocks: 7 steps ran, 10 are paid, and the statement is what the file says."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02) if by_instance else torch.optim.NAdam
    training = started(tmp_path / "run", model, optimizer=optimizer)
    assert training.epsilon == 0
    result = run_all(training, until=7).finish()
    assert result.steps == 7
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 10
    assert result.statement == replayed_statement(tmp_path / "run" / "ledger.jsonl")
    assert training.epsilon == result.statement.accounted_epsilon > 0
    again = started(tmp_path / "run", small_model(seed=5), resume=True, optimizer=torch.optim.NAdam)
    assert again.finished
    assert list(again.batches()) == []
    assert again.finish().statement == result.statement


def adamw_with_cosine(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    return {"optimizer": optimizer, "scheduler": lr_scheduler.CosineAnnealingLR(optimizer, 20)}


@pytest.mark.parametrize("stop", [1, 6, 8, 19])
def test_resumed_with_instances_and_augmentation_gives_the_same_bits(tmp_path, weights, stop):
    whole, broken, resumed = small_model(), small_model(), small_model(seed=99)
    run_all(started(tmp_path / "whole", whole, **adamw_with_cosine(whole)), transform=jittered).finish()
    first = started(tmp_path / "broken", broken, **adamw_with_cosine(broken))
    run_all(first, until=stop, transform=jittered).close()
    torch.manual_seed(stop)  # whatever the program did meanwhile
    second = started(tmp_path / "broken", resumed, resume=True, **adamw_with_cosine(resumed))
    assert second.step_number == stop // 4 * 4
    result = run_all(second, transform=jittered).finish()
    assert torch.equal(weights(whole), weights(resumed))
    assert result.statement == replayed_statement(tmp_path / "whole" / "ledger.jsonl")


def test_a_step_that_is_run_again_must_be_asked_the_same(tmp_path, weights):
    folder, loss = tmp_path / "run", lambda o, t: 2 * per_example_cross_entropy(o, t)
    run_all(started(folder, noise_seed=None), until=6, transform=jittered).close()
    for changes in ({}, {"transform": jittered, "loss": loss}):
        training = started(folder, resume=True, noise_seed=None)
        with pytest.raises(InvalidInputError, match="step 5 was run before with other inputs, targets or"):
            run_all(training, **changes)
    assert (folder / "asked.json").stat().st_mode & 0o777 == 0o600
    model = small_model()
    result = started(folder, model, resume=True, noise_seed=None).finish()  # as it is
    assert result.steps == 4
    assert not (folder / "asked.json").exists()


def test_a_damaged_record_of_what_was_asked_is_refused(tmp_path):
    run_all(started(tmp_path / "run"), until=6).close()
    (tmp_path / "run" / "asked.json").write_text('["x"]')
    with pytest.raises(DamagedFileError, match=r"asked\.json"):
        started(tmp_path / "run", resume=True)


def test_no_result_is_used_before_the_record_of_what_was_asked_is_on_disk(tmp_path, monkeypatch):
    """A slow disk: were the optimizer to step before, a kill would leave a result without a record."""
    order, write = [], AskedSteps._write

    def slow(*arguments):
        time.sleep(0.05)
        write(*arguments)
        order.append("record")

    monkeypatch.setattr(AskedSteps, "_write", slow)
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", lambda *_, **__: order.append("step"))
    training = started(tmp_path / "run", noise_seed=None)
    order.clear()  # a new optimizer is tried before the run
    run_all(training, until=3).close()
    assert order == ["record", "step"] * 3


def test_a_disk_that_does_not_take_the_record_ends_the_training_before_the_step(tmp_path, monkeypatch):
    model = small_model()
    training = started(tmp_path / "run", model, noise_seed=None)
    run_all(training, until=2)
    before = [p.detach().clone() for p in model.parameters()]

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space left"):
        run_all(training, until=3)
    assert training.closed
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_record_cut_off_while_it_was_written_is_left_out_and_no_other(tmp_path):
    """A kill between the first and the last byte of a line: the step of that line was never released."""
    folder = tmp_path / "run"
    run_all(started(folder, noise_seed=None), until=7).close()  # a checkpoint after 4; records of 5, 6 and 7
    file = folder / "asked.json"
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second + third[:9])
    with pytest.raises(InvalidInputError, match="step 5 was run before with other inputs"):
        run_all(started(folder, resume=True, noise_seed=None), transform=jittered)
    for damaged in (third[:9], first[:9] + second, first + b"[]\n" + third, first + b"\n" + third):
        file.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"asked\.json is damaged"):
            started(folder, resume=True, noise_seed=None)
    file.write_bytes(first + second + third[:9])
    result = run_all(started(folder, resume=True, noise_seed=None)).finish()
    assert result.steps == 20


def test_a_record_that_was_taken_away_during_the_run_is_written_again(tmp_path):
    folder = tmp_path / "run"
    training = started(folder, noise_seed=None)
    run_all(training, until=6)
    (folder / "asked.json").unlink()
    run_all(training, until=7).close()
    with pytest.raises(InvalidInputError, match="step 5 was run before with other inputs"):
        run_all(started(folder, resume=True, noise_seed=None), transform=jittered)


def test_the_generator_of_the_program_is_as_before_and_secret_within(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    drawn = []
    training = started(tmp_path / "run", noise_seed=None)
    for batch in training.batches():
        drawn.append(torch.rand(1).item())
        training.step(batch)
        torch.manual_seed(0)  # must not make the dropout of the next step public
    assert torch.equal(torch.rand(1), expected)
    assert len(set(drawn)) == 20


# Several passes in a loss


def consistency(model, inputs, targets):
    """Two views of an example are to agree."""
    first, second = model(inputs), model(inputs.flip(1))
    return functional.cross_entropy(first, targets, reduction="none") + (first - second).square().sum(1)


def gradient_penalty(model, inputs, targets):
    x = inputs.detach().clone().requires_grad_()
    losses = functional.cross_entropy(model(x), targets, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + 0.5 * slope.square().sum(1)


class Penalised(nn.Module):
    """A loss that is a module."""

    def forward(self, model, inputs, targets):
        return consistency(model, inputs, targets)


@pytest.mark.parametrize("loss", [consistency, gradient_penalty, Penalised()])
def test_a_loss_with_several_passes_is_clipped_per_example(tmp_path, monkeypatch, loss):
    """Against autograd on one example at a time; without noise."""
    clip, samples, real = 0.05, [], Randomness.poisson_sample
    monkeypatch.setattr(Randomness, "poisson_sample", lambda *a: samples.append(real(*a)) or samples[-1])
    (inputs, targets), model = small_data(), small_model()
    model[2].p = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    expected = [torch.zeros_like(p) for p in before]
    training = started(tmp_path / "run", model, noise_multiplier=0.0, steps=1, max_grad_norm=clip, learning_rate=1.0)
    batches = training.batches()
    batch = next(batches)
    for i in samples[0]:
        gradient = torch.autograd.grad(
            loss(model, inputs[i : i + 1], targets[i : i + 1]).sum(), list(model.parameters())
        )
        norm = torch.cat([g.flatten() for g in gradient]).norm().item()
        assert norm > clip
        for total, part in zip(expected, gradient, strict=True):
            total += part * clip / norm
    with pytest.warns(UserWarning, match="one by one: the loss runs the model itself"):
        training.step(batch, loss)
    assert len(samples[0]) > 3
    for start, now, total in zip(before, model.parameters(), expected, strict=True):
        assert torch.allclose(start - now.detach(), total / 12, atol=1e-6)


def test_a_later_loss_that_mixes_examples_is_refused(tmp_path):
    """Not only in the steps in which every model is checked: each new loss is."""

    def mixing(outputs, targets):
        return per_example_cross_entropy(outputs - outputs.mean(0), targets)

    def mixing_passes(model, inputs, targets):
        return consistency(model, inputs - inputs.mean(0), targets)

    def go(training, loss):
        for batch in training.batches():
            training.step(batch, None if training.step_number < 3 else loss)

    for loss in (mixing, mixing_passes):
        training = started(tmp_path / loss.__name__)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the examples are run one by one
            with pytest.raises(InvalidInputError, match="depends on other examples"):
                go(training, loss)
        assert training.step_number == 3


# Misuse


def misuses():
    """Every (name, what a careless program does in the loop after three steps, words of the refusal)."""

    def same_batch_twice(t, batch):
        t.step(batch)
        t.step(batch)

    def rows(t, batch):
        t.step(batch.replace(inputs=batch.inputs[:-1]))

    def rows_of_both(t, batch):
        t.step(dataclasses.replace(batch, inputs=batch.inputs[:1], targets=batch.targets[:1]))

    def scalar(t, batch):
        t.step(batch.replace(targets=torch.tensor(1)))

    def other_loop(t, batch):
        next(t.batches())

    def moved(t, batch):
        with torch.no_grad():
            next(t.model.parameters()).mul_(0.5)
        t.step(batch)

    def frozen(t, batch):
        t.model[0].bias.requires_grad_(False)
        t.step(batch)

    def replaced(t, batch):
        t.model[3] = nn.Linear(8, 3)
        t.step(batch)

    def group(t, batch):
        t._state.optimizer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        t.step(batch)

    def rate(t, batch):
        t._state.optimizer.optimizer.param_groups[0]["lr"] = 1.0
        t.step(batch)

    def another_open(t, batch):
        PrivateTraining(t.model, small_data(), small_settings(), "elsewhere")

    return [
        ("the same batch twice", same_batch_twice, "the batch of step 4 was used before"),
        (
            "a pair of tensors",
            lambda t, b: t.step((b.inputs, b.targets)),
            r"got a tuple that is not of this training's",
        ),
        ("other rows", rows, r"inputs of the batch of step 4 have \d+ rows; valid: \d+"),
        ("other rows of both", rows_of_both, r"have 1 rows; valid: \d+"),
        ("no rows", scalar, "targets of the batch of step 4 have Tensor rows"),
        ("a loop within the loop", other_loop, r"batches\(\) is in use by another loop"),
        ("weights moved", moved, "0.weight was changed between two steps"),
        ("a parameter frozen", frozen, "the trainable parameter 0.bias was added, removed or replaced"),
        ("a layer replaced", replaced, "the trainable parameter 3.bias was added, removed or replaced"),
        ("a group added", group, "AdamW has 2 groups of parameters; valid: the 1 "),
        ("a learning rate", rate, "the optimizer was changed between two steps"),
        ("a loss that is none", lambda t, b: t.step(b, 3), "loss is a int; valid: a function"),
        ("another training of the model", another_open, r"the model is being trained in .*run; valid: finish\(\)"),
    ]


@pytest.mark.parametrize(("misuse", "words"), [m[1:] for m in misuses()], ids=[m[0] for m in misuses()])
def test_misuse_is_one_clear_line(tmp_path, monkeypatch, misuse, words):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    training = started(tmp_path / "run", model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))

    def go():
        for batch in training.batches():
            if training.step_number == 3:
                misuse(training, batch)
            else:
                training.step(batch)

    with pytest.raises(InvalidInputError, match=words) as caught:
        go()
    assert "\n" not in str(caught.value)


def test_a_batch_that_is_left_out_is_refused(tmp_path):
    training = started(tmp_path / "run")

    def go():
        for batch in training.batches():
            if batch.step != 1:
                training.step(batch)

    with pytest.raises(InvalidInputError, match="batch of step 2 was not given to step"):
        go()


def test_a_batch_of_another_training_is_refused(tmp_path):
    one, other = started(tmp_path / "one"), started(tmp_path / "other")
    with pytest.raises(InvalidInputError, match="is not of this training's"):
        one.step(next(other.batches()))


def test_finish_needs_a_step_and_works_once(tmp_path):
    training = started(tmp_path / "run")
    with pytest.raises(InvalidInputError, match="no step was run yet"):
        training.finish()
    run_all(training, until=2).finish()
    with pytest.raises(InvalidInputError, match=r"finish\(\) was called before"):
        training.finish()
    with pytest.raises(InvalidInputError, match="is finished; valid: a new run"):
        training.step(None)


def test_weights_that_moved_after_the_last_step_are_not_finished(tmp_path):
    """They may come from anywhere: from the private data without noise, say."""
    training = run_all(started(tmp_path / "run"), until=2)
    with torch.no_grad():
        training.model[0].weight.add_(1)
    with pytest.raises(InvalidInputError, match=r"0\.weight was changed"):
        training.finish()


def test_a_model_left_behind_is_not_trained_anew(tmp_path):
    """Its weights depend on the data, at a cost that the ledger of the first run alone has."""
    model = small_model()
    run_all(started(tmp_path / "run", model, noise_seed=None), until=2)  # dropped, neither closed nor finished
    with pytest.raises(InvalidInputError, match="was trained on these data before"):
        started(tmp_path / "other", model, noise_seed=None)


def test_an_optimizer_that_was_used_or_a_foreign_scheduler_is_refused(tmp_path):
    model, other = small_model(), small_model()
    used = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 6)).sum().backward()
    used.step()
    foreign = lr_scheduler.ConstantLR(torch.optim.SGD(other.parameters()))
    for choice, words in (
        ({"optimizer": used}, "AdamW has taken steps already"),
        ({"optimizer": torch.optim.SGD(other.parameters())}, "SGD does not hold the 4 trainable parameters"),
        ({"scheduler": foreign}, "ConstantLR moves another optimizer"),
        ({"optimizer": torch.optim.LBFGS(model.parameters())}, r"step\(closure\) of LBFGS needs a closure"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            started(tmp_path / "run", model, **choice)
        assert not (tmp_path / "run").exists()


def test_a_wrong_loss_costs_nothing(tmp_path):
    training = started(tmp_path / "run")
    with pytest.raises(InvalidInputError, match=r"loss returned shape \[\]"):
        run_all(training, loss=nn.CrossEntropyLoss())
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert not ledger.events
    with pytest.raises(InvalidInputError, match="was closed or stopped by an error; valid: resume=True"):
        run_all(training)


def test_a_forked_process_is_refused(tmp_path):
    """Two processes with one key would release two things under the same noise."""
    training = run_all(started(tmp_path / "run"), until=2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_all(training)
            os.write(write, b"went on")
        except InvalidInputError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert f"this training is of process {os.getpid()}" in os.read(read, 1000).decode()
    assert run_all(training).finish().steps == 20


WORKER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from tests.training.test_own_loop import jittered, started
from securesgd.training.interrupt import TrainingInterrupted

signal.signal(signal.SIGINT, signal.default_int_handler)

def project(model):
    if training.step_number == 5:
        os.kill(os.getpid(), int(sys.argv[3]))

training = started(sys.argv[2], project=project)
try:
    for batch in training.batches():
        training.step(jittered(batch))
except TrainingInterrupted as stop:
    print(stop.step)
"""


@pytest.mark.parametrize(("number", "step"), [(2, 6), (9, 4)])
def test_interrupted_within_a_step_nothing_is_lost(tmp_path, number, step):
    """Ctrl-C ends the step and saves it; after kill -9 the run goes on at the last checkpoint."""
    arguments = [str(Path(__file__).parents[2]), str(tmp_path / "run"), str(number)]
    done = subprocess.run([sys.executable, "-c", WORKER, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == ("6" if number == 2 else ""), done.stderr
    assert load_tensors(tmp_path / "run" / "checkpoint.safetensors").record["step"] == step
    lines = (tmp_path / "run" / "asked.json").read_text().splitlines()
    asked = {step: digest for line in lines for step, digest in json.loads(line).items()}
    assert list(asked)[-1] == "5"
    assert np.all([len(digest) == 32 for digest in asked.values()])
