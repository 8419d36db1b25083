"""The queue in front of the model."""

import threading
import time

import pytest

from securesgd.serve.worker import Busy, ModelWorker


def test_what_waits_is_computed_together_in_its_order_and_no_more_than_allowed_wait():
    gate, batches = threading.Event(), []

    def compute(tasks):
        batches.append(list(tasks))
        gate.wait(10)
        return [task * 10 for task in tasks]

    worker = ModelWorker(compute, waiting=5, together=3)
    first = worker.submit(0)
    while not batches:
        time.sleep(0.001)
    others = [worker.submit(task) for task in range(1, 6)]
    with pytest.raises(Busy):
        worker.submit(6)
    others[1].cancel()
    gate.set()
    assert first.result(10) == 0
    assert [future.result(10) for future in (others[0], *others[2:])] == [10, 30, 40, 50]
    assert batches == [[0], [1, 3], [4, 5]]
    worker.close(10)


def test_one_error_spoils_neither_its_neighbours_nor_the_thread():
    def compute(tasks):
        if "crash" in tasks:
            raise MemoryError("too large")
        return [ValueError(task) if task == "bad" else task for task in tasks]

    worker = ModelWorker(compute, waiting=5)
    bad, good = worker.submit("bad"), worker.submit("good")  # taken together
    with pytest.raises(ValueError, match="bad"):
        bad.result(10)
    assert good.result(10) == "good"
    with pytest.raises(MemoryError):
        worker.submit("crash").result(10)
    assert worker.submit("still there").result(10) == "still there"
    worker.close(10)


def test_a_closed_worker_finishes_and_takes_no_more():
    gate = threading.Event()

    def compute(tasks):
        gate.wait(10)
        return tasks

    worker = ModelWorker(compute, waiting=5)
    futures = [worker.submit(task) for task in range(4)]
    closing = threading.Thread(target=worker.close, args=(10,))
    closing.start()
    while worker.alive:
        time.sleep(0.001)
    with pytest.raises(Busy):
        worker.submit(9)
    gate.set()
    closing.join(10)
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]
