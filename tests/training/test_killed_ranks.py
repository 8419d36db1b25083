"""kill -9 of one of two ranks at random moments of `securesgd train`: one line, nothing lost, the same bits in the end.

`tests/ranks.py` starts them; `test_torchrun.py` has the real torchrun.
"""

import json
import random

import pytest
import torch

from securesgd.privacy import replayed_statement
from securesgd.runtime.tensors import load_tensors
from tests.ranks import own_lines

SETTINGS = ["accountant=rdp", "steps=60", "noise_seed=1", "batch_size=64", "block_steps=10", "checkpoint_steps=7"]


def train_command(out):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["train", "--dataset", "digits", "--method", "dpsgd", "--epsilon", "8", *sets, "--out", out]


@pytest.fixture(scope="module")
def whole(launch):
    launch("-c", "pass")  # the fork server loads everything at its first job, which is not timed
    result = launch(*train_command("whole"))
    assert result["codes"] == [0, 0], result["said"]
    return result


def same_run(first, second):
    left, right = (load_tensors(folder / "model.safetensors").tensors for folder in (first, second))
    same = left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    statements = [replayed_statement(folder / "ledger.jsonl") for folder in (first, second)]
    return same and statements[0] == statements[1]


def killed_and_resumed(launch, whole, kills, *, by_restart=False):
    """Kill a random rank at `kills` random moments; return how many came before, within and after the steps."""
    dice, moments = random.Random(kills), {"no run yet": 0, "resumed": 0, "ended before": 0}
    for number in range(kills):
        out = f"{'restarted' if by_restart else 'killed'}-{number}"
        rank, moment = dice.randrange(2), dice.uniform(0, whole["seconds"])
        killed = launch(*train_command(out), kill=[rank, moment])
        if killed["codes"] == [0, 0]:
            moments["ended before"] += 1
        else:
            assert killed["codes"][rank] == -9, killed
            assert killed["codes"][1 - rank] in (0, 2, 130), killed  # 0: it had ended by itself
            assert len(own_lines(killed)) == (killed["codes"][1 - rank] != 0), killed
            assert "Traceback" not in killed["said"], killed
            assert killed["seconds"] < 120, "the survivor waited"
        there = (launch.place / out / "config.toml").exists()
        moments["resumed" if there else "no run yet"] += killed["codes"] != [0, 0]
        if by_restart:
            resumed = launch(*train_command(out), restarts=1)
        else:
            resumed = launch(*(["train", "--resume", "--out", out] if there else train_command(out)))
        assert resumed["codes"] == [0, 0], resumed
        assert same_run(launch.place / "whole", launch.place / out)
    print(moments, f"{whole['seconds']:.1f} s undisturbed")
    return moments


@pytest.mark.slow
def test_twenty_kills(launch, whole):
    moments = killed_and_resumed(launch, whole, 20)
    assert moments["resumed"] >= 8, moments


def test_a_restarted_job_resumes_by_itself_and_touches_no_run_of_other_settings(launch, whole):
    killed_and_resumed(launch, whole, 1, by_restart=True)
    before = (launch.place / "whole" / "model.safetensors").read_bytes()
    again = launch(*train_command("whole"), restarts=1)
    assert again["codes"] == [0, 0]
    assert "whole is finished already" in again["said"]
    other = launch(*train_command("whole"), "--set", "seed=3", restarts=1)
    assert other["codes"] == [2, 2]
    refusal = "securesgd: error: whole is not empty; resume it with --resume, or choose another folder"
    assert own_lines(other) == [refusal], "both ranks refuse, one says so"
    assert (launch.place / "whole" / "model.safetensors").read_bytes() == before


KILLED_AT_31 = """
import os, signal, sys
from securesgd.cli import main
from securesgd.training.state import TrainingState

real = TrainingState.count_step

def count_step(self):
    real(self)
    if os.environ["RANK"] == "1" and self.step == 31:
        os.kill(os.getpid(), signal.SIGKILL)

TrainingState.count_step = count_step
sys.argv = ["securesgd", *sys.argv[1:]]
main()
"""


def test_steps_of_a_run_with_secret_noise_give_both_ranks_the_same_sums_again(launch):
    """Its bits cannot be compared with another run's; that each step gave the sums on record is what resuming asks."""
    words = [word for setting in SETTINGS if setting != "noise_seed=1" for word in ("--set", setting)]
    command = ["train", "--dataset", "digits", "--method", "dpsgd", "--epsilon", "8", *words, "--out", "secret"]
    killed, folder = launch("-c", KILLED_AT_31, *command), launch.place / "secret"
    assert killed["codes"][1] == -9, killed
    lines = (folder / "asked.json").read_text().splitlines()
    steps = sorted(int(step) for line in lines for step in json.loads(line))
    assert steps[-1] in (30, 31), "rank 0 may have begun the next one"
    resumed = launch("train", "--resume", "--out", "secret")
    assert resumed["codes"] == [0, 0], resumed["said"]
    assert not (folder / "asked.json").exists()
    assert replayed_statement(folder / "ledger.jsonl").epsilon <= 8
