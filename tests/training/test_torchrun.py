"""Commands under the real torchrun: one folder, written by the first rank; a killed rank costs nothing."""

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from securesgd.privacy import replayed_statement
from securesgd.runtime.tensors import load_tensors

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal
from securesgd.cli import main
from securesgd.training.state import TrainingState

with open(f"pid-{os.environ['RANK']}", "w") as file:
    file.write(str(os.getpid()))
rank, step = (int(number) for number in os.environ.get("KILLED", "-1 0").split())
real = TrainingState.count_step

def count_step(self):
    real(self)
    if int(os.environ["RANK"]) == rank and self.step == step:
        os.kill(os.getpid(), signal.SIGKILL)

TrainingState.count_step = count_step
main()
"""
SETTINGS = ["accountant=rdp", "steps=30", "noise_seed=1", "batch_size=64", "block_steps=5", "checkpoint_steps=4"]


def launched(place, *arguments, restarts=0, **environment):
    """A job of two processes, begun; each writes its number to a file when it begins."""
    (place / "program.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*launcher, "--max-restarts", str(restarts), "program.py", *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(place, *arguments, **environment):
    job = launched(place, *arguments, **environment)
    stdout, stderr = job.communicate(timeout=900)
    return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)


def own_lines(text):
    return [line for line in text.splitlines() if line.startswith("securesgd: ")]


def train_command(out):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["train", "--dataset", "digits", "--method", "dpsgd", "--epsilon", "8", *sets, "--out", out]


def tensors(folder):
    return load_tensors(folder / "model.safetensors").tensors


@pytest.mark.slow
def test_two_ranks_train_one_run_and_a_killed_one_is_resumed_with_the_same_bits(tmp_path):
    whole = torchrun(tmp_path, *train_command("whole"))
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("everything is in whole") == 1, "the first rank alone speaks"
    assert {"config.toml", "ledger.jsonl", "model.json", "model.safetensors", "MODEL_CARD.md"} <= {
        file.name for file in (tmp_path / "whole").iterdir()
    }
    again = torchrun(tmp_path, *train_command("whole"))
    assert again.returncode != 0
    assert "securesgd: error: whole is not empty; resume it with --resume, or choose another folder" in again.stderr
    for rank in (0, 1):
        folder = tmp_path / f"killed-{rank}"
        killed = torchrun(tmp_path, *train_command(folder.name), KILLED=f"{rank} 7")
        assert killed.returncode != 0
        own = own_lines(killed.stderr)
        assert len(own) <= 1, "torchrun may end the survivor before it can say anything; it never says more"
        assert all("another process of this job has ended" in line or "training stopped" in line for line in own)
        assert "gloo" not in killed.stderr
        assert load_tensors(folder / "checkpoint.safetensors").record["step"] == 4
        resumed = torchrun(tmp_path, "train", "--resume", "--out", folder.name)
        assert resumed.returncode == 0, resumed.stderr
        first, second = tensors(tmp_path / "whole"), tensors(folder)
        assert all(torch.equal(first[name], second[name]) for name in first)
        statements = [replayed_statement(place / "ledger.jsonl") for place in (tmp_path / "whole", folder)]
        assert statements[0] == statements[1]


def undisturbed(place, out):
    """Run a job and return its end, and how long its first process lasted from its first line on."""
    job = launched(place, *train_command(out))
    began = number_of(place, 0, job) and time.monotonic()
    stdout, stderr = job.communicate(timeout=900)
    return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr), time.monotonic() - began


def number_of(place, rank, job):
    """The process number of a rank, as soon as it has one."""
    file = place / f"pid-{rank}"
    while not (file.exists() and file.read_text()) and job.poll() is None:
        time.sleep(0.01)
    return int(file.read_text())


def killed_at_a_random_moment(place, out, dice, seconds):
    """Begin a job that torchrun restarts, kill -9 one of its processes, and wait for the end."""
    for file in place.glob("pid-*"):
        file.unlink()
    job, rank = launched(place, *train_command(out), restarts=3), dice.randrange(2)
    number = number_of(place, rank, job)
    time.sleep(dice.uniform(0, 0.9 * seconds))  # the end of a job is torchrun's
    try:
        os.kill(number, signal.SIGKILL)
        hit = True
    except ProcessLookupError:  # the job was faster than the one that was timed
        hit = False
    stdout, stderr = job.communicate(timeout=900)
    return hit, subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of jobs, with a run in it that was never disturbed, and its seconds."""
    place = tmp_path_factory.mktemp("jobs")
    job, seconds = undisturbed(place, "whole")
    assert job.returncode == 0, job.stderr
    return place, seconds


@pytest.mark.slow
@pytest.mark.parametrize("kills", [range(7), range(7, 14), range(14, 20)], ids=["first", "second", "third"])
def test_twenty_kills_under_torchrun_that_restarts_the_job(whole, kills):
    """Each job resumes its run by itself, ends with the bits of one that was never disturbed, and says one line."""
    (place, seconds), hits = whole, 0
    first, expected = tensors(place / "whole"), replayed_statement(place / "whole" / "ledger.jsonl")
    for number in kills:
        folder = place / f"killed-{number}"
        hit, job = killed_at_a_random_moment(place, folder.name, random.Random(number), seconds)
        print(number, hit, own_lines(job.stderr))
        assert job.returncode == 0, job.stderr
        assert len(own_lines(job.stderr)) <= hit, job.stderr
        assert "Traceback" not in job.stderr, job.stderr
        second = tensors(folder)
        assert all(torch.equal(first[name], second[name]) for name in first), number
        assert replayed_statement(folder / "ledger.jsonl") == expected
        assert not {"secret.json", "checkpoint.safetensors"} & {file.name for file in folder.iterdir()}
        hits += hit
    assert hits >= 4, hits


@pytest.mark.slow
def test_certificates_and_attacks_of_two_processes_are_those_of_one(tmp_path):
    """Byte for byte; of the record of an attack all but its seconds."""
    train = ["train", "--dataset", "digits", "--method", "secure-sgd", "--epsilon", "8", "--out", "one"]
    sets = ["--set", "steps=5", "--set", "accountant=rdp", "--set", "noise_seed=1"]
    alone = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "RANK": "0"}
    commands = (
        ["certify", "--examples", "7", "--draws", "200", "--norm", "linf,l2"],
        ["attack", "--attack", "madry,fgsm", "--budget", "0.05,0.1", "--examples", "7", "--draws", "50", "--eot", "2"],
    )

    def by_itself(*words):
        command = [sys.executable, "-m", "securesgd", *words]
        result = subprocess.run(
            command, cwd=tmp_path, env=os.environ | alone, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr

    by_itself(*train, *sets)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name, *options in commands:
        by_itself(name, "one", *options)
        shared = torchrun(tmp_path, name, "two", *options)
        assert shared.returncode == 0, shared.stderr
    for file in ("certificates.csv", "attacks.csv"):
        one, two = ((tmp_path / run / file).read_bytes() for run in ("one", "two"))
        assert one == two, file
        assert len(list(csv.reader(one.decode().splitlines()))) > 7


WORKER = """
import torch
torch.set_num_threads(1)
import securesgd as ss
from tests.training.conftest import small_data, small_model

model = small_model()
settings = dict(noise_multiplier=1.0, delta=1e-5, batch_size=12, steps=6, accountant="rdp", noise_seed=1)
run = ss.train(model, small_data(), out="train", **settings)
again = ss.train(small_model(seed=4), small_data(), out="train", resume=True, **settings)
assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), again.model.parameters()))
own = small_model()
training = ss.PrivateTraining(own, torch.optim.SGD(own.parameters(), lr=0.1), small_data(), out="own", **settings)
for batch in training.batches():
    assert len(batch) < 12
    training.step(batch.replace(inputs=batch.inputs * 2))
training.finish()
print(*(p.sum().item() for p in [*model.parameters(), *own.parameters()]))
"""


def test_two_ranks_of_a_program_make_complete_runs(tmp_path, free_port):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER],
            cwd=tmp_path,
            env=environment | {"RANK": str(rank), "MASTER_PORT": str(free_port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (first, problems), (second, more) = (worker.communicate(timeout=200) for worker in workers)
    assert first == second != "", problems + more
    for name in ("train", "own"):
        assert {file.name for file in (tmp_path / name).iterdir()} == {
            "config.toml", "environment.json", "ledger.jsonl", "metrics.jsonl", "model.json", "model.safetensors",
            "MODEL_CARD.md",
        }  # fmt: skip
