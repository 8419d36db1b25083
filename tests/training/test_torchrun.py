"""`securesgd train` under the real torchrun: one folder, written by the first rank; a killed rank costs nothing."""

import os
import subprocess
import sys
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

rank, step = (int(number) for number in os.environ.get("KILLED", "-1 0").split())
real = TrainingState.count_step

def count_step(self):
    real(self)
    if int(os.environ["RANK"]) == rank and self.step == step:
        os.kill(os.getpid(), signal.SIGKILL)

TrainingState.count_step = count_step
main()
"""
SETTINGS = ["accountant=rdp", "steps=12", "noise_seed=1", "batch_size=64", "block_steps=5", "checkpoint_steps=4"]


def torchrun(place, *arguments, **environment):
    (place / "program.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "program.py", *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


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
        own = [line for line in killed.stderr.splitlines() if line.startswith("securesgd: ")]
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
