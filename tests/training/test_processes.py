"""Two processes train what one trains: same weights without noise, noise added once, one ledger, common errors."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from securesgd.privacy import Ledger
from securesgd.runtime.tensors import load_tensors
from securesgd.training.loop import train

from .conftest import small_data, small_model, small_settings

WORKER = """
import json, os, sys
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from tests.training.conftest import small_data, small_model, small_settings
from securesgd.errors import SecureSGDError
from securesgd.training.loop import train

torch.set_num_threads(1)
dist.init_process_group("gloo")
folder, changes, poison, resume = sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] == "poison", sys.argv[5] == "resume"
model = small_model(seed=dist.get_rank())  # rank 1 starts elsewhere: the weights must come from rank 0
model[2].p = 0.0
inputs, targets = small_data()
reduction = "mean" if dist.get_rank() else "none"
stop = changes.pop("stop", None)
options = {"on_step": lambda report: report.step < stop} if stop and dist.get_rank() == 0 else {}
losses = {"loss": lambda o, t: torch.nn.functional.cross_entropy(o, t, reduction=reduction)} if poison else {}
try:
    train(model, (inputs, targets), small_settings(**changes), folder, **losses, **options, resume=resume)
    print(json.dumps([p.detach().flatten().tolist() for p in model.parameters()]))
except SecureSGDError as error:
    print("refused:", error)
dist.destroy_process_group()
"""


def two_ranks(folder, changes, poison=False, resume=False):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).parents[2])
    arguments = [root, str(folder), json.dumps(changes), "poison" if poison else "", "resume" if resume else ""]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [worker.communicate(timeout=120)[0].strip() for worker in workers]


def vector(line):
    return torch.tensor([value for parameter in json.loads(line) for value in parameter])


def one_process(folder, changes, weights):
    model = small_model()
    model[2].p = 0.0
    train(model, small_data(), small_settings(**changes), folder)
    return weights(model)


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_two_ranks_train_what_one_process_trains(tmp_path, weights, noise_multiplier):
    """With noise on, agreement also shows that noise is added once: twice would differ by its size, 0.05 and more."""
    changes = {"noise_multiplier": noise_multiplier}
    first, second = (vector(line) for line in two_ranks(tmp_path / "two", changes))
    alone = one_process(tmp_path / "one", changes, weights)
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=2e-5)
    saved = load_tensors(tmp_path / "two" / "model.safetensors")
    assert torch.equal(torch.cat([saved.tensors[name].flatten() for name in small_model().state_dict()]), first)
    with Ledger.open(tmp_path / "two" / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 20


def test_a_stop_by_the_first_rank_stops_both(tmp_path):
    """Only the first rank has a callback; the other must not wait for it or go on alone."""
    first, second = (vector(line) for line in two_ranks(tmp_path / "run", {"stop": 7}))
    assert torch.equal(first, second)
    saved = load_tensors(tmp_path / "run" / "model.safetensors")
    assert saved.record["steps"] == 7
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 10


def test_an_error_on_one_rank_stops_both(tmp_path):
    first, second = two_ranks(tmp_path / "run", {}, poison=True)
    assert first == "refused: another process of this training stopped with an error; see its message"
    assert second.startswith("refused: loss returned shape []")


def test_an_error_of_the_first_rank_reaches_the_other(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("x")
    first, second = two_ranks(tmp_path / "run", {})
    assert first == second
    assert "is not empty" in first
