"""What a new user gets wrong on the command line: one line that says so, exit code 2, and nothing written."""

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.command_line import run_here

ON_A_RUN = {
    "certify": (), "attack": (), "audit": (), "report": (), "statement": (), "check": (), "sign": ("--key", "a-file"),
    "predict": ("picture.png",), "serve": ("--port", "0"), "export": ("--onnx", "new.onnx"),
}  # fmt: skip
UNWRITABLE = "/proc/nowhere/out"  # no folder can be made there, by root neither
TRAIN = "train --dataset digits --method dpsgd"


@pytest.fixture
def place(tiny_run, tmp_path, monkeypatch):
    """A working folder with a run, a run whose training was stopped, a file, a picture that is none, and a folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "run")
    shutil.copytree(tiny_run, "stopped")
    Path("stopped/model.json").unlink()
    Path("a-file").write_text("mine\n")
    Path("picture.png").write_bytes(b"no picture")
    Path("folder").mkdir()
    Path("folder/mine.txt").write_text("mine\n")
    return tmp_path


def digests(place):
    return {path: path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() for path in place.rglob("*")}


def require_refusal(place, words, message):
    before = digests(place)
    result = run_here(*words)
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("securesgd: error: ")
    assert message in result.stderr
    assert digests(place) == before


@pytest.mark.parametrize("path", ["missing", "a-file", "folder", "a-file/inside"])
@pytest.mark.parametrize("command", ON_A_RUN)
def test_what_is_no_run_is_refused(command, path, place):
    require_refusal(place, [command, path, *ON_A_RUN[command]], path)


@pytest.mark.parametrize("command", ["certify", "attack", "audit", "sign", "predict", "serve", "export"])
def test_an_unfinished_run_is_refused(command, place):
    require_refusal(place, [command, "stopped", *ON_A_RUN[command]], "finished")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{TRAIN} --out {UNWRITABLE}", "cannot be written: /proc"),
        (f"{TRAIN} --out a-file/inside", "is no folder; give a path in a folder"),
        (f"{TRAIN} --out a-file", "a-file is not empty"),
        (f"{TRAIN} --out folder", "folder is not empty"),
        (f"{TRAIN} --out new --tensorboard {UNWRITABLE}", "cannot be written: /proc"),
        (f"tune --dataset digits --method dpsgd --try steps=1,2 --out {UNWRITABLE}", "cannot be written: /proc"),
        ("train --out stopped --resume --finish", "--resume and --finish are both given; valid: one of them"),
        (f"demo --out {UNWRITABLE}", "cannot be written: /proc"),
        ("demo --out folder", "folder is not empty, and not of a demo"),
        ("demo --out run", "run is not empty, and not of a demo"),
        (f"reproduce fig1 --out {UNWRITABLE}", "cannot be written: /proc"),
        (f"reproduce fig1 --work {UNWRITABLE}", "cannot be written: /proc"),
        ("reproduce fig1 --out a-file", "a-file is no folder"),
        (f"export run --onnx {UNWRITABLE}", "cannot be written: /proc"),
        ("export run --onnx a-file/inside", "a-file is no folder"),
        ("report run --out a-file", "a-file exists and is not a report"),
        ("certify run --network mine.py:network", "the built-in network digits-cnn; leave it out"),
        ("check run --network mine.py:network", "the built-in network digits-cnn; leave it out"),
        ("check run --dataset missing", "missing"),
        ("attack run --target 77", "target class 77 does not exist; valid: 0 to 9"),
        ("certify run --draws -1", "draws is -1; valid: an integer"),
        ("certify run --radius -1", "radius is -1.0; valid: finite and >= 0"),
        ("attack run --budget -1", "budget must be finite and > 0, got -1"),
        ("audit run --canaries -1", "is -1; valid"),
        ("plan --examples -5", "--examples is -5; valid: a number from 2 on"),
        ("plan --examples 100 --classes -1 --no-time", "classes is -1: it must be at least 2"),
        ("serve run --port 99999", "port is 99999; valid"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_nothing_is_written(words, message, place):
    require_refusal(place, words.split(), message)


@pytest.mark.parametrize("command", ["certify", "attack", "audit"])
def test_a_run_folder_that_cannot_be_written_to_is_noticed_first(command, place, monkeypatch):
    """Root may write everywhere, so the disk is said to be read-only."""

    def read_only(folder, mode):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("securesgd.runtime.storage.create_draft", read_only)
    (place / "run" / "certificates.csv").unlink()
    require_refusal(place, [command, "run"], f"cannot be written: {place / 'run'}: Read-only file system")
