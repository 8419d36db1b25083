"""Files, data and options that are not what they should be: one line that names what is wrong, nothing written."""

import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from securesgd.config import run_config
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import parse_json, read_bytes, read_json, read_toml, write_json
from tests.command_line import run_here
from tests.refusals import ATTACK, CERTIFY, QUICK, refused, time_limit

DEEP = "[" * 100_000


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
