"""Files from outside and a disk that is full: every failure is one line that names the file, and nothing is lost."""

import errno
import io
import json
import os
import resource
import shutil
import signal
import struct
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from securesgd.config import RunConfig, run_config
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.run_training import train_run
from securesgd.runtime.storage import parse_json, read_bytes, read_json, read_toml, write_json, write_whole
from tests.command_line import run_here

CERTIFY = ("--draws", "40", "--selection-draws", "10", "--examples", "6")
ATTACK = ("--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--eot", "2", "--draws", "20", "--certify-draws",
          "20", "--no-probes")  # fmt: skip
QUICK = [word for setting in ("steps=1", "batch_size=16", "copies=1", "accountant=rdp") for word in ("--set", setting)]
DEEP = "[" * 100_000


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()}


@contextmanager
def time_limit(seconds):
    """Fail, rather than wait for ever."""

    def stop(*_):
        raise AssertionError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(*command, naming, inside=None):
    """One line on standard error that names the thing, exit code 2, nothing on standard output, nothing changed."""
    before = content(inside) if inside else None
    with time_limit(20):
        result = run_here(*command)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert naming in result.stderr
    assert result.stdout == ""
    if inside:
        assert content(inside) == before
    return result.stderr


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
    [(0, "config.toml"), (100, "config.toml"), (620, "checkpoint.safetensors"), (20_000, "checkpoint")],
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


@pytest.mark.parametrize(
    "text",
    [DEEP, '{"a": Infinity}', '{"a": NaN}', '{"a": -1e999}', '{"a": ' + "9" * 5000 + "}", '{"a": 1, "a": 2}', '{"a":' * 33 + "1" + "}" * 33,
     '{"a": 9223372036854775808}', "[]", "", "\x00", '{"a": 1} x'],
)  # fmt: skip
def test_json_that_is_refused(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedFileError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    "text", ["a = " + DEEP, "a = inf", "a = nan", "a = " + "9" * 5000, "a = 1e999", "a =", "\x00", "a" * 70_000]
)
def test_toml_that_is_refused(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(DamagedFileError, match=r"a\.toml"):
        read_toml(tmp_path / "a.toml")
    refused("train", "--config", tmp_path / "a.toml", "--out", tmp_path / "run", naming="a.toml", inside=tmp_path)


def test_what_is_written_can_be_read(tmp_path):
    record = {"a": [1.5, 2**63 - 1, -(2**63), "é\ud800\x00", None, True], "b": {"c": 1e308}}
    write_json(tmp_path / "a.json", record)
    assert read_json(tmp_path / "a.json") == record
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b.json", {"a": float("nan")})
    assert not (tmp_path / "b.json").exists()
    assert parse_json("[1, 2]") == [1, 2]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
def test_only_regular_files_of_a_sane_size_are_read(kind, tmp_path):
    path = tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with time_limit(10), pytest.raises(DamagedFileError):
        read_bytes(path)


def test_a_cell_beyond_the_limit_of_csv(copied_run):
    for name, command in (
        ("certificates.csv", ("certify", copied_run, *CERTIFY)),
        ("attacks.csv", ("attack", copied_run, *ATTACK)),
    ):
        with (copied_run / name).open("a") as file:
            file.write("x" * 140_000 + "\n")
        refused(*command, naming=name, inside=copied_run)
    result = run_here("report", copied_run)
    assert result.returncode == 1  # the page is written, and says what it does not believe
    assert "certificates.csv cannot be read" in result.stderr


@pytest.mark.parametrize("text", ["1e999", DEEP])
def test_json_records_of_a_run(text, copied_run):
    for name, command in (
        ("certificates.json", ("certify", copied_run, *CERTIFY)), ("attacks.json", ("attack", copied_run, *ATTACK)),
        ("sensitivity.json", ("certify", copied_run, *CERTIFY)), ("model.json", ("certify", copied_run, *CERTIFY)),
        ("metrics.jsonl", ("train", "--resume", "--out", copied_run)),
    ):  # fmt: skip
        before = (copied_run / name).read_bytes()
        (copied_run / name).write_text('{"weights": %s}\n' % text)  # noqa: UP031
        refused(*command, naming=name, inside=copied_run)
        (copied_run / name).write_bytes(before)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda cells: cells["attack"].update(budget=0.06), "settings"),
     (lambda cells: cells["attack"].update(attack="[/red]"), "settings"), (lambda cells: cells.update(attacked="x"), "attacked is x"),
     (lambda cells: cells.update(probes=[{"name": 1, "attack": "a", "words": "w"}]), "suspicion")],
)  # fmt: skip
def test_an_edited_cell_is_refused(change, reason, copied_run):
    record = json.loads((copied_run / "attacks.json").read_text())
    change(next(iter(record["cells"].values())))
    (copied_run / "attacks.json").write_text(json.dumps(record))
    assert reason in refused("attack", copied_run, *ATTACK, naming="attacks.json", inside=copied_run)


@pytest.mark.parametrize("cell", ["inf", "nan", "", "x", "1e999", "\x00"])
def test_a_cell_that_is_no_number(cell, copied_run):
    for name, column, command in (
        ("certificates.csv", "radius_tight", ("certify", *CERTIFY)),
        ("attacks.csv", "label_votes", ("attack", *ATTACK)),
    ):
        header, first, *rest = (copied_run / name).read_text().splitlines()
        cells = first.split(",")
        cells[header.split(",").index(column)] = cell
        (copied_run / name).write_text("\n".join([header, ",".join(cells), *rest, ""]))
        refused(command[0], copied_run, *command[1:], naming=f"{name}, row 1: {column} is ", inside=copied_run)


@pytest.mark.parametrize("name", ["certificates.csv", "attacks.csv"])
def test_a_row_twice_is_refused(name, copied_run):
    lines = (copied_run / name).read_text().splitlines()
    (copied_run / name).write_text("\n".join([*lines, lines[-1], ""]))
    command = ("certify", copied_run, *CERTIFY) if name.startswith("c") else ("attack", copied_run, *ATTACK)
    refused(*command, naming=name, inside=copied_run)


def test_a_model_record_that_claims_a_giant(copied_run):
    record = json.loads((copied_run / "model.json").read_text())
    for change in (
        {"classes": 10**9},
        {"input_shape": [1, 10**5, 10**5]},
        {"input_shape": [10**18]},
        {"classes": -1},
        {"input_shape": [0]},
    ):
        (copied_run / "model.json").write_text(json.dumps(record | change))
        refused("certify", copied_run, *CERTIFY, naming="model.json", inside=copied_run)


# Data


def train_on(path, folder):
    return "train", "--dataset", path, "--method", "sgd", "--out", folder, *QUICK


@pytest.mark.parametrize("shape", [(10**9, 1, 80, 80), (10**4, 1, 8, 8)], ids=["beyond memory", "within it"])
def test_an_npz_whose_header_lies(npz, tmp_path, shape):
    path = npz("a.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, header.getvalue() + b"\0" * 100 if name == "x_train.npy" else data)
    refused(*train_on(path, tmp_path / "run"), naming="its header says", inside=tmp_path)


def test_an_npz_that_unpacks_to_far_more(npz, tmp_path):
    path = npz("a.npz")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("classes.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (100 << 20,)})
        for _ in range(100):
            member.write(bytes(1 << 20))
    refused(*train_on(path, tmp_path / "run"), naming="would unpack to", inside=tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": np.array(10**15)},
        {"y_train": np.full(40, 2**62)},
        {"classes": np.array(-1)},
        {"y_train": np.full(40, -1)},
    ],
)
def test_an_npz_with_absurd_classes(changes, npz, tmp_path):
    refused(*train_on(npz("a.npz", **changes), tmp_path / "run"), naming="a.npz", inside=tmp_path)


def png(width, height):
    """A PNG of one colour that is small whatever its size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, lines = zlib.compressobj(1), []
    row = bytes(1 + width // 8 + 1)
    lines = [packer.compress(row) for _ in range(height)]
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", b"".join(lines) + packer.flush())
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [13_000, 30_000])
def test_a_picture_that_claims_a_giant(side, tmp_path):
    for split in ("train", "test"):
        for name in "ab":
            path = tmp_path / "data" / split / name / "1.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(png(side, 3 if side > 20_000 else side))
            if side > 20_000:  # a header that promises more than the file holds
                whole = bytearray(path.read_bytes())
                whole[16:29] = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
                whole[29:33] = struct.pack(">I", zlib.crc32(whole[12:29]))
                path.write_bytes(whole)
    refused(*train_on(tmp_path / "data", tmp_path / "run"), naming="1.png", inside=tmp_path)


def test_pipes_and_devices_as_data(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    refused(*train_on(tmp_path / "a.npz", tmp_path / "run"), naming="not a regular file")
    (tmp_path / "b.npz").symlink_to("/dev/zero")
    refused(*train_on(tmp_path / "b.npz", tmp_path / "run"), naming="not a regular file")
    for split in ("train", "test"):
        for name in "ab":
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            Image.new("L", (8, 8)).save(folder / "1.png")
    os.mkfifo(tmp_path / "data" / "train" / "b" / "2.png")
    refused(*train_on(tmp_path / "data", tmp_path / "run"), naming="2.png is not a regular file")
    assert not (tmp_path / "run").exists()


# Options


@pytest.mark.parametrize(
    "setting", [f"epsilon={'9' * 5000}", f"epsilon={DEEP}", "epsilon=1e999", "epsilon=Infinity", "epsilon=NaN", f"steps={'9' * 18}", "steps=1e15", f"steps={10**8}",
                f"copies={10**9}", "batch_size=-1", f"seed={2**64}", f"noise_seed={'9' * 5000}", "network={}", "holdout=[1]", "robustness=3", "training=[]"],
)  # fmt: skip
def test_settings_that_are_refused(setting, tmp_path):
    name = setting.partition("=")[0]
    command = ("train", "--dataset", "digits", "--method", "secure-sgd", "--out", tmp_path / "run", "--set", setting)
    refused(*command, naming=name, inside=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "option"),
    [("attack", option) for option in ("restarts", "steps", "eot", "draws", "certify-draws")]
    + [("certify", option) for option in ("draws", "selection-draws")],
)
@pytest.mark.parametrize("value", [10**8, 10**30])
def test_no_count_is_without_limit(command, option, value, tiny_run):
    name = option.replace("-", "_")
    stderr = refused(command, tiny_run, f"--{option}", str(value), naming=name, inside=tiny_run)
    assert "valid: " in stderr or "range" in stderr


@pytest.mark.parametrize("command", ["attack", "certify"])
def test_seeds_are_of_64_bits(command, tiny_run):
    refused(command, tiny_run, "--seed", str(10**30), naming="seed", inside=tiny_run)


def test_a_thousand_numbers_are_enough(tiny_run):
    many = ",".join(["0.1"] * 1001)
    refused("attack", tiny_run, "--budget", many, naming="at most 1,000", inside=tiny_run)
    refused("noise", "--epsilon", many, naming="at most 1,000")


@pytest.mark.parametrize(
    "text", ['method = ["sgd"]\ndataset = "digits"', 'method = "sgd"\ndataset = [1]', 'method = "sgd"\ndataset = "digits"\ntraining = 3',
             'method = "sgd"\ndataset = "digits"\nrobustness = 3', 'method = "sgd"\ndataset = "a\\u0000b.npz"', 'method = 2024-01-01\ndataset = "digits"',
             'method = "secure-sgd"\ndataset = "digits"\n[robustness]\nnorm = ["linf"]', 'method = "sgd"\ndataset = "digits"\n[training]\nsteps = [1]'],
)  # fmt: skip
def test_configurations_of_wrong_types(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    refused(
        "train",
        "--config",
        tmp_path / "a.toml",
        "--out",
        tmp_path / "run",
        naming="securesgd: error: ",
        inside=tmp_path,
    )
    assert not (tmp_path / "run").exists()


def test_a_path_that_is_too_long(tmp_path):
    long = tmp_path / "/".join(["a" * 200] * 25)
    for command in (
        ("report", long), ("certify", long), ("attack", long), ("train", "--resume", "--out", long),
        ("train", "--dataset", "digits", "--method", "sgd", "--out", long), train_on(f"{long}.npz", tmp_path / "run"),
        ("train", "--config", long, "--out", tmp_path / "run"), ("reproduce", "fig1", "--out", long), ("data", "fetch", "mnist", "--folder", long),
    ):  # fmt: skip
        refused(*command, naming="aaaa", inside=tmp_path)
    with pytest.raises((InvalidInputError, OSError)):
        run_config("digits", "sgd", Path("a" * 5000))
