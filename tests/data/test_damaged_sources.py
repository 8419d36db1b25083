"""Tables and images with changed bytes, schemas of nonsense and odd options: one line, and never a traceback."""

import random

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from securesgd.data.check import check_data
from securesgd.data.load import load_data
from securesgd.data.settings import DataSettings
from securesgd.errors import SecureSGDError
from tests.command_line import run_here

SCHEMA = (
    'target = "y"\nclasses = ["a", "b"]\n[columns.x]\nminimum = 0\nmaximum = 9\n[columns.c]\ncategories = ["p", "q"]\n'
)
ODD = (
    "",
    " ",
    "0",
    "nan",
    "9" * 5000,
    "[/red]",
    "é\n\x07",
    "\udcff",
    "/dev/null",
    "/nowhere/x",
    "a" * 5000,
    "x\0y",
    ".",
)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "t.csv").write_text("x,c,y\n" + '1.5,"p",a\n2,q,b\n' * 5)
    return tmp_path / "t.csv"


def damaged(content, rng):
    """Some bytes changed, a piece cut out, or the end lost."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] = rng.choice((0, 10, 13, 34, 44, 59, 255, rng.randrange(256)))
    if rng.random() < 0.3:
        start = rng.randrange(len(data))
        del data[start : start + rng.randrange(1, 30)]
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def refusal(function, *arguments, **options):
    """The message with which a call is refused, None if it is not."""
    try:
        function(*arguments, **options)
    except SecureSGDError as error:
        return str(error)
    return None


def refused_or_read(path, settings=None):
    """Whether the source is loaded; if not, it is refused in one line, and the check has found a problem, too."""
    message = refusal(load_data, path, settings=settings)
    if message is None:
        return True
    assert message.isprintable()
    checked = refusal(check_data, path, settings)
    if checked is None:
        found = check_data(path, settings).problems
        assert found or "cannot be split" in message or "has no training example" in message, message
    else:
        assert checked.isprintable()
    return False


def test_changed_bytes_of_a_table(table):
    whole, rng = table.read_bytes(), random.Random(0)
    results = []
    for _ in range(150):
        table.write_bytes(damaged(whole, rng))
        results.append(refused_or_read(table))
    assert set(results) == {True, False}


def test_changed_bytes_of_a_schema(table):
    rng = random.Random(1)
    for _ in range(150):
        (table.parent / "schema.toml").write_bytes(damaged(SCHEMA.encode(), rng))
        refused_or_read(table)


def test_changed_bytes_of_parquet(table):
    path, rng = table.with_suffix(".parquet"), random.Random(2)
    columns = {"x": [1.5, 2.0] * 20, "c": ["p", "q"] * 20, "y": ["a", "b"] * 20}
    parquet.write_table(arrow.table(columns), path)
    whole = path.read_bytes()
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        refused_or_read(path)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_changed_bytes_of_an_image(tmp_path, suffix):
    rng = random.Random(3)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.{suffix}")
    changed = tmp_path / "a" / f"0.{suffix}"
    whole = changed.read_bytes()
    results = []
    for _ in range(100):
        changed.write_bytes(damaged(whole, rng))
        results.append(refused_or_read(tmp_path))
        refused_or_read(tmp_path, DataSettings(skip_bad=True))
    assert False in results


@pytest.mark.parametrize("option", ["--target", "--schema", "--test", "--resize", "PATH"])
def test_odd_options_of_the_check(table, option):
    for word in ODD:
        for source in (table, table.parent):
            words = [word] if option == "PATH" else [source, option, word]
            result = run_here("data", "check", *words)
            assert result.returncode in (0, 1, 2), result.stderr
            assert result.stderr.count("\n") == (result.returncode == 2), (words, result.stderr)
            assert "Traceback" not in result.stderr
