"""New inputs in files: read as the run was trained, answered as in Python, what is wrong named line by line."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import securesgd as ss
from securesgd.certificates.column_radii import table_schema
from securesgd.data.load import load_data
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.new_inputs import read_inputs
from securesgd.predict_files import predict_files
from securesgd.run import load_run
from tests.command_line import run_here
from tests.forked import COMMAND, run_forked

SMALL = {"epsilon": 8.0, "delta": 1e-5, "batch_size": 20, "steps": 2, "accountant": "rdp"}
FEW = ("--draws", "200")
ROOT = Path(__file__).parents[1]


def elsewhere(*arguments, cwd):
    """A command in a process that trained nothing and has read no data, in a working folder of its own."""
    return run_forked(COMMAND, *arguments, cwd=cwd)


def train(*options, steps=4):
    words = ("--set", f"steps={steps}", "--set", "accountant=rdp", "--set", "batch_size=32")
    result = run_here("train", *options, *words)
    assert result.returncode == 0, result.stderr


def answers(*arguments, code=0):
    result = run_here("predict", *arguments, "--json")
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)["predictions"]


def refusals(*arguments):
    result = run_here("predict", *arguments)
    assert result.returncode == 2, result.stdout
    return result.stderr.splitlines()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A dp-ibp run on a folder of colour images of several sizes, whose data are gone, and images of its kind."""
    place = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(40):
        name = ("bright", "dark")[number % 2]
        (place / "data" / name).mkdir(parents=True, exist_ok=True)
        size = ((8, 8), (12, 9))[number // 2 % 2]
        pixels = rng.integers(0, 100, (*size[::-1], 3), dtype=np.uint8) + np.uint8(0 if number % 2 else 150)
        Image.fromarray(pixels).save(place / "data" / name / f"{number:02}.png")
    train("--dataset", place / "data", "--method", "dp-ibp", "--resize", "8x8", "--out", place / "run", steps=20)
    shutil.copytree(place / "data", place / "new")
    loaded = load_data(place / "data", settings=load_run(place / "run").config.data)
    shutil.rmtree(place / "data")
    (place / "run" / "local.json").unlink()
    return place, torch.cat([loaded.train_inputs, loaded.test_inputs])


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A dp-ibp run on a table whose data are gone, and the text of its rows."""
    place = tmp_path_factory.mktemp("people")
    columns = {"age": "minimum = 0\nmaximum = 120", "sex": 'categories = ["f", "m"]', "id": "ignore = true"}
    schema = 'target = "ill"\nclasses = ["no", "yes"]\n'
    schema += "".join(f"[columns.{name}]\n{facts}\n" for name, facts in columns.items())
    (place / "people.schema.toml").write_text(schema)
    rows = [f"{i},{i % 90},{'fm'[i % 2]},{('no', 'yes')[i % 90 > 40]}" for i in range(200)]
    (place / "people.csv").write_text("\n".join(["id,age,sex,ill", *rows]) + "\n")
    train("--dataset", place / "people.csv", "--method", "dp-ibp", "--out", place / "run", steps=30)
    (place / "people.csv").unlink()
    (place / "people.schema.toml").unlink()
    return place, rows


def table(place, name, rows, header="id,age,sex,ill"):
    path = place / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def digits_pixels(count):
    return (load_data("digits").test_inputs[:count, 0].numpy() * 255).round().astype(np.uint8)


# Answers


def test_images_and_folders_in_a_fresh_process_elsewhere_are_answered_as_in_python(photos, tmp_path):
    place, inputs = photos
    run = load_run(place / "run")
    new = read_inputs([place / "new"], run.record)
    assert [p.file for p in new.places] == sorted(map(str, (place / "new").rglob("*.png")))
    assert {x.numpy().tobytes() for x in new.batch} == {x.numpy().tobytes() for x in inputs}  # to the last bit
    shutil.copytree(place / "new" / "dark", tmp_path / "mine" / "deep" / "er")
    shutil.copy(place / "new" / "bright" / "00.png", tmp_path / "one.png")
    result = elsewhere("predict", place / "run", "one.png", "mine", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)["predictions"]
    files = [place / "new" / "bright" / "00.png", *sorted((place / "new" / "dark").iterdir())]
    expected = run.predict(read_inputs(files, run.record).batch)
    assert [(row["class"], row["radius"]) for row in said] == [(p.class_name, p.radius) for p in expected]
    assert len(said) == 21
    assert {row["class"] for row in said} == {"bright", "dark"}
    assert said[0]["file"] == "one.png"
    assert max(row["radius"] for row in said) > 0


def test_votes_of_a_noisy_run_are_those_of_python_with_a_seed_and_it_is_said_loudly(tiny_run, tmp_path):
    pixels = digits_pixels(4)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    np.savez(tmp_path / "two.npz", x=pixels[:2])
    inputs = torch.from_numpy(np.concatenate([pixels, pixels[:2]]))[:, None].float() / 255
    expected = load_run(tiny_run).predict(inputs, seed=5, draws=200)
    files = [f"{number}.png" for number in range(4)]
    result = elsewhere("predict", tiny_run, *files, "two.npz", "--json", "--seed", "5", *FEW, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    rows = [(row["label"], row["radius"], row["abstained"], row["draws"]) for row in said["predictions"]]
    assert rows == [(p.label, p.radius, p.abstained, p.draws) for p in expected]
    assert [(row["file"], row["row"]) for row in said["predictions"]][3:] == [
        ("3.png", None),
        ("two.npz", 1),
        ("two.npz", 2),
    ]
    assert {row["noise"] for row in said["predictions"]} == {"seeded; for a test set fixed beforehand"}
    assert "nothing is proven" in said["guarantee"]
    assert result.stderr.startswith("WARNING: the noise has seed 5")


def test_without_a_seed_the_noise_is_fresh_and_no_warning_is_given(tiny_run, tmp_path):
    np.savez(tmp_path / "x.npz", x_test=digits_pixels(20))
    first, second = (answers(tiny_run, tmp_path / "x.npz", *FEW) for _ in range(2))
    assert first != second
    seeded = [answers(tiny_run, tmp_path / "x.npz", "--seed", seed, *FEW) for seed in ("0", "0", "1")]
    assert seeded[0] == seeded[1] != seeded[2]
    assert {row["noise"] for row in first} == {"fresh; for any input"}
    assert run_here("predict", tiny_run, tmp_path / "x.npz", *FEW).stderr == ""


def test_a_radius_is_answered_with_few_draws(tiny_run, photos, tmp_path):
    np.savez(tmp_path / "x.npz", x=digits_pixels(30))
    rows = answers(tiny_run, tmp_path / "x.npz", "--radius", "0.05", "--draws", "3000", "--seed", "1")
    assert {row["answer"] for row in rows} >= {"yes", "no"}
    assert min(row["draws"] for row in rows) < 300
    for row in rows:
        assert (row["radius"] >= 0.05) == (row["answer"] == "yes")
    place, _ = photos
    for radius, answer in ((1e-4, "yes"), (0.99, "no")):
        rows = answers(place / "run", place / "new" / "dark" / "01.png", "--radius", str(radius))
        assert [(row["answer"], row["radius"]) for row in rows] == [(answer, radius if answer == "yes" else 0.0)]
    shown = run_here("predict", place / "run", place / "new" / "dark" / "01.png", "--radius", "0.99").stdout
    assert "0.99 proven" in shown
    too_far = refusals(tiny_run, tmp_path / "x.npz", "--radius", "5")
    assert len(too_far) == 1
    assert "draws" in too_far[0]


def test_norm_and_family_reach_the_certificate(tiny_run, tmp_path):
    np.savez(tmp_path / "x.npz", x=digits_pixels(8))
    run, inputs = load_run(tiny_run), torch.from_numpy(digits_pixels(8))[:, None].float() / 255
    by_norm = {norm: answers(tiny_run, tmp_path / "x.npz", "--norm", norm, "--seed", "1") for norm in ("linf", "l2")}
    assert {row["norm"] for row in by_norm["l2"]} == {"l2"}
    pairs = [(a["radius"], b["radius"]) for a, b in zip(by_norm["linf"], by_norm["l2"], strict=True) if a["radius"]]
    assert pairs
    assert all(a < b for a, b in pairs)
    certain = answers(tiny_run, tmp_path / "x.npz", "--family", "interval")
    assert [row["radius"] for row in certain] == [p.radius for p in run.predict(inputs, family="interval")]
    assert {(row["draws"], row["noise"]) for row in certain} == {(0, "none; for any input")}


def test_rows_of_a_table_have_radii_in_the_units_of_its_columns(people, tmp_path):
    place, rows = people
    run = load_run(place / "run")
    schema = table_schema(run.record)
    table(tmp_path, "with.csv", rows[:6])
    table(tmp_path, "without.csv", [",".join(row.split(",")[2:0:-1]) for row in rows[:6]], header="sex,age")
    result = elsewhere("predict", place / "run", "with.csv", "without.csv", "--csv", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["file"], row["row"]) for row in said] == [
        (file, str(row)) for file in ("with.csv", "without.csv") for row in range(1, 7)
    ]
    encoded = schema.encode({"age": [row.split(",")[1] for row in rows[:6]], "sex": [row.split(",")[2] for row in rows]
                             [:6]})  # fmt: skip
    expected = run.predict(torch.from_numpy(encoded))
    for row, prediction in zip(said, expected * 2, strict=True):
        assert row["class"] == prediction.class_name
        assert float(row["radius"]) == pytest.approx(prediction.radius, abs=1e-3)  # the search of another batch
        assert float(row["radius of age"]) == schema.column_radii(float(row["radius"]), "linf")["age"]
    assert any(float(row["radius of age"]) > 0 for row in said)
    (first, *_) = answers(place / "run", tmp_path / "with.csv")
    assert first["column_radii"] == {"age": pytest.approx(float(said[0]["radius of age"]), abs=0.12)}
    shown = run_here("predict", place / "run", tmp_path / "with.csv")
    assert "radii in the units of the columns: --csv or --json" in shown.stdout
    assert "all numeric columns at once" in shown.stdout


def test_a_class_that_is_there_plays_no_part_even_if_it_is_none(people, tmp_path):
    place, rows = people
    odd = table(tmp_path, "odd.csv", [row.rsplit(",", 1)[0] + "," for row in rows[:3]])
    assert [row["class"] for row in answers(place / "run", odd)] == [
        row["class"] for row in answers(place / "run", table(tmp_path, "even.csv", rows[:3]))
    ]


def test_parquet_is_a_table_too(people, tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    place, _ = people
    parquet.write_table(arrow.table({"age": [3.0, 80.0], "sex": ["f", "m"]}), tmp_path / "two.parquet")
    text = table(tmp_path, "two.csv", ["3.0,f", "80.0,m"], header="age,sex")
    both = [answers(place / "run", path) for path in (tmp_path / "two.parquet", text)]
    assert [[row["radius"] for row in rows] for rows in both] == [[row["radius"] for row in both[0]]] * 2


def test_a_terminal_shows_the_first_twenty(tiny_run, tmp_path):
    np.savez(tmp_path / "x.npz", x=digits_pixels(25))
    shown = run_here("predict", tiny_run, tmp_path / "x.npz", *FEW).stdout
    assert "and 5 more; --csv or --json prints all" in shown
    everything = run_here("predict", tiny_run, tmp_path / "x.npz", "--csv", *FEW).stdout
    assert [row["row"] for row in csv.DictReader(io.StringIO(everything))] == [str(row) for row in range(1, 26)]


def test_inputs_of_a_run_on_tensors_are_taken_as_they_are(tmp_path):
    """Whoever gave tensors scaled them: numbers are taken as given, in double precision if they are, images are not."""
    inputs, targets = torch.randn(60, 1, 4, 4), torch.arange(60) % 2
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    run = ss.train(net, (inputs, targets), out=tmp_path / "run", **SMALL)
    np.savez(tmp_path / "x.npz", x=inputs[:5].double().numpy() / 3)
    said = predict_files(run, [tmp_path / "x.npz"])
    assert [row.prediction for row in said.predictions] == run.predict(inputs[:5].double() / 3)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "x.png")
    (refusal,) = predict_files(run, [tmp_path / "x.png"]).refused
    assert "scaling is not known" in str(refusal)
    np.savez(tmp_path / "bytes.npz", x=np.zeros((2, 4, 4), np.uint8))
    (refusal,) = predict_files(run, [tmp_path / "bytes.npz"]).refused
    assert "holds uint8; valid: floating numbers as in training" in str(refusal)


# Refusals


def test_what_cannot_be_used_is_named_and_the_others_are_answered(photos, tmp_path):
    place, _ = photos
    shutil.copytree(place / "new" / "dark", tmp_path / "mine")
    (tmp_path / "mine" / "broken.png").write_bytes(b"not an image")
    cut = (tmp_path / "mine" / "01.png").read_bytes()
    (tmp_path / "mine" / "cut.png").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "mine" / ".hidden").write_text("ignored")
    os.mkfifo(tmp_path / "mine" / "pipe.png")
    (tmp_path / "empty").mkdir()
    paths = (tmp_path / "mine", tmp_path / "gone.png", tmp_path / "empty")
    result = run_here("predict", place / "run", *paths, "--json")
    assert result.returncode == 2
    said = json.loads(result.stdout)
    expected = answers(place / "run", place / "new" / "dark")
    assert [row["radius"] for row in said["predictions"]] == [row["radius"] for row in expected]
    lines = result.stderr.splitlines()
    assert len(lines) == 6
    for line, (name, words) in zip(
        lines,
        [
            ("mine/broken.png", "not an image"),
            ("mine/cut.png", "is damaged"),
            ("mine/notes.txt", "valid kind: .png"),
            ("mine/pipe.png", "not a regular file"),
            ("gone.png", "does not exist"),
            ("empty", "without files"),
        ],
        strict=True,
    ):
        assert line.startswith(f"securesgd: error: {tmp_path / name} ")
        assert words in line
    assert [row["file"] for row in said["refused"]] == [line.split()[2] for line in lines]


def test_rows_that_cannot_be_used_are_named(people, tmp_path):
    place, _ = people
    rows = ["1,x,f,no", "2,30,m,no", "3,,q,no", "4,500,f,no"] + [f"{i},old,f,no" for i in range(15)]
    result = run_here("predict", place / "run", table(tmp_path, "odd.csv", rows), "--csv")
    assert result.returncode == 2
    assert [row["row"] for row in csv.DictReader(io.StringIO(result.stdout))] == ["2", "4"]
    wrong = [line for line in result.stderr.splitlines() if "error" in line]
    assert len(wrong) == 17
    assert "odd.csv row 1 has age 'x' (valid: a finite number like 1.5)" in wrong[0]
    assert "row 3 has age" in wrong[1]
    assert "sex 'q' (valid: f, m)" in wrong[1]
    assert "age: 1 of 19 values were outside 0..120 and clipped to it" in result.stderr


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("age,colour", "3,red", "lacks the columns sex"),
        ("age,sex,income", "3,f,5", "the schema lacks the columns income"),
        ("age,sex", "3", "do not have the 2 columns"),
    ],
)
def test_tables_with_other_columns_are_refused(header, row, words, people, tmp_path):
    (line,) = refusals(people[0] / "run", table(tmp_path, "odd.csv", [row], header=header))
    assert words in line
    assert line.count("odd.csv") == 1


def test_files_of_another_kind_than_the_run_was_trained_on_are_refused(people, photos, tiny_run, tmp_path):
    (people[0] / "x.npz").write_bytes(b"")
    for path in (photos[0] / "new", photos[0] / "new" / "dark" / "01.png", people[0] / "x.npz"):
        (line,) = refusals(people[0] / "run", path)
        assert "valid: a .csv, .tsv or .parquet file of age, sex" in line
    (line,) = refusals(photos[0] / "run", table(tmp_path, "a.csv", ["1,2,f,no"]))
    assert "is not an image of a valid kind" in line
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "large.png")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "colour.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "right.png")
    lines = refusals(tiny_run, tmp_path / "large.png", tmp_path / "colour.png", tmp_path / "right.png", *FEW)
    assert [line.split(".png ")[1] for line in lines] == [
        "has 28×28 pixels; the run was trained on 8×8, without resize",
        "is in colour; the run was trained on grey images",
    ]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 9, 9), np.uint8)}, "has x of shape [3, 9, 9]; valid: (n, 1, 8, 8), n at least 1"),
        ({"x": np.zeros((0, 1, 8, 8))}, "n at least 1"),
        ({"x": np.float64(3)}, "has x of shape []"),
        ({"x": np.zeros((2, 8, 8), np.int64)}, "holds int64; valid: uint8"),
        ({"y": np.zeros((2, 8, 8))}, "lacks x or x_test; it holds y"),
        ({"x": np.array([{}])}, "without pickle"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, words, tiny_run, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    (line,) = refusals(tiny_run, tmp_path / "x.npz")
    assert words in line
    assert line.count("x.npz") == 1


def test_numbers_out_of_range_are_refused_row_by_row(tiny_run, tmp_path):
    x = digits_pixels(4)[:, None] / 255
    x[1, 0, 3, 3], x[2, 0, 0, 0] = np.nan, 1.5
    np.savez(tmp_path / "x.npz", x=x)
    result = run_here("predict", tiny_run, tmp_path / "x.npz", "--json", *FEW)
    assert result.returncode == 2
    assert [row["row"] for row in json.loads(result.stdout)["predictions"]] == [1, 4]
    assert [line.split("x.npz ")[1] for line in result.stderr.splitlines()] == [
        "row 2 holds nan; valid: 0 to 1",
        "row 3 holds 1.5; valid: 0 to 1",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json", "--csv"), "valid: one of them"),
        (("--norm", "l3"), "unknown norm 'l3'"),
        (("--family", "magic"), "unknown family 'magic'"),
        (("--family", "interval", "--norm", "l2"), "valid for interval certificates: linf"),
        (("--draws", "0"), "draws"),
        (("--seed", "-1"), "seed"),
        (("--radius", "nan"), "radius"),
    ],
)
def test_options_that_are_not_valid_are_one_line(options, words, tiny_run, tmp_path):
    np.savez(tmp_path / "x.npz", x=digits_pixels(1))
    (line,) = refusals(tiny_run, tmp_path / "x.npz", *options)
    assert line.startswith("securesgd: error: ")
    assert words in line


def test_a_folder_that_is_no_run_and_damaged_preprocessing_are_refused(photos, tmp_path):
    (line,) = refusals(tmp_path, tmp_path / "x.png")
    assert "config.toml" in line
    record = load_run(photos[0] / "run").record
    with pytest.raises(InvalidInputError, match="damaged"):
        read_inputs([], record | {"preprocessing": {"kind": "images", "mode": "CMYK"}})
    with pytest.raises(DamagedFileError, match="damaged"):
        read_inputs([], record | {"preprocessing": {"kind": "table", "schema": 3}})
