"""kill -9 of one of two ranks at random moments of `securesgd train`: one line, nothing lost, the same bits in the end.

The launcher here does what torchrun does (a store of its own, SIGTERM to the ranks that are left), but forks the ranks
from a process that has loaded everything, so that a start costs no seconds; `test_torchrun.py` has the real one.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from securesgd.privacy import replayed_statement
from securesgd.runtime.tensors import load_tensors

ROOT = Path(__file__).parents[2]
LAUNCHER = """
import json, os, signal, sys, time
import matplotlib.pyplot, sklearn.datasets, torch
import torch.distributed as dist
torch.set_num_threads(1)
import securesgd.fitted_config, securesgd.run_training
from securesgd.cli import main

def rank_of_job(rank, port, words, restarts):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    sys.argv = ["securesgd", *words]
    with open("said", "a") as said:
        os.dup2(said.fileno(), 2)
        os.dup2(said.fileno(), 1)
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(77)

def job(words, kill, restarts):
    open("said", "w").close()
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    began, codes, told = time.monotonic(), {}, None
    ranks = {}
    for rank in range(2):
        ranks[rank] = os.fork()
        if not ranks[rank]:
            rank_of_job(rank, store.port, words, restarts)
    while len(codes) < 2:
        time.sleep(0.005)
        now = time.monotonic() - began
        if kill and now >= kill[1]:
            if kill[0] not in codes:
                os.kill(ranks[kill[0]], signal.SIGKILL)
            kill = None
        for rank in set(ranks) - set(codes):
            pid, status = os.waitpid(ranks[rank], os.WNOHANG)
            if pid:
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] and told is None:
                    told = now + 0.1  # torchrun looks ten times a second
        if told is not None and now >= told:
            told = float("inf")
            for rank in set(ranks) - set(codes):
                os.kill(ranks[rank], signal.SIGTERM)
        if now > 240:
            for rank in set(ranks) - set(codes):
                os.kill(ranks[rank], signal.SIGKILL)
    return {"codes": [codes[0], codes[1]], "said": open("said").read(), "seconds": time.monotonic() - began}

for line in sys.stdin:
    words, kill, restarts = json.loads(line)
    print(json.dumps(job(words, kill, restarts)), flush=True)
"""
SETTINGS = ["accountant=rdp", "steps=60", "noise_seed=1", "batch_size=64", "block_steps=10", "checkpoint_steps=7"]


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """A function that runs a command in two ranks, and may kill one of them after some seconds."""
    place = tmp_path_factory.mktemp("jobs")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], cwd=place, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip

    def run(*words, kill=None, restarts=0):
        launcher.stdin.write(json.dumps([words, kill, restarts]) + "\n")
        launcher.stdin.flush()
        return json.loads(launcher.stdout.readline())

    run.place = place
    yield run
    launcher.stdin.close()
    launcher.wait(timeout=60)


def train_command(out):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["train", "--dataset", "digits", "--method", "dpsgd", "--epsilon", "8", *sets, "--out", out]


@pytest.fixture(scope="module")
def whole(launch):
    result = launch(*train_command("whole"))
    assert result["codes"] == [0, 0], result["said"]
    return result


def own_lines(result):
    return [line for line in result["said"].splitlines() if line.startswith("securesgd: ")]


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


def test_a_killed_rank_costs_one_line_and_no_bits(launch, whole):
    killed_and_resumed(launch, whole, 2)


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
