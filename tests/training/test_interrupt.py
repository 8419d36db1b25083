"""Ctrl-C in a training: the run ends after a whole step with a checkpoint there, and a second one ends it at once."""

import os
import signal
import threading

import pytest
import torch

from securesgd.errors import InvalidInputError
from securesgd.privacy import replayed_statement
from securesgd.runtime.tensors import load_tensors
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.loop import train

from .conftest import no_step, small_data, small_model, small_settings


@pytest.fixture(autouse=True)
def python_handlers():
    """Both signals as the command line has them; a test process may have been started with others."""
    former = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def signalled_at(step, *numbers):
    def on_step(report):
        if report.step == step:
            for number in numbers:
                os.kill(os.getpid(), number)

    return on_step


def raised_at(step):
    def on_step(report):
        if report.step == step:
            raise KeyboardInterrupt

    return on_step


def during(step, action):
    """A projection, called within a step, that runs `action` in step `step`."""
    count = [0]

    def project(_):
        count[0] += 1
        if count[0] == step:
            action()

    return project


def step_of(folder):
    return load_tensors(folder / "checkpoint.safetensors").record["step"]


@pytest.mark.parametrize(
    "on_step",
    [signalled_at(7, signal.SIGINT), signalled_at(7, signal.SIGTERM), raised_at(7)],
    ids=["INT", "TERM", "raised"],
)
def test_the_run_stops_after_the_step_and_is_resumed_with_the_same_bits(tmp_path, weights, on_step):
    """Checkpoints are due at 4 and 8: the one at 7 is because of the signal. Block 5 to 9 is paid for."""
    settings, data, folder = small_settings(momentum=0.9, ema_decay=0.9), small_data(), tmp_path / "run"
    with pytest.raises(TrainingInterrupted) as caught:
        train(small_model(), data, settings, folder, on_step=on_step)
    stop, paid = caught.value, replayed_statement(folder / "ledger.jsonl").accounted_epsilon
    assert (stop.folder, stop.step, stop.steps, stop.epsilon) == (folder, 7, 20, paid)
    assert "training stopped after step 7 of 20; epsilon" in str(stop)
    assert "resume=True" in stop.__notes__[0]
    assert "finish=True" in stop.__notes__[0]
    assert step_of(folder) == 7
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    seen, resumed, whole = [], small_model(seed=9), small_model()
    train(resumed, data, settings, folder, resume=True, on_step=lambda report: seen.append(report.step))
    assert seen == list(range(8, 21))
    train(whole, data, settings, tmp_path / "whole")
    assert torch.equal(weights(resumed), weights(whole))


def test_the_last_step_is_no_exception(tmp_path, weights):
    """Stopped in the last step, the run is not finished yet; resumed, it is, without another step."""
    folder, settings = tmp_path / "run", small_settings(steps=5)
    with pytest.raises(TrainingInterrupted, match="after step 5 of 5"):
        train(small_model(), small_data(), settings, folder, on_step=raised_at(5))
    model, whole = small_model(), small_model()
    assert train(model, small_data(), settings, folder, resume=True, on_step=no_step).steps == 5
    train(whole, small_data(), settings, tmp_path / "whole")
    assert torch.equal(weights(model), weights(whole))


def test_a_signal_in_the_middle_of_a_step_waits_for_its_end(tmp_path):
    folder, project = tmp_path / "run", during(7, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as caught:
        train(small_model(), small_data(), small_settings(), folder, project=project)
    assert isinstance(caught.value, TrainingInterrupted)
    assert caught.value.step == step_of(folder) == 7


def test_a_second_signal_ends_the_step_too(tmp_path):
    """The checkpoint is the last one that was due: the state in the middle of a step is none to save."""
    folder = tmp_path / "run"

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal must end the step")

    with pytest.raises(KeyboardInterrupt) as caught:
        train(small_model(), small_data(), small_settings(), folder, project=during(7, twice))
    assert not isinstance(caught.value, TrainingInterrupted)
    assert step_of(folder) == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_callback_that_changed_the_weights_leaves_no_checkpoint(tmp_path):
    """A resumed run would use the noise of the next steps at other weights."""
    model, folder = small_model(), tmp_path / "run"

    def on_step(report):
        if report.step == 7:
            with torch.no_grad():
                model[0].weight.add_(1.0)
            raise KeyboardInterrupt

    with pytest.raises(InvalidInputError, match=r"on_step changed 0\.weight after step 7"):
        train(model, small_data(), small_settings(), folder, on_step=on_step)
    assert step_of(folder) == 4


def test_a_programs_own_handler_is_left_alone(tmp_path):
    caught = []
    signal.signal(signal.SIGINT, lambda *_: caught.append(1))
    on_step = signalled_at(3, signal.SIGINT)
    assert train(small_model(), small_data(), small_settings(steps=5), tmp_path / "run", on_step=on_step).steps == 5
    assert caught == [1]


def test_another_thread_trains_without_handlers(tmp_path):
    results = []

    def work():
        results.append(train(small_model(), small_data(), small_settings(steps=3), tmp_path / "run").steps)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [3]
