"""kill -9 at random moments of training and checkpointing: every one resumes, the ledger replays, nothing is lost.

Of a run with secret noise, whose steps are recorded; that all attempts have one key makes their bits comparable.
"""

import random
import time

import pytest
import torch

from securesgd.privacy import Ledger, replayed_statement
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.tensors import load_tensors
from securesgd.training.loop import train
from tests.forked import Forked

from .conftest import small_data, small_model, small_settings

WORKER = """
import sys
from tests.training.conftest import small_data, small_model, small_settings
from securesgd.runtime.randomness import Randomness
from securesgd.training.loop import train
print("ready", flush=True)
show = lambda report: print(report.step, flush=True)
Randomness.secret = classmethod(lambda _: Randomness(b"0123456789abcdef"))
settings = small_settings(steps=150, checkpoint_steps=2, noise_seed=None)
train(small_model(), small_data(), settings, sys.argv[1], resume=True, on_step=show)
print("done", flush=True)
"""


def run_and_kill(folder, delay):
    """Run the training, kill it `delay` seconds after it began to work; return (finished, last step it showed)."""
    worker = Forked(WORKER, folder, OMP_NUM_THREADS="1")
    assert worker.wait_for_line() == "ready"
    time.sleep(delay)
    worker.kill()
    output, errors = worker.printed(1), worker.printed(2)
    assert "Error" not in errors, errors
    lines = output.split()
    steps = [int(line) for line in lines if line.isdigit() and output.endswith("\n")]
    return "done" in lines, max(steps, default=0)


def killed_until_done(tmp_path, kills, longest):
    settings = small_settings(steps=150, checkpoint_steps=2, noise_seed=None)
    whole = small_model()
    train(whole, small_data(), settings, tmp_path / "whole")
    dice, count, finished = random.Random(0), 0, False
    while count < kills:
        folder = tmp_path / f"killed-{count}"
        finished, seen = False, 0
        while not finished and count < kills:
            finished, step = run_and_kill(folder, dice.uniform(0, longest))
            seen = max(seen, step)
            count += not finished
            if (folder / "ledger.jsonl").exists() and not finished:
                with Ledger.open(folder / "ledger.jsonl") as ledger:
                    assert ledger.steps_charged >= seen  # no step that was shown is missing
        resumed = small_model()
        result = train(resumed, small_data(), settings, folder, resume=True)
        assert replayed_statement(folder / "ledger.jsonl").epsilon == result.statement.epsilon
        with Ledger.open(folder / "ledger.jsonl") as ledger:
            assert ledger.steps_charged == 150  # and none is paid twice
        ours, theirs = (
            load_tensors(folder / "model.safetensors"),
            load_tensors(tmp_path / "whole" / "model.safetensors"),
        )
        assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in theirs.tensors)
    return count


@pytest.fixture(autouse=True)
def one_thread_and_one_key_as_the_worker(monkeypatch):
    monkeypatch.setattr(Randomness, "secret", classmethod(lambda _: Randomness(b"0123456789abcdef")))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_two_kills(tmp_path):
    assert killed_until_done(tmp_path, 2, longest=0.6) == 2


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    assert killed_until_done(tmp_path, 50, longest=0.6) == 50
