"""A data set from outside the package: one row of the catalog, or an import path."""

import json

import pytest
import torch

from securesgd.data.catalog import CATALOG, DataSet
from securesgd.data.fetch import fetch
from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError
from tests.command_line import run_here
from tests.data import outside

OUTSIDE = "tests.data.outside"
ROW = DataSet(
    name="dark-or-bright", class_names=("dark", "bright"), input_shape=(1, 8, 8), train_size=40, test_size=20,
    function=f"{OUTSIDE}:arrays",
)  # fmt: skip


@pytest.fixture
def added(monkeypatch):
    """The one place where a data set is added."""
    monkeypatch.setitem(CATALOG, "dark-or-bright", ROW)


@pytest.mark.parametrize("function", ["arrays", "datasets", "loaded"])
def test_a_function_by_import_path_is_a_data_set(function):
    data = load_data(f"{OUTSIDE}:{function}")
    assert data.name == f"{OUTSIDE}:{function}"
    assert data.input_shape == (1, 8, 8)
    assert data.class_names == (("dark", "bright") if function == "loaded" else ("0", "1"))
    assert data.source["sizes"] == {"train": 40, "holdout": 0, "test": 20}
    assert torch.equal(data.train_inputs[:, 0], torch.from_numpy(outside.arrays()[0]))
    apart = load_data(f"{OUTSIDE}:{function}", holdout=10, seed=3)
    assert len(apart.train_targets) == 30
    assert len(apart.holdout_targets) == 10


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("inputs_only", "its function returned a ndarray; valid: x_train, y_train, x_test, y_test, or two torch"),
        ("wrong_values", r"x_train holds values in \[1.*valid: uint8 in 0..255 or float in \[0, 1\]"),
        ("fails", "its function failed"),
        ("with_holdout", "comes with a holdout; valid: all training examples"),
        ("nothing", "has no function nothing"),
    ],
)
def test_what_is_no_data_set_is_one_line(function, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_data(f"{OUTSIDE}:{function}")
    assert "\n" not in str(caught.value)


def test_one_row_adds_a_data_set(added):
    data = load_data("dark-or-bright")
    assert data.class_names == ("dark", "bright")
    assert data.source["name"] == "dark-or-bright"
    rows = {row["name"]: row for row in json.loads(run_here("data", "list", "--json").stdout)}
    assert rows["dark-or-bright"]["train"] == 40
    assert CATALOG["dark-or-bright"].function_name == f"{OUTSIDE}:arrays"
    assert "madeby" in "".join(run_here("data", "list").stdout.split())
    with pytest.raises(InvalidInputError, match="dark-or-bright"):
        load_data("dark-or-brigt")
    with pytest.raises(
        InvalidInputError, match=f"dark-or-bright is made by {OUTSIDE}:arrays, there is nothing to fetch"
    ):
        fetch("dark-or-bright")


def test_a_row_that_states_other_sizes_is_refused(monkeypatch):
    wrong = DataSet(
        name="wrong", class_names=("a", "b"), input_shape=(1, 8, 8), train_size=41, test_size=20,
        function=outside.arrays,
    )  # fmt: skip
    monkeypatch.setitem(CATALOG, "wrong", wrong)
    with pytest.raises(InvalidInputError, match="its row in the catalog states"):
        load_data("wrong")
    with pytest.raises(InvalidInputError, match="valid: a layout with its files, or a function"):
        DataSet(name="neither", class_names=("a", "b"), input_shape=(4,), train_size=1, test_size=1)


@pytest.mark.parametrize("name", [f"{OUTSIDE}:arrays", "dark-or-bright"])
def test_training_on_a_data_set_from_outside(name, added, tmp_path):
    out = tmp_path / "run"
    settings = ("steps=3", "batch_size=8", "seed=1")
    options = [word for setting in settings for word in ("--set", setting)]
    result = run_here("train", "--dataset", name, "--method", "dpsgd", "--epsilon", "8", *options, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "on 20 test examples" in result.stdout
    assert name in (out / "config.toml").read_text()
    page = run_here("report", out)
    assert page.returncode == 0, page.stderr
    assert name in (out / "report.html").read_text()
