"""Attacks on a run while it trains, and between two attempts of it: each tries to release what the ledger lacks."""

import copy
import itertools
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy import Ledger
from securesgd.training.loop import train
from securesgd.training.private_training import PrivateTraining
from tests.training.conftest import small_data, small_model, small_settings


def secret_settings(**changes):
    return small_settings(**{"noise_seed": None} | changes)


def started(folder, model=None, *, optimizer=None, **options):
    return PrivateTraining(
        model or small_model(), small_data(), secret_settings(), folder, optimizer=optimizer, **options
    )


def run_until(training, step, transform=lambda batch: batch, loss=None):
    for batch in training.batches():
        training.step(transform(batch), loss)
        if training.step_number == step:
            break
    return training


def attacked(training, attack):
    """Run to step 3, attack between two steps, and go on."""
    for batch in training.batches():
        if training.step_number == 3:
            attack(training, batch)
        training.step(batch)
        if training.step_number == 6:
            break


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_training_cannot_be_doubled(tmp_path, twice):
    """A shallow copy shared the state: both took a step on one sample, the second without sampling."""
    with pytest.raises(InvalidInputError, match="a training cannot be copied or pickled"):
        attacked(started(tmp_path / "run"), lambda training, _: twice(training))


# Layers that change between two steps


class Mixing(nn.Module):
    """A layer through which examples mix, if its switch is on."""

    def __init__(self, on=True):
        super().__init__()
        self.on = on

    def forward(self, x):
        return torch.tanh(x - x.mean(0) if self.on else x)


def less_mean(module, inputs, outputs):
    return outputs - outputs.mean(0)


def replaced(model):
    model[1] = Mixing()


def another_class(model):
    model[1].__class__ = Mixing
    model[1].on = True


def another_forward(model):
    model[1].forward = Mixing().forward


def switched(model):
    model[1].on = True


CHANGES = {
    "a layer replaced": replaced,
    "its class": another_class,
    "its forward": another_forward,
    "a switch": switched,
    "a hook": lambda model: model[1].register_forward_hook(less_mean),
    "a hook of a linear layer": lambda model: model[0].register_forward_hook(less_mean),
    "a hook before all": lambda model: model.register_forward_pre_hook(lambda _, args: (args[0] - args[0].mean(0),)),
}


@pytest.mark.filterwarnings("ignore:clipping runs the examples one by one")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_mixes_later_is_refused_at_the_first_step_in_which_it_does(tmp_path, change):
    """Without parameters in it, a layer that was replaced at step 4 was seen at step 8, or not at all."""
    model = small_model()
    model[1] = Mixing(on=False)
    training = started(tmp_path / "run", model)
    with pytest.raises(InvalidInputError, match="the loss of one example depends on other examples"):
        attacked(training, lambda training, _: change(training.model))
    assert training.step_number == 3


def slope_of_all(model, inputs, targets):
    """A gradient penalty that is one number for all rows."""
    x = inputs.detach().clone().requires_grad_()
    losses = cross_entropy(model(x), targets, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + slope.square().sum()


@pytest.mark.filterwarnings("ignore:clipping runs the examples one by one")
def test_a_gradient_penalty_over_all_rows_is_refused(tmp_path):
    training = started(tmp_path / "run")
    with pytest.raises(InvalidInputError, match="depends on other examples"):
        run_until(training, 1, loss=slope_of_all)
    assert training.step_number == 0


# What could carry values of the examples from one step to the next


def with_hidden_buffer():
    model = small_model()
    model.register_buffer("carried", torch.zeros(6), persistent=False)
    return model


def new_buffer(training, batch):
    training.model.register_buffer("carried", batch.inputs.mean(0), persistent=False)


def momentum(training, batch):
    state = training._state.optimizer.optimizer.state[training.model[0].weight]
    state["exp_avg"].data += batch.inputs.mean()


CARRIERS = {
    "a buffer that is not saved": lambda training, batch: training.model.carried.copy_(batch.inputs.mean(0)),
    "a new buffer": new_buffer,
    "the optimizer's average": momentum,
}


@pytest.mark.parametrize("name", CARRIERS)
def test_nothing_carries_a_batch_into_the_next_step_between_steps(tmp_path, name):
    model = with_hidden_buffer() if name == "a buffer that is not saved" else small_model()
    training = started(tmp_path / "run", model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1))
    with pytest.raises(
        InvalidInputError, match=r"(carried|optimizer\.exp_avg\.0\.weight) was changed between two steps"
    ):
        attacked(training, CARRIERS[name])
    assert training.step_number == 3


# Calls within calls, threads


@pytest.mark.parametrize("call", ["finish", "close", "batches"])
def test_a_loss_cannot_end_the_step_it_is_of(tmp_path, call):
    """`finish` there wrote weights and removed the key of a step that then went on."""
    training = run_until(started(tmp_path / "run"), 2)
    (batch,) = itertools.islice(training.batches(), 1)

    def loss(outputs, targets):
        next(training.batches()) if call == "batches" else getattr(training, call)()
        return cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(InvalidInputError, match=rf"{call}\(\) was called within a step"):
        training.step(batch, loss)
    assert training.closed
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert run_until(started(tmp_path / "run", small_model(seed=1), resume=True), 20).finish().steps == 20


def test_another_thread_does_not_draw_while_a_step_lasts(tmp_path):
    """It drew the sample of the step that lasted once more, and used it as that of the next."""
    training, seen = started(tmp_path / "run"), []
    batches = training.batches()
    batch = next(batches)

    def draw():
        with pytest.raises(InvalidInputError, match=r"batches\(\) was called while another thread takes a step"):
            seen.append(next(batches))
        seen.append("refused")

    def loss(outputs, targets):
        if not seen:
            thread = threading.Thread(target=draw)
            thread.start()
            thread.join()
        return cross_entropy(outputs, targets, reduction="none")

    training.step(batch, loss)
    assert seen == ["refused"]
    assert [batch.step for batch in itertools.islice(training.batches(), 1)] == [1]


@pytest.mark.parametrize("of_train", [True, False])
def test_steps_run_on_their_number_of_threads_whatever_the_program_sets(tmp_path, of_train):
    """Sums on two threads have other last bits: run again after a crash, the step would be another release."""
    seen, former = [], torch.get_num_threads()

    def loss(outputs, targets):
        seen.append(torch.get_num_threads())
        return cross_entropy(outputs, targets, reduction="none")

    try:
        torch.set_num_threads(1)
        if of_train:
            settings = secret_settings(steps=3)
            train(
                small_model(), small_data(), settings, tmp_path / "run", loss=loss,
                on_step=lambda _: torch.set_num_threads(2),
            )  # fmt: skip
        else:
            training = started(tmp_path / "run")
            for batch in training.batches():
                torch.set_num_threads(2)
                training.step(batch, loss)
                assert torch.get_num_threads() == 2, "between steps they are the program's"
                if training.step_number == 3:
                    break
            training.close()
    finally:
        torch.set_num_threads(former)
    assert set(seen) == {1}


# Two attempts, two processes, files in between


class DrawsElsewhere(nn.Module):
    """A model with noise from numpy's generator, which nobody seeds for a step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x * torch.from_numpy(np.random.random(x.shape)).to(x.dtype))  # noqa: NPY002


class KilledError(Exception):
    """The process ends here."""


def killed_at(step):
    def on_step(report):
        if report.step == step:
            raise KilledError

    return on_step


@pytest.mark.filterwarnings("ignore:clipping runs the examples one by one")
def test_train_does_not_release_a_step_twice_with_other_sums(tmp_path):
    """The difference of both releases had no noise in it: of a loss that `train` knows, nothing was recorded."""
    data, settings = small_data(), secret_settings()
    with pytest.raises(KilledError):
        train(DrawsElsewhere(), data, settings, tmp_path / "run", on_step=killed_at(6))
    with pytest.raises(InvalidInputError, match=r"step 5 was run before .* gave other sums"):
        train(DrawsElsewhere(), data, settings, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "asked.json").stat().st_mode & 0o777 == 0o600
    assert train(DrawsElsewhere(), data, settings, tmp_path / "run", finish=True).steps == 4
    assert not (tmp_path / "run" / "asked.json").exists()


class Spectral(nn.Module):
    """A layer whose buffers move with every pass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))

    def forward(self, x):
        return self.layers(x)


def test_a_run_with_layers_that_are_run_again_is_resumed_on_the_same_path(tmp_path):
    """They were run again with the buffers after the pass: whether that was noticed depended on when it was tried."""
    models = []
    for folder, kills in (("whole", ()), ("killed", (7,))):
        torch.manual_seed(3)
        model = Spectral()
        with torch.no_grad():
            model.layers[1].parametrizations.weight.original.mul_(3)
        options = {"settings": secret_settings(noise_seed=4, learning_rate=1.0), "folder": tmp_path / folder}
        for step in kills:
            with pytest.raises(KilledError):
                train(model, small_data(), on_step=killed_at(step), **options)
        train(model, small_data(), resume=bool(kills), **options)
        models.append(model.state_dict())
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def test_a_record_that_was_taken_away_is_no_permission_to_ask_again(tmp_path):
    run_until(started(tmp_path / "run"), 6).close()
    (tmp_path / "run" / "asked.json").unlink()
    with pytest.raises(DamagedFileError, match=r"asked\.json is missing, so that a step could be run again"):
        started(tmp_path / "run", small_model(seed=1), resume=True)
    assert started(tmp_path / "run", small_model(seed=1), finish=True).finish().steps == 4
    started(tmp_path / "new").close()  # killed before the first step, and before its record was there
    (tmp_path / "new" / "asked.json").unlink()
    assert run_until(started(tmp_path / "new", small_model(seed=2), resume=True), 20).finish().steps == 20


def test_a_record_and_an_older_checkpoint_are_refused(tmp_path):
    """The steps between both checkpoints are in neither: they could be asked anything once more."""
    folder = tmp_path / "run"
    training = run_until(started(folder), 5)
    shutil.copy(folder / "checkpoint.safetensors", tmp_path / "older")
    run_until(training, 10).close()
    shutil.copy(tmp_path / "older", folder / "checkpoint.safetensors")
    with pytest.raises(DamagedFileError, match=r"asked\.json does not begin with step 5"):
        started(folder, small_model(seed=1), resume=True)


@pytest.mark.parametrize("damage", ["a line cut off", "no key", "weights of the checkpoint"])
def test_files_edited_between_two_attempts_are_refused(tmp_path, damage):
    folder = tmp_path / "run"
    run_until(started(folder), 7).close()
    if damage == "a line cut off":
        ledger = folder / "ledger.jsonl"
        ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
        words = "ledger"
    elif damage == "no key":
        secret = folder / "secret.json"
        secret.write_text(secret.read_text().replace('"key": "', '"key": "x'))
        words = "secret"
    else:
        file = folder / "checkpoint.safetensors"
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(bytes(content))
        words = "checkpoint"
    with pytest.raises((PrivacyError, DamagedFileError), match=words):
        started(folder, small_model(seed=1), resume=True)


def test_a_ledger_cut_off_under_a_running_training_stops_it(tmp_path):
    folder = tmp_path / "run"
    training = run_until(started(folder), 4)
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises((PrivacyError, DamagedFileError)):
        run_until(training, 20)
    assert training.step_number == 5, "the block that was reserved"


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    training = run_until(started(tmp_path / "run"), 3)
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            run_until(started(tmp_path / "run", small_model(seed=1), resume=True), 5)
            os.write(write, b"trained, too")
        except PrivacyError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.wait()
    assert "is in use by another process" in os.read(read, 1000).decode()
    assert run_until(training, 20).finish().steps == 20
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as opened:
        assert opened.steps_charged == 20
