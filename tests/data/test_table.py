"""Tables of the user's own: CSV and Parquet with a schema, read the same way again, and refused in one line."""

import csv
import json
import sys
import time

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from securesgd.data.check import check_data
from securesgd.data.load import load_data
from securesgd.data.settings import DataSettings
from securesgd.data.table_files import read_cells
from securesgd.errors import InvalidInputError, SecureSGDError
from tests.command_line import run_here

SCHEMA = """
target = "y"
classes = ["no", "yes"]
[columns.age]
minimum = 0
maximum = 100
[columns.sex]
categories = ["f", "m"]
[columns.id]
ignore = true
"""


def write(path, rows=40, header="id,age,sex,y", start=0):
    lines = [f"{i},{i % 100},{'fm'[i % 2]},{('no', 'yes')[i // 2 % 2]}" for i in range(start, start + rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def table(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return write(tmp_path / "people.csv")


def ages(inputs):
    return sorted((inputs[:, 0] * 100).round().int().tolist())


def test_a_table_is_shuffled_and_split(table):
    data = load_data(table, settings=DataSettings(target="y", test_share=0.25), seed=3)
    assert data.class_names == ("no", "yes")
    assert data.input_shape == (3,)
    assert data.source["sizes"] == {"train": 30, "holdout": 0, "test": 10}
    assert data.source["split"] == "a random 0.25 of the rows set apart for testing with the run's seed"
    assert ages(torch.cat([data.train_inputs, data.test_inputs])) == list(range(40))
    train_ages = (data.train_inputs[:, 0] * 100).round().int().tolist()
    assert train_ages != sorted(train_ages)
    for inputs, label in zip(data.train_inputs, data.train_targets.tolist(), strict=True):
        age = round(inputs[0].item() * 100)
        assert inputs[1:].tolist() == [1 - age % 2, age % 2]
        assert label == age // 2 % 2
    other = load_data(table, settings=DataSettings(test_share=0.25), seed=4)
    assert ages(other.test_inputs) != ages(data.test_inputs)


def test_test_rows_may_be_in_a_file_of_their_own(table):
    more = write(table.with_name("more.csv"), rows=7, start=60)
    data = load_data(table, settings=DataSettings(test=str(more)))
    assert data.source["sizes"] == {"train": 40, "holdout": 0, "test": 7}
    assert ages(data.test_inputs) == list(range(60, 67))
    assert data.source["split"] == "training and test rows in a file each"


def test_preprocessing_reads_another_table_the_same_way(table, tmp_path_factory):
    """Without the schema's file, with columns in another order, values out of bounds, one class only."""
    trained = load_data(table)
    record = json.loads(json.dumps(trained.preprocessing))
    other = tmp_path_factory.mktemp("other") / "new.csv"
    other.write_text("y,sex,age\nyes,m,50\nyes,f,150\n")
    data = load_data(other, preprocessing=record)
    assert sorted(data.test_inputs.tolist()) == [[0.5, 0, 1], [1, 1, 0]]
    assert data.test_targets.tolist() == [1, 1]
    assert tuple(data.train_inputs.shape) == (0, 3)
    assert data.class_names == trained.class_names
    assert data.preprocessing == record
    assert any("age: 1 of 2 values were outside 0..100" in note for note in data.notes)
    (table.parent / "schema.toml").unlink()
    again = load_data(table, settings=DataSettings(), preprocessing=record)
    assert torch.equal(again.test_inputs, trained.test_inputs)
    assert torch.equal(again.train_inputs, trained.train_inputs)
    with pytest.raises(InvalidInputError, match=r"holdout must be in 0\.\.0"):
        load_data(other, preprocessing=record, holdout=1)


def test_preprocessing_of_another_kind_is_refused(table, tmp_path):
    trained = load_data(table)
    for source in (tmp_path, "digits"):
        with pytest.raises(InvalidInputError, match="the run was trained on a table"):
            load_data(source, preprocessing=trained.preprocessing)
    for record in ({"kind": "table"}, {"kind": "table", "schema": 3}, {"kind": "tables"}, {"x": 1}):
        with pytest.raises(InvalidInputError, match="damaged"):
            load_data(table, preprocessing=record)


def test_breast_cancer_with_public_bounds(tmp_path):
    data = load_breast_cancer()
    lines = ['target = "diagnosis"', 'classes = ["malignant", "benign"]']
    for name in data.feature_names:
        lines += [f'[columns."{name}"]', "minimum = 0", f"maximum = {5000 if 'area' in name else 100}"]
    (tmp_path / "cancer.schema.toml").write_text("\n".join(lines))
    with (tmp_path / "cancer.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*data.feature_names, "diagnosis"])
        writer.writerows([*row, data.target_names[label]] for row, label in zip(data.data, data.target, strict=True))
    loaded = load_data(tmp_path / "cancer.csv", settings=DataSettings(target="diagnosis"))
    assert loaded.input_shape == (30,)
    assert loaded.source["sizes"] == {"train": 455, "holdout": 0, "test": 114}
    assert loaded.class_names == ("malignant", "benign")
    scale = [5000 if "area" in name else 100 for name in data.feature_names]
    rows = {
        tuple(row): label
        for row, label in zip((data.data / scale).clip(0, 1).astype(np.float32).tolist(), data.target, strict=True)
    }
    for row, label in zip(loaded.train_inputs.tolist(), loaded.train_targets.tolist(), strict=True):
        assert rows[tuple(row)] == label


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"\xef\xbb\xbfid,age,sex,y\r\n1,10,f,no\r\n2,20,m,yes\r\n", "commas"),
        (b"id;age;sex;y\n1;10;f;no\n2;20;m;yes", "semicolons"),
        (b"id\tage\tsex\ty\n1\t10\tf\tno\n\n2\t20\tm\tyes\n\n", "tabs"),
        (b'id,age, sex ,y\n"a,\nb",1e1, f,"no"\n2,"20",m,yes\n', "commas"),
        (b"id|age|sex|y\r1|10|f|no\r2|20|m|yes\r", "bars"),
    ],
)
def test_forms_of_text(table, content, form):
    trained = load_data(table)
    table.write_bytes(content)
    data = load_data(table, preprocessing=trained.preprocessing)
    pairs = zip(data.test_inputs[:, 0].tolist(), data.test_targets.tolist(), strict=True)
    assert sorted(pairs) == [(pytest.approx(0.1), 0), (pytest.approx(0.2), 1)]
    assert any(f"divided by {form}" in note for note in data.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"id,age,sex,y\n", "has no rows"),
        (b"id,age,age,y,y\n1,2,3,4,5\n", "the columns 'age', 'y' occur twice"),
        (b"id,,sex,\n1,2,3,4\n", "the columns 2, 4 have no name"),
        (b"id,age,sex,y\n1,2,f\n1,2,f,no\n1,2,f,no,5\n", "2 rows do not have the 4 .* row 1 has 3, row 3 has 5"),
        (b"id age sex y\n1 2 f no\n", "there is one column"),
        (b"id,age,sex,y\n1,2,\xe9,no\n", "is no UTF-8 text"),
        (b'id,age,sex,y\n1,2,"f"x,no\n', "cannot be read as CSV divided by commas"),
        (b'id,age,sex,y\n1,2,"f,no\n', "cannot be read as CSV"),
        (b"id,age,sex,y\n1,2,f," + b"n" * 200_000, "cannot be read as CSV"),
        (b"id,years,sex,y\n1,2,f,no\n", r"needed: .* for years; .*lacks the columns age"),
        (b"id,age,sex\n1,2,f\n", "the table lacks the columns y"),
        (b"id,age,sex,y\n1,old,f,no\n2,,q,no\n3,5,f,maybe\n", "4 cells .* row 1 age 'old' .* row 3 y 'maybe'"),
        (b"id,age,sex,y\n" + b"1,old,f,no\n" * 5000, "5,000 cells .*and 4,990 more"),
        (b"id,age,sex,y\n1,2,f,no\n2,3,m,no\n3,4,m,no\n", "class 'yes' has no training example"),
        (b"id,age,sex,y\n1,2,f,no\n", "1 examples cannot be split"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(table, content, message):
    table.write_bytes(content)
    with pytest.raises(SecureSGDError, match=message) as caught:
        load_data(table)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    if "cannot be split" not in message:
        assert check_data(table).stops


def test_a_table_without_a_schema_gets_a_template_without_values(table):
    table.with_name("schema.toml").unlink()
    with pytest.raises(InvalidInputError, match=r"there is no people\.schema\.toml .* for id, age, sex, .*data check"):
        load_data(table, settings=DataSettings(target="y"))
    check = check_data(table, DataSettings(target="y"))
    assert check.stops
    assert check.rows == 40
    assert check.columns == ("id", "age", "sex", "y")
    assert check.template is not None
    assert "[columns.age]\n# minimum = \n# maximum = \n" in check.template
    assert "[columns.sex]\n# categories = [ ]\n" in check.template
    assert not any(character.isdigit() for character in check.template)
    table.with_name("people.schema.toml").write_text(check.template)
    with pytest.raises(InvalidInputError, match=r"people\.schema\.toml: needed: .* for id, age, sex, and classes"):
        load_data(table)


def test_the_check_of_a_table(table):
    result = run_here("data", "check", table, "--json")
    assert result.returncode == 0, result.stderr
    check = json.loads(result.stdout)
    assert check["classes"] == {"all": {"no": 20, "yes": 20}}
    assert check["problems"] == []
    assert check["rows"] == 40
    table.write_text(table.read_text().replace("\n7,7,", "\n7,seven,").replace("\n9,9,m,", "\n9,9,x,"))
    result = run_here("data", "check", table)
    assert result.returncode == 1
    assert "column 'age': row 8 'seven'" in result.stdout
    assert "column 'sex': row 10 'x'" in result.stdout
    assert run_here("data", "check", table, "--resize", "4x4").returncode == 2
    assert run_here("data", "check", table.with_name("gone.csv")).returncode == 2
    help_text = run_here("data", "check", "--help").stdout
    assert "private" in help_text


def test_settings_for_images_are_refused(table):
    with pytest.raises(
        InvalidInputError, match=r"resize is '4x4' but .*people\.csv is a table; resize is for a folder"
    ):
        load_data(table, settings=DataSettings(resize="4x4"))


def test_parquet_gives_what_the_text_gives(table):
    expected = load_data(table)
    n = range(40)
    columns = {
        "id": arrow.array([str(i) for i in n]),
        "age": arrow.array([i % 100 for i in n], arrow.uint8()),
        "sex": arrow.array(["fm"[i % 2] for i in n]).dictionary_encode(),
        "y": arrow.array([("no", "yes")[i // 2 % 2] for i in n], arrow.large_string()),
    }
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table(columns), path)
    data = load_data(path)
    assert torch.equal(data.train_inputs, expected.train_inputs)
    assert torch.equal(data.test_targets, expected.test_targets)


@pytest.mark.parametrize(
    ("age", "value"),
    [
        (arrow.array([True, False]), 0.01),
        (arrow.array([2**62, 0]), 1.0),
        (arrow.array([25, 0]).cast(arrow.decimal128(30, 3)), 0.25),
        (arrow.array([25, 0], arrow.float32()), 0.25),
    ],
)
def test_kinds_of_parquet_numbers(table, age, value):
    trained = load_data(table)
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table({"age": age, "sex": ["f", "f"], "y": ["yes", "no"]}), path)
    data = load_data(path, preprocessing=trained.preprocessing)
    inputs = dict(zip(data.test_targets.tolist(), data.test_inputs[:, 0].tolist(), strict=True))
    assert inputs == {1: pytest.approx(value), 0: 0}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": [1, None], "sex": ["f", None], "y": ["no", "no"]}, "2 cells .* row 2 age is empty .* 2 sex is empty"),
        ({"age": [1.0, float("inf")], "sex": ["f", "m"], "y": ["no", "no"]}, "row 2 age 'inf'"),
        ({"age": [[1], [2]], "sex": [{"a": 1}] * 2, "y": ["no", "no"]}, r"not read: age \(list.*sex \(struct"),
        ({"age": [1, 2], "sex": [1.0, 0.0], "y": ["no", "no"]}, "row 1 sex '1.0'"),
    ],
)  # fmt: skip
def test_parquet_that_is_refused(table, columns, message):
    trained = load_data(table)
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table(columns), path)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_data(path, preprocessing=trained.preprocessing)
    assert "\n" not in str(caught.value)


def test_damaged_parquet(table):
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table({"age": list(range(1000)), "sex": ["f"] * 1000, "y": ["no"] * 1000}), path)
    whole = path.read_bytes()
    damaged = [b"", b"PAR1", whole[:-9], whole[:200] + whole[300:], b"PAR1" + whole[8:]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"people\.parquet: ") as caught:
            load_data(path)
        assert "\n" not in str(caught.value)


def test_a_table_that_memory_would_not_hold_is_not_read(table, monkeypatch):
    path = table.with_suffix(".parquet")
    parquet.write_table(arrow.table({"age": [1], "sex": ["f"], "y": ["no"]}), path)
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    for source in (table, path):
        with pytest.raises(InvalidInputError, match=f"{source.name}: the file needs .* bytes of memory"):
            read_cells(source)


def test_without_pyarrow_the_extra_is_named(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    table.with_suffix(".parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidInputError, match=r'pip install "securesgd\[parquet\]"'):
        load_data(table.with_suffix(".parquet"))


def test_a_large_table_loads_in_seconds(tmp_path):
    rows, width = 20_000, 30
    values = np.random.default_rng(0).random((rows, width)).round(6)
    names = [f"c{i}" for i in range(width)]
    lines = [",".join([*names, "y"])]
    lines += [",".join(map(str, row)) + (",a", ",b")[i % 2] for i, row in enumerate(values.tolist())]
    (tmp_path / "big.csv").write_text("\n".join(lines))
    facts = "".join(f"[columns.{name}]\nminimum = 0\nmaximum = 1\n" for name in names)
    (tmp_path / "schema.toml").write_text(f'target = "y"\nclasses = ["a", "b"]\n{facts}')
    start = time.process_time()
    data = load_data(tmp_path / "big.csv")
    took = time.process_time() - start
    print(f"20,000 rows of 30 columns: {took:.1f} s")
    assert data.source["sizes"]["train"] == 16_000
    assert took < 4
