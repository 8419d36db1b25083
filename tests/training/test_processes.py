"""Two processes train what one trains: same weights without noise, noise added once, one ledger, common errors."""

import json

import pytest
import torch

from securesgd.privacy import Ledger
from securesgd.runtime.tensors import load_tensors
from securesgd.training.loop import train
from tests.ranks import outputs_of_two

from .conftest import small_data, small_model, small_settings

WORKER = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from tests.training.conftest import small_data, small_model, small_settings
from securesgd.errors import SecureSGDError
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.loop import train

dist.init_process_group("gloo")
reduction = "mean" if dist.get_rank() else "none"
poison = {"loss": lambda o, t: torch.nn.functional.cross_entropy(o, t, reduction=reduction)}
for folder, changes, is_poisoned in json.loads(sys.argv[1]):
    model = small_model(seed=dist.get_rank())  # rank 1 starts elsewhere: the weights must come from rank 0
    model[2].p = 0.0
    stop = changes.pop("stop", None)
    options = {"on_step": lambda report: report.step < stop} if stop and dist.get_rank() == 0 else {}
    options |= poison if is_poisoned else {}
    signalled = changes.pop("signal", None)
    if signalled:
        passed = []

        def project(model):  # within a step; the signal reaches rank 1 alone
            passed.append(1)
            if len(passed) == signalled and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGINT)

        options["project"] = project
    try:
        train(model, small_data(), small_settings(**changes), folder, **options)
        print(json.dumps([p.detach().flatten().tolist() for p in model.parameters()]))
    except TrainingInterrupted as stop:
        print("interrupted:", stop.step)
    except SecureSGDError as error:
        print("refused:", error)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two processes print and write in several trainings, one after another: (outputs of both ranks, folder)."""
    place = tmp_path_factory.mktemp("two")
    (place / "occupied").mkdir()
    (place / "occupied" / "mine").write_text("x")
    trainings = {
        "noise 0.0": ({"noise_multiplier": 0.0}, False),
        "noise 1.0": ({"noise_multiplier": 1.0}, False),
        "occupied": ({}, False),
        "stopped": ({"stop": 7}, False),
        "interrupted": ({"signal": 7}, False),
        "poisoned": ({}, True),
    }
    jobs = [(str(place / name), *training) for name, training in trainings.items()]
    first, second = (output.splitlines() for output in outputs_of_two(WORKER, json.dumps(jobs)))
    return {name: (lines, place / name) for name, *lines in zip(trainings, first, second, strict=True)}


def vector(line):
    return torch.tensor([value for parameter in json.loads(line) for value in parameter])


def one_process(folder, changes, weights):
    model = small_model()
    model[2].p = 0.0
    train(model, small_data(), small_settings(**changes), folder)
    return weights(model)


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_two_ranks_train_what_one_process_trains(two_ranks, tmp_path, weights, noise_multiplier):
    """With noise on, agreement also shows that noise is added once: twice would differ by its size, 0.05 and more."""
    lines, folder = two_ranks[f"noise {noise_multiplier}"]
    first, second = (vector(line) for line in lines)
    alone = one_process(tmp_path / "one", {"noise_multiplier": noise_multiplier}, weights)
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=2e-5)
    saved = load_tensors(folder / "model.safetensors")
    assert torch.equal(torch.cat([saved.tensors[name].flatten() for name in small_model().state_dict()]), first)
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 20


def test_a_stop_by_the_first_rank_stops_both(two_ranks):
    """Only the first rank has a callback; the other must not wait for it or go on alone."""
    lines, folder = two_ranks["stopped"]
    first, second = (vector(line) for line in lines)
    assert torch.equal(first, second)
    saved = load_tensors(folder / "model.safetensors")
    assert saved.record["steps"] == 7
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 10


def test_a_signal_to_one_rank_stops_both_after_the_same_step(two_ranks):
    lines, folder = two_ranks["interrupted"]
    assert lines == ["interrupted: 7"] * 2
    assert load_tensors(folder / "checkpoint.safetensors").record["step"] == 7


def test_an_error_on_one_rank_stops_both(two_ranks):
    (first, second), _ = two_ranks["poisoned"]
    assert first == "refused: another process of this job stopped with an error; see its message"
    assert second.startswith("refused: loss returned shape []")


def test_an_error_of_the_first_rank_reaches_the_other(two_ranks):
    (first, second), _ = two_ranks["occupied"]
    assert first == second
    assert "is not empty" in first
