"""Examples on disk are read for the next step while this one is computed: the same rows, bits, files and errors."""

import signal
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, TensorDataset

from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.tensors import load_tensors
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.loop import per_example_cross_entropy, train
from securesgd.training.private_training import PrivateTraining
from securesgd.training.read_ahead import ReadAhead

from .conftest import small_data, small_model, small_settings

LOSS = per_example_cross_entropy
DATA = small_data()
MEMORY = ((DATA[0] - DATA[0].min()) / (DATA[0].max() - DATA[0].min()), DATA[1])


class WatchedRows:
    """Rows of an array, which notes what is read of them, and fails for a set of rows."""

    place, kind = "rows", np.dtype(np.float32)

    def __init__(self):
        self.array, self.shape = MEMORY[0].numpy(), tuple(MEMORY[0].shape)
        self.reads, self.broken, self.threads = [], False, []

    def read(self, numbers):
        if self.broken and threading.current_thread() is not threading.main_thread():
            raise DamagedFileError("rows was cut short while it was read; put it back and start again")
        self.reads.append(numbers.tolist())
        self.threads.append(threading.current_thread().name)
        return self.array[numbers]


def stored():
    rows = WatchedRows()
    return rows, (StoredInputs(rows), MEMORY[1])


def readers():
    return [thread for thread in threading.enumerate() if "read-ahead" in thread.name]


def samples(settings, key):
    return [Randomness(key).poisson_sample(step, 60, settings.rate(60)).tolist() for step in range(settings.steps)]


def test_a_step_gets_what_it_would_read_itself_whatever_was_begun_before():
    begun = []

    def read(step):
        begun.append(step)
        return step * 10

    ahead = ReadAhead(read, steps=8)
    assert [ahead.take(step) for step in (0, 1, 2, 6, 3, 3, 7, 7)] == [0, 10, 20, 60, 30, 30, 70, 70]
    ahead.close()
    assert max(begun) == 7, "the run has eight steps"
    assert not readers()
    assert ahead.take(2) == 20, "closed, it reads by itself"
    ahead.close()


def test_an_error_is_that_of_its_step_and_not_of_the_one_before():
    def read(step):
        if step == 2:
            raise DamagedFileError("gone")
        return step

    ahead = ReadAhead(read, steps=5)
    assert (ahead.take(0), ahead.take(1)) == (0, 1)
    for _ in range(2):
        with pytest.raises(DamagedFileError, match="gone"):
            ahead.take(2)
    assert ahead.take(3) == 3
    ahead.close()


def test_the_next_sample_is_read_while_a_step_is_computed(tmp_path):
    """The callback is called within the step, and waits until the rows of the step after it have been read."""
    rows, data = stored()
    settings = small_settings(steps=6)
    read = []

    def on_step(report):
        for _ in range(1000):
            if len(rows.reads) > before + report.step or report.step == 6:
                break
            threading.Event().wait(0.005)
        read.append(len(rows.reads) - before)

    training = PrivateTraining(small_model(), data, settings, tmp_path / "run", on_step=on_step, loss=LOSS)
    key, before = training._randomness.key, len(rows.reads)
    for batch in training.batches():
        training.step(batch)
    training.finish()
    assert read == [2, 3, 4, 5, 6, 6]
    assert rows.reads[before:] == samples(settings, key), "each step its own sample, each read once"
    assert set(rows.threads[before + 1 :]) == {"securesgd-read-ahead_0"}
    assert not readers()


@pytest.mark.parametrize("copies", [1, 3])
def test_bits_and_files_are_those_of_examples_in_memory(tmp_path, weights, copies):
    """Also of a run that is stopped after a step, with a sample read ahead, and resumed."""
    settings = small_settings(copies=copies, ema_decay=0.9)

    def stop(report):
        if report.step == 7:
            raise KeyboardInterrupt

    vectors, files = [], []
    for name, data in (("memory", MEMORY), ("disk", stored()[1])):
        model, folder = small_model(), tmp_path / name
        with pytest.raises(TrainingInterrupted):
            train(model, data, settings, folder, on_step=stop)
        assert not readers()
        files.append({file.name: len(file.read_bytes()) for file in folder.iterdir()})
        model = small_model(seed=5)
        train(model, data, settings, folder, resume=True)
        vectors.append(weights(model))
        files.append({file.name: len(file.read_bytes()) for file in folder.iterdir()})
    whole = small_model()
    train(whole, MEMORY, settings, tmp_path / "whole")
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[1], weights(whole))
    assert files[0] == files[2], "what was read ahead is in no file"
    assert files[1] == files[3]
    assert "checkpoint.safetensors" in files[0]


def test_a_failed_read_ends_the_training_at_the_step_it_belongs_to(tmp_path, weights):
    rows, data = stored()
    settings, folder, done = small_settings(), tmp_path / "run", []

    def on_step(report):
        done.append(report.step)
        rows.broken = report.step >= 5  # that of step 7 at the latest

    with pytest.raises(DamagedFileError) as caught:
        train(small_model(), data, settings, folder, on_step=on_step)
    assert str(caught.value) == "rows was cut short while it was read; put it back and start again"
    assert done in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    assert load_tensors(folder / "checkpoint.safetensors").record["step"] == 4
    rows.broken = False
    model, whole = small_model(seed=5), small_model()
    train(model, data, settings, folder, resume=True)
    train(whole, MEMORY, settings, tmp_path / "whole")
    assert torch.equal(weights(model), weights(whole))


def test_a_second_interruption_while_a_read_lasts_ends_at_once_and_leaves_no_thread(tmp_path):
    """Both signals come while the loop waits for rows that are slow to come."""
    rows, data = stored()
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    real, slow = rows.read, threading.Event()

    def read(numbers):
        if slow.is_set() and threading.current_thread() is not threading.main_thread():
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                threading.Event().wait(0.2)
        return real(numbers)

    rows.read = read
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            train(small_model(), data, small_settings(), tmp_path / "run", on_step=lambda report: slow.set())
    finally:
        signal.signal(signal.SIGINT, former)
    assert not isinstance(caught.value, TrainingInterrupted)
    assert not readers()


def test_a_training_that_is_dropped_leaves_no_thread_and_one_of_a_dataset_starts_none(tmp_path):
    """A Dataset may draw from torch's generator, which is that of the step: it is read in its turn."""
    training = PrivateTraining(small_model(), stored()[1], small_settings(), tmp_path / "run")
    next(training.batches())
    assert len(readers()) == 1
    training.close()
    assert not readers()
    with pytest.raises(InvalidInputError, match="was closed"):
        next(training.batches())
    other = PrivateTraining(
        small_model(), ConcatDataset([TensorDataset(*MEMORY)]), small_settings(), tmp_path / "other"
    )
    next(other.batches())
    assert not readers()
    other.close()
