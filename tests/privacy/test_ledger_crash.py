"""kill -9 at random moments: no acknowledged record is ever lost, the ledger opens every time."""

import multiprocessing
import random
import time
from multiprocessing.connection import Connection

import pytest

from securesgd.privacy import Ledger, SampledGaussianSteps, replayed_statement

# A server that has imported the package forks the children: fresh processes in milliseconds, no threads of ours.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["securesgd.privacy"])


def append_for_ever(path, told: Connection):
    """Reserve blocks without end; tell each step that may now run, after reserve() has returned."""
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, delta=1e-5, accountant="rdp")
    block = SampledGaussianSteps(sampling_rate=1.0, noise_multiplier=500.0, steps=10)
    step = ledger.steps_reserved("run")
    told.send(0)
    while True:
        ledger.reserve(block, first_step=step, stream="run")
        step += block.steps
        told.send(step)


def acknowledged_until_killed(path, seconds):
    """Start the child, kill it, and return the last step it was told it may run (0 if none)."""
    listening, telling = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=append_for_ever, args=(path, telling))
    child.start()
    telling.close()
    last = listening.recv()
    time.sleep(seconds)
    child.kill()
    child.join()
    try:
        while True:
            last = listening.recv()
    except (EOFError, OSError):
        return last


def check_kills(path, kills, seed):
    moments = random.Random(seed)
    promised = 0
    for _ in range(kills):
        promised = max(promised, acknowledged_until_killed(path, moments.uniform(0, 0.15)))
        with Ledger.open(path) as ledger:  # opens: no damage, and the dead child's lock is gone
            # at most one block was on disk without having been acknowledged
            assert promised <= ledger.steps_reserved("run")
            assert ledger.steps_reserved("run") == ledger.steps_charged
            assert ledger.epsilon == replayed_statement(path).epsilon
    assert promised > 0


def test_ten_kills_lose_nothing(tmp_path):
    check_kills(tmp_path / "ledger.jsonl", kills=10, seed=1)


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path):
    check_kills(tmp_path / "ledger.jsonl", kills=100, seed=2)


@pytest.mark.slow
def test_kills_during_creation_leave_no_ledger_or_a_whole_one(tmp_path):
    moments = random.Random(3)
    for attempt in range(60):
        path = tmp_path / str(attempt) / "ledger.jsonl"
        path.parent.mkdir()
        listening, telling = CONTEXT.Pipe(duplex=False)
        child = CONTEXT.Process(target=append_for_ever, args=(path, telling))
        child.start()
        while not list(path.parent.iterdir()) and child.is_alive():
            pass
        time.sleep(moments.uniform(0, 0.002))
        child.kill()
        child.join()
        listening.close()
        telling.close()
        if path.exists():
            Ledger.open(path).close()
