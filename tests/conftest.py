"""One hypothesis profile (no deadline: shared machines stall; the same examples on every CI run), and one tiny run."""

import gc
import os
import shutil
from pathlib import Path

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
    "reproduce/test_figures.py", "test_same_bytes.py", "test_examples.py", "clipping/test_clipping_rounding.py",
    "report/test_page.py", "training/test_kill.py", "training/test_loop.py", "training/test_processes.py",
    "privacy/test_accounting.py", "privacy/test_calibration.py", "attacks/test_evaluate.py", "attacks/test_craft.py",
    "certificates/test_run_certificates.py", "certificates/test_soundness.py", "test_pages.py", "test_cli.py",
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


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """A function that runs a command in two ranks, in the folder `launch.place`."""
    from tests.ranks import Launcher

    return Launcher(tmp_path_factory.mktemp("jobs"))
