"""Files from outside and a disk that is full: every failure is one line that names the file, and nothing is lost."""

import errno
import os
import resource
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from securesgd.config import RunConfig, run_config
from securesgd.run_training import train_run
from securesgd.runtime.storage import read_toml, write_whole
from tests.command_line import run_here
from tests.refusals import ATTACK, CERTIFY, QUICK, content, refused

# Links


@pytest.fixture
def precious(tmp_path):
    """A file of somebody else, with links to it at every name that a predictable writer would use."""
    target = tmp_path / "precious"
    target.write_text("mine")
    return target


def test_no_link_in_a_run_folder_is_written_through(copied_run, precious):
    for path in list(copied_run.iterdir()):
        for name in (f"{path.name}.partial", f".{path.name}.partial", f".{path.name}.{os.getpid()}.new"):
            (copied_run / name).symlink_to(precious)
    for name in ("certificates.png", "attacks.png"):
        (copied_run / name).unlink(missing_ok=True)
        (copied_run / name).symlink_to(precious)
    for command in (
        ("certify", copied_run, *CERTIFY, "--again", "--falsify"),
        ("attack", copied_run, *ATTACK, "--again"),
        ("report", copied_run),
    ):
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
        assert precious.read_text() == "mine", command
    assert (copied_run / "certificates.png").read_bytes()[:4] == b"\x89PNG"
    assert not (copied_run / "certificates.png").is_symlink()


def test_no_link_is_written_through_by_a_training(tmp_path, precious):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.toml", "secret.json", "checkpoint.safetensors", "model.safetensors"):
        shadow = tmp_path / "shadow" / name
        shadow.parent.mkdir(exist_ok=True)
        shadow.symlink_to(precious)
    write_whole(tmp_path / "shadow" / "config.toml", b"x")
    assert precious.read_text() == "mine"
    assert (tmp_path / "shadow" / "config.toml").read_bytes() == b"x"
    (folder / "report.html").symlink_to(precious)
    (folder / "secret.json").write_text("somebody's")
    refused("train", "--dataset", "digits", "--method", "sgd", "--out", folder, naming="is not empty", inside=tmp_path)


def test_a_guessed_name_is_not_written_through(tmp_path, precious, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)
    (tmp_path / f".securesgd-{'0' * 16}.partial").symlink_to(precious)
    with pytest.raises(OSError, match="File exists"):
        write_whole(tmp_path / "a", b"x")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "a").exists()


def test_a_ledger_is_not_appended_to_through_a_link(copied_run, tmp_path):
    (copied_run / "ledger.jsonl").rename(tmp_path / "elsewhere")
    (copied_run / "ledger.jsonl").symlink_to(tmp_path / "elsewhere")
    (copied_run / "model.json").unlink()  # not finished: training opens the ledger for writing
    refused("train", "--resume", "--out", copied_run, naming="ledger.jsonl cannot be opened: it is a symbolic link")


def test_a_run_folder_may_be_a_link(copied_run, tmp_path):
    (tmp_path / "link").symlink_to(copied_run, target_is_directory=True)
    result = run_here("report", tmp_path / "link")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_failed_write_leaves_nothing_and_an_abandoned_one_goes(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match=r"No space left on device: .*a'"):
            write_whole(path, b"new")
    assert content(tmp_path) == {path: b"old"}
    abandoned, busy = (tmp_path / f".securesgd-{digit * 16}.partial" for digit in "01")
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    busy.write_bytes(b"somebody is writing this")
    write_whole(path, b"new")
    assert sorted(content(tmp_path)) == sorted([path, busy])


# A path is any bytes


def test_every_configuration_can_be_read_back(tmp_path):
    for name in ("a\nb", "a\x07b", "a\x7fb", 'a"b\\c', "a'''b\"\"\"", "\u2028", "$x_{", "a\tb\r", "é"):
        config = run_config(f"/data/{name}.npz", "secure-sgd")
        (tmp_path / "config.toml").write_bytes(config.to_toml().encode())
        assert RunConfig.from_dict(read_toml(tmp_path / "config.toml")) == config


def test_a_run_on_an_oddly_named_file_can_be_used(npz, tmp_path):
    path, folder = npz("a\nb\x07\x7f$x_{$/[/red]d.npz"), tmp_path / "out$_{$[/red]\n\x07"
    result = run_here("train", "--dataset", path, "--method", "secure-sgd", "--out", folder, *QUICK)
    assert result.returncode == 0, result.stderr
    for command in (
        ("certify", folder, *CERTIFY), ("report", folder, tmp_path / "b"),
        ("train", "--resume", "--out", folder),
    ):  # fmt: skip
        if command[-1] == tmp_path / "b":
            shutil.copytree(folder, tmp_path / "b")
        result = run_here(*command)
        assert result.returncode == 0, result.stderr


def test_names_with_markup_are_shown_as_they_are(copied_run, tmp_path):
    folder = tmp_path / "a[" / "red]b"
    shutil.copytree(copied_run, folder)
    for name in ("attacks.json", "attacks.csv"):
        (folder / name).unlink()
    result = run_here("report", folder)
    assert result.returncode == 0, result.stderr
    other = tmp_path / "b[/red]"
    shutil.copytree(folder, other)
    result = run_here("report", folder, other)
    assert result.returncode == 0, result.stderr
    assert "b[/red]" in result.stderr


def test_a_path_that_is_no_text(copied_run, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    shutil.copytree(copied_run, odd)
    result = run_here("report", odd)
    assert result.returncode == 0, result.stderr
    assert "\\udcff" in result.stdout
    assert run_here("report", odd, copied_run).returncode == 0
    for command in (("certify", odd, *CERTIFY), ("attack", odd, *ATTACK)):  # a library below takes no such path
        refused(*command, naming="not valid UTF-8", inside=odd)
    refused("train", "--dataset", "digits", "--method", "sgd", "--out", f"{odd}2", naming="choose another folder")
    train = ("train", "--method", "sgd", "--out", tmp_path / "new", *QUICK, "--dataset")
    refused(*train, f"{odd}.npz", naming="valid: a text of Unicode characters")
    assert not (tmp_path / "new").exists()


# A full disk


@contextmanager
def file_size_limit(size):
    """Within the context no file can grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize(
    ("size", "name"),
    [(0, "config.toml"), (100, "config.toml"), (760, "checkpoint.safetensors"), (20_000, "checkpoint")],
)
def test_a_start_without_room_can_be_made_again(size, name, tmp_path):
    folder = tmp_path / "new" / "run"
    command = ("train", "--dataset", "digits", "--method", "secure-sgd", "--out", folder, *QUICK)
    with file_size_limit(size):
        refused(*command, naming=str(folder / name))
    assert list(tmp_path.iterdir()) == []
    if size == 0:
        assert run_here(*command).returncode == 0


def test_every_write_of_a_training_may_fail(tmp_path, monkeypatch):
    """Whatever write fails, the same command or --resume goes on once there is room."""
    real, folder = os.write, tmp_path / "run"
    start = ("train", "--dataset", "digits", "--method", "secure-sgd", "--out", folder, *QUICK)
    writes, names = 1, set()
    while True:
        calls = []

        def write(descriptor, data, calls=calls, failing=writes):
            calls.append(len(data))
            if len(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, data)

        command = ("train", "--resume", "--out", folder) if folder.exists() else start
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            result = run_here(*command)
        if result.returncode == 0:
            break
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert "No space left on device" in result.stderr
        names |= {name for name in ("config", "secret", "ledger", "checkpoint", "model") if f"{name}." in result.stderr}
        writes = 1 if folder.exists() and not names >= {"model"} and writes > 5 else writes + 1
        assert writes < 30
    assert {"config", "secret", "ledger", "checkpoint"} <= names
    assert run_here("report", folder).returncode == 0


def test_a_ledger_that_counts_stays_after_a_release(tmp_path):
    """Disk full at a later checkpoint: what was released is in the ledger, and the run can be resumed."""
    folder = tmp_path / "run"

    def fail(report):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "checkpoint.safetensors"))

    config = run_config("digits", "secure-sgd", steps=2, batch_size=16, copies=1, accountant="rdp", noise_seed=1)
    with pytest.raises(OSError, match="No space left"):
        train_run(config, folder, on_step=fail)
    assert (folder / "ledger.jsonl").read_bytes().count(b"\n") == 2
    assert run_here("train", "--resume", "--out", folder).returncode == 0


@pytest.mark.parametrize("command", [("certify", "--again", *CERTIFY), ("attack", "--again", *ATTACK), ("report",)])
def test_results_without_room_leave_the_old_ones(command, copied_run):
    with file_size_limit(300):
        refused(command[0], copied_run, *command[1:], naming=f"{copied_run}/", inside=copied_run)


# Formats


# Data


# Options
