"""Data as people have them, on the command line from beginning to end: a table, a messy folder, a run that moved."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import securesgd as ss
from securesgd.certificates.column_radii import scaled_box, table_schema
from securesgd.data.columns import Column
from securesgd.data.load import load_data
from securesgd.data.schema import Schema
from securesgd.data.settings import DataSettings
from securesgd.errors import InvalidInputError
from securesgd.models.predict import predicted_classes
from securesgd.run import load_run
from securesgd.run_data import load_other_data
from tests.command_line import run_here

EXAMPLE = Path(__file__).parents[1] / "examples" / "breast_cancer"


def succeed(*arguments):
    result = run_here(*arguments)
    assert result.returncode == 0, result.stderr
    return result


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    """The example's table with its schema, trained on and certified by commands alone."""
    folder = tmp_path_factory.mktemp("cancer")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["make_table.py", "cancer.csv"])
        exec((folder / "make_table.py").read_text(), {"__name__": "__main__"})
        succeed("data", "check", "cancer.csv", "--target", "diagnosis")
        succeed("train", "--dataset", "cancer.csv", "--target", "diagnosis", "--method", "dp-ibp", "--out", "run",
                "--set", "accountant=rdp", "--set", "steps=120")  # fmt: skip
        result = succeed("certify", "run", "--examples", "0")
        succeed("attack", "run", "--attack", "madry", "--budget", "0.02", "--examples", "20", "--no-probes")
        succeed("report", "run")
    return folder, result.stdout


@pytest.mark.slow
def test_the_commands_of_the_example_run(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "run.sh", "out"], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "report.html").exists()
    assert "worst area" in result.stdout


def test_a_table_becomes_a_private_model_with_radii_in_its_own_units(cancer):
    folder, printed = cancer
    page = (folder / "run" / "report.html").read_text()
    radii = read_csv(folder / "run" / "column-radii.csv")
    assert len(radii) == 114
    for name in ("mean radius", "worst area"):
        assert name in page
        assert name in printed
        assert float(radii[0][name]) >= 0
    assert "Not everything is here" not in page
    assert "recall: malignant" in printed
    statement = json.loads((folder / "run" / "model.json").read_text())["statement"]
    assert statement["guaranteed"] is True


def test_moving_every_column_by_its_radius_changes_no_prediction(cancer):
    """The values are written to a file and read by the run as any user's table, at the very ends of what is proven."""
    folder, _ = cancer
    run = load_run(folder / "run")
    run._data = load_data(folder / "cancer.csv", settings=DataSettings(target="diagnosis"))
    schema = table_schema(run.record)
    inputs, rows = run.data.test_inputs, read_csv(folder / "cancer.csv")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    raw = {encoded.tobytes(): row for encoded, row in zip(schema.encode(columns), rows, strict=True)}
    radii = {int(row["index"]): row for row in read_csv(folder / "run" / "column-radii.csv")}
    classes = predicted_classes(run.model, inputs).tolist()
    proven = [i for i in range(len(inputs)) if float(radii[i]["mean radius"]) > 0]
    assert len(proven) > 80
    rng = np.random.default_rng(0)
    for scale, breaks in ((1.0, False), (4.0, True)):
        moved = []
        for i in proven[:40]:
            row, limits = raw[inputs[i].numpy().tobytes()], radii[i]
            worst = inputs[i : i + 1].clone().requires_grad_()
            (run.model(worst)[0, classes[i]] - run.model(worst)[0, 1 - classes[i]]).backward()
            signs = [-np.sign(worst.grad[0].numpy()), *rng.choice([-1, 1], (5, 30))]
            for sign in signs:
                values = {
                    name: repr(float(row[name]) + float(s) * scale * float(limits[name]))
                    for name, s in zip(schema.features, sign, strict=True)
                }
                moved.append(values | {"diagnosis": schema.classes[classes[i]]})
        with (folder / "moved.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(moved[0]))
            table.writeheader()
            table.writerows(moved)
        other = load_other_data(str(folder / "moved.csv"), run.record)
        same = bool((predicted_classes(run.model, other.test_inputs) == other.test_targets).all())
        assert same is not breaks  # four times as far, some prediction changes: the radii are not just tiny


def test_boxes_of_a_table_are_in_the_units_of_its_columns(cancer, monkeypatch):
    folder, _ = cancer
    monkeypatch.chdir(folder)
    shutil.copytree("run", "boxed")
    box = ",".join(["0.1"] + ["0"] * 29)
    result = succeed("certify", "boxed", "--box", box, "--again", "--json")
    record = json.loads(result.stdout)["interval"]
    assert record["settings"]["box_in_units"] == ["0.1"] + ["0"] * 29
    assert 0.1 / 25 < float(record["settings"]["box"][0]) < 0.1 / 20  # the public range is 22 units
    succeed("report", "boxed")
    page = (folder / "boxed" / "report.html").read_text()
    assert f"--box &#34;{box}&#34;" in page or f'--box "{box}"' in page
    refused = run_here("certify", "boxed", "--box", "0.1,5", "--again")
    assert refused.returncode == 2
    assert "valid: 30" in refused.stderr


def test_a_scaled_box_covers_what_scaling_rounds():
    rng = np.random.default_rng(1)
    for low, high in ((0.0, 1.0), (-5.0, 3.0), (1e9, 1e9 + 1), (0.0, 1e-6)):
        schema = Schema(target="y", classes=("a", "b"), columns=(Column(name="x", minimum=low, maximum=high),))
        width = 0.01 * (high - low)
        for text in (repr(width), "10%") if low == 0 else (repr(width),):
            (scaled,) = scaled_box([text], schema)
            x = rng.uniform(low, high, 20_000)
            for share in (1.0, 0.02):
                by = share * (0.1 * np.abs(x) if "%" in text else width)
                first, second = (schema.encode({"x": values})[:, 0].astype(float) for values in (x, x + by))
                number = float(scaled.removesuffix("%")) / (100 if "%" in text else 1)
                allowed = share * number * (np.abs(first) if "%" in scaled else 1.0)
                assert (np.abs(second - first) <= allowed).all()


@pytest.mark.parametrize(
    ("box", "words"),
    [(("5%", "0"), "needs a minimum of 0"), (("1", "1"), "is a category"), (("x", "0"), "valid: a number >= 0")],
)
def test_boxes_that_make_no_sense_are_refused(box, words):
    columns = (Column(name="age", minimum=18, maximum=90), Column(name="sex", categories=("f", "m")))
    with pytest.raises(InvalidInputError, match=words):
        scaled_box(box, Schema(target="y", classes=("a", "b"), columns=columns))


def test_another_table_is_read_as_the_run_was_trained(cancer, monkeypatch):
    """Its own smallest and largest values, its order of columns and a schema beside it play no part."""
    folder, _ = cancer
    monkeypatch.chdir(folder)
    rows = read_csv(folder / "cancer.csv")[:50]
    (folder / "elsewhere").mkdir()
    with Path("elsewhere/few.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(reversed(rows[0])))
        table.writeheader()
        table.writerows(rows)
    Path("elsewhere/schema.toml").write_text("nonsense = 1\n")
    shutil.copytree("run", "again")
    result = succeed("certify", "again", "--dataset", "elsewhere/few.csv", "--again", "--json")
    assert json.loads(result.stdout)["interval"]["summary"]["examples"] == 50
    refused = run_here("certify", "again", "--dataset", "digits", "--again")
    assert refused.returncode == 2
    assert "table" in refused.stderr


def write_folder(folder, sizes=((6, 6),), train=30, test=10):
    """Two classes of grey pictures, dark and bright."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for label, name in enumerate(("dark", "bright")):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                size = sizes[number % len(sizes)]
                pixels = rng.integers(0, 90, size[::-1], dtype=np.uint8) + np.uint8(150 * label)
                Image.fromarray(pixels).save(place / f"{number:03}.png")
    return folder


def test_a_messy_folder_trains_after_being_resized_and_cleaned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = write_folder(tmp_path / "photos", sizes=((6, 6), (8, 6), (9, 9), (12, 7), (20, 20)))
    Image.fromarray(np.full((9, 9, 3), 200, np.uint8)).save(photos / "train" / "bright" / "colour.jpg")
    (photos / "train" / "dark" / "broken.png").write_bytes(b"not an image")
    (photos / "test" / "dark" / "notes.txt").write_text("mine")
    checked = run_here("data", "check", "photos")
    assert checked.returncode == 1
    for words in ("broken.png", "notes.txt", "20×20", "12×7"):
        assert words in checked.stdout + checked.stderr
    plain = run_here("train", "--dataset", "photos", "--method", "dpsgd", "--out", "run")
    assert plain.returncode == 2
    assert not Path("run").exists()
    trained = succeed("train", "--dataset", "photos", "--method", "dp-ibp", "--resize", "8x8", "--skip-bad", "--out",
                      "run", "--set", "steps=4", "--set", "accountant=rdp")  # fmt: skip
    assert "broken.png" in trained.stderr
    assert "notes.txt" in trained.stderr
    record = json.loads(Path("run/model.json").read_text())
    assert record["input_shape"] == [3, 8, 8]
    assert record["class_names"] == ["bright", "dark"]
    assert "broken" not in Path("run/model.json").read_text()  # names of private files are not published
    succeed("certify", "run")
    succeed("report", "run")


def test_a_run_that_was_moved_finds_its_data(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    write_folder(tmp_path / "project" / "photos")
    succeed("train", "--dataset", "photos", "--method", "dp-ibp", "--out", "run", "--set", "steps=3", "--set",
            "accountant=rdp")  # fmt: skip
    (tmp_path / "archive").mkdir()
    shutil.move("run", tmp_path / "archive" / "kept")
    monkeypatch.chdir(tmp_path / "archive")
    succeed("certify", "kept", "--examples", "5")
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(tmp_path / "project" / "photos" / "test" / "dark" / "000.png")
    changed = run_here("certify", "kept", "--examples", "6")
    assert changed.returncode == 2
    assert "other test examples" in changed.stderr
    (tmp_path / "archive" / "kept" / "local.json").unlink()
    lost = run_here("certify", "kept", "--examples", "6")
    assert lost.returncode == 2
    assert "--dataset PATH" in lost.stderr
    for name in ("config.toml", "model.json", "environment.json"):  # the claims name no place of this machine
        assert str(tmp_path) not in (tmp_path / "archive" / "kept" / name).read_text()


def test_a_moved_run_finds_its_test_rows_too(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("schema.toml").write_text('target = "y"\nclasses = ["a", "b"]\n[columns.x]\nminimum = 0\nmaximum = 9\n')
    for name, count in (("people.csv", 60), ("tested.csv", 12)):
        Path(name).write_text("\n".join(["x,y", *(f"{i % 10},{'ab'[i % 10 > 4]}" for i in range(count))]) + "\n")
    succeed("train", "--dataset", "people.csv", "--method", "dpsgd", "--set", "test=tested.csv", "--set", "steps=2",
            "--set", "accountant=rdp", "--out", "../run")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert json.loads(succeed("certify", "run", "--json").stdout)["interval"]["summary"]["examples"] == 12


def test_data_read_in_python_are_found_again_with_their_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(write_folder(tmp_path / "split", train=40) / "train", tmp_path / "flat")
    data = load_data("flat", settings=DataSettings(test_share=0.3, resize="5x5"), seed=3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(25, 2))
    run = ss.train(network, data, out="run", epsilon=8.0, delta=1e-5, batch_size=20, steps=2, accountant="rdp")
    again = load_run("run", network=nn.Sequential(nn.Flatten(), nn.Linear(25, 2)))
    assert torch.equal(again.data.test_inputs, run.data.test_inputs)
    assert len(again.data.test_inputs) == 24


def test_standardised_inputs_are_refused_before_anything_is_paid(tmp_path):
    inputs, targets = torch.randn(60, 4), torch.arange(60) % 2
    model = ss.NoisyNetwork(nn.Sequential(nn.Linear(4, 2)), (4,), norm="linf", radius_per_std=0.1)
    settings = {"epsilon": 8.0, "delta": 1e-5, "batch_size": 20, "steps": 2, "accountant": "rdp"}
    with pytest.raises(InvalidInputError, match="valid: 0 to 1, so scale inputs there"):
        ss.train(model, (inputs, targets), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    run = ss.train(model, (inputs, targets), out=tmp_path / "meant", input_range=None, **settings)
    again = load_run(run.path, network=nn.Sequential(nn.Linear(4, 2)))
    assert again.input_range is None
    assert len(again.certify((inputs, targets), draws=50, examples=5).rows) == 5  # as trained, without saying it again


def test_a_number_of_rows_that_is_private_is_not_published_by_a_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(write_folder(tmp_path / "split") / "train", tmp_path / "flat")
    options = ("--method", "dpsgd", "--set", "population=1000", "--set", "steps=2", "--out", "run")
    refused = run_here("train", "--dataset", "flat", *options)
    assert refused.returncode == 2
    assert "which is not public" in refused.stderr
    assert not Path("run").exists()
    succeed("train", "--dataset", "split", *options, "--set", "accountant=rdp")


def test_the_first_forty_images_of_a_sorted_folder_are_of_both_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", train=40, test=50)
    succeed("train", "--dataset", "photos", "--method", "dpsgd", "--out", "run", "--set", "steps=2", "--set",
            "accountant=rdp")  # fmt: skip
    result = succeed("attack", "run", "--attack", "fgsm", "--examples", "40", "--no-probes", "--json")
    (cell,) = json.loads(result.stdout)["cells"].values()
    labels = {row["label"] for row in read_csv(Path("run/attacks.csv"))}
    assert labels == {"0", "1"}
    assert cell["summary"]["examples"] == 40
