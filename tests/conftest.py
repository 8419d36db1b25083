"""One hypothesis profile (no deadline: shared machines stall; the same examples on every CI run), and one tiny run."""

import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("securesgd", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("securesgd")


# What is loaded and collected stays to the end: thousands of tests that a collector of garbage need not look through.
gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


# Files are shared out to processes one by one (`--dist loadfile`): the longest go first, so that none is left alone.
LONGEST_FILES = (
    "test_pages.py", "test_examples.py", "test_same_bytes.py", "training/test_torchrun.py", "training/test_own_loop.py",
    "test_cli.py", "test_run.py", "reproduce/test_figures.py", "attacks/test_evaluate.py", "attacks/test_craft.py",
    "training/test_loop.py", "test_shared_work.py", "check/test_damage.py", "clipping/test_clipping_rounding.py",
    "test_own_data.py", "test_falsify.py", "test_planning.py", "test_one_answer.py", "test_predict.py",
    "test_export.py", "reproduce/test_attacks_table.py", "training/test_stop_command.py", "training/test_kill.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    rank = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A run of two steps with every file a run folder can have; not to be written to (`copied_run` is a copy)."""
    from tests.command_line import run_here

    folder = tmp_path_factory.mktemp("tiny") / "run"
    settings = ("steps=2", "batch_size=32", "copies=1", "accountant=rdp", "noise_seed=3")
    options = [word for setting in settings for word in ("--set", setting)]
    for command in (
        ("train", "--dataset", "digits", "--method", "secure-sgd", "--out", folder, *options),
        ("certify", folder, "--draws", "40", "--selection-draws", "10", "--examples", "6", "--falsify"),
        ("attack", folder, "--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--eot", "2", "--draws", "20",
         "--certify-draws", "20", "--no-probes"),
        ("report", folder),
    ):  # fmt: skip
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def copied_run(tiny_run, tmp_path):
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.fixture
def npz(tmp_path):
    """Returns a function that writes a small data set to a path."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.random((40, 1, 8, 8), np.float32) for split in ("train", "test")}
    arrays |= {f"y_{split}": np.arange(40) % 2 for split in ("train", "test")}

    def write(name, **changes):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays | changes)
        return path

    return write


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """A function that runs a command in two ranks, in the folder `launch.place`."""
    from tests.ranks import Launcher

    return Launcher(tmp_path_factory.mktemp("jobs"))
