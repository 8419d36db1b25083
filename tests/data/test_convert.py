"""Sources larger than memory: read from disk or converted, they have the bits and weights of those in memory."""

import json
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import securesgd as ss
from securesgd.data.check import check_data
from securesgd.data.convert import convert_data
from securesgd.data.load import load_data
from securesgd.data.settings import DataSettings
from securesgd.data.shuffled_rows import ShuffledRows
from securesgd.data.stored_inputs import StoredInputs, stays_on_disk
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.training.examples import as_examples, check_examples, data_digest

KEYS = ("x_train", "y_train", "x_test", "y_test")
SCHEMA = """target = "y"
classes = ["no", "yes"]
[columns.age]
minimum = 0
maximum = 90
[columns.sex]
categories = ["f", "m"]
[columns.id]
ignore = true
"""


def images(folder, count=30, divided=False):
    """Two classes of grey and coloured pictures of two sizes, as PNG and JPEG."""
    generator = np.random.default_rng(1)
    for split in ("train", "test") if divided else ("",):
        for name in ("cat", "dog"):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(count):
                shape = ((9, 11), (9, 11, 3), (8, 8))[i % 3]
                picture = Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8))
                picture.save(place / f"{i}.{('png', 'jpg')[i % 2]}")
    return folder


def table(folder, rows=25_000, kind="csv"):
    """More rows than are read at a time; some ages are clipped."""
    generator = np.random.default_rng(2)
    age, sex, yes = (
        generator.normal(40, 30, rows).round(3),
        generator.integers(0, 2, rows),
        generator.random(rows) < 0.3,
    )
    columns = {"id": range(rows), "age": age, "sex": ["fm"[s] for s in sex], "y": [("no", "yes")[int(v)] for v in yes]}
    path = folder / f"people.{kind}"
    (folder / "people.schema.toml").write_text(SCHEMA)
    if kind == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines]))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns | {"id": list(range(rows))}), path, row_group_size=7000)
    return path


def npz(path, save=np.savez, kind=np.uint8, **more):
    generator = np.random.default_rng(3)
    x = generator.integers(0, 256, (90, 6, 5, 3)).astype(np.uint8)
    x = x if kind == np.uint8 else (x / 255).astype(kind)
    y = np.arange(90) % 3
    save(path, **dict(zip(KEYS, (x[:70], y[:70], x[70:], y[70:]), strict=True)), **more)
    return path


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def require_same(stored, memory):
    """The two have the same examples in the same order, and new inputs would be read in the same way."""
    assert isinstance(stored.train_inputs, StoredInputs)
    assert isinstance(memory.train_inputs, torch.Tensor)
    digests = [data_digest(as_examples((data.train_inputs, data.train_targets))) for data in (stored, memory)]
    assert digests[0] == digests[1]
    assert torch.equal(stored.test_inputs, memory.test_inputs)
    assert torch.equal(stored.test_targets, memory.test_targets)
    assert stored.class_names == memory.class_names
    assert stored.preprocessing == memory.preprocessing
    assert stored.by_share == memory.by_share
    if memory.holdout_inputs is not None:
        assert torch.equal(stored.holdout_inputs, memory.holdout_inputs)


ON_DISK = DataSettings(on_disk=True)


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float64])
def test_an_uncompressed_npz_file_can_stay_on_disk(tmp_path, kind):
    path = npz(tmp_path / "all.npz", kind=kind, classes=np.array(["a", "b", "c"]))
    require_same(load_data(path, settings=ON_DISK, holdout=9), load_data(path, holdout=9))


def test_a_compressed_one_is_loaded_with_a_note(tmp_path):
    path = npz(tmp_path / "all.npz", np.savez_compressed)
    loaded = load_data(path, settings=ON_DISK)
    assert isinstance(loaded.train_inputs, torch.Tensor)
    assert "x_train is compressed and was loaded whole" in loaded.notes[0]
    assert load_data(path).notes == ()


def test_bytes_of_a_stored_npz_file_that_were_changed_are_noticed(tmp_path):
    path = npz(tmp_path / "all.npz")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("x_train.npy").header_offset + 1000
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="CRC"):
        load_data(path, settings=ON_DISK)


@pytest.mark.parametrize("divided", [False, True])
def test_images_can_be_decoded_as_they_are_sampled(tmp_path, divided):
    folder = images(tmp_path / "photos", divided=divided)
    (folder / "train" / "cat" / "x.png" if divided else folder / "cat" / "x.png").write_bytes(b"no image")
    settings = {"resize": "7x6", "skip_bad": True}
    stored, memory = (load_data(folder, settings=DataSettings(**settings, on_disk=d), seed=5) for d in (True, False))
    require_same(stored, memory)
    assert stored.notes == memory.notes
    assert any("left out: " in note for note in stored.notes)


def test_images_and_arrays_stay_on_disk_if_they_would_fill_a_quarter_of_the_memory(tmp_path, monkeypatch):
    sources = images(tmp_path / "photos"), npz(tmp_path / "all.npz")
    monkeypatch.setattr("securesgd.data.stored_inputs.machine_memory", lambda: 4 * 4 * 60 * 7 * 6 * 3 - 1)
    assert stays_on_disk(60 * 7 * 6 * 3, False)
    assert not stays_on_disk(60 * 7 * 6 * 3 - 1, False)
    loaded = load_data(sources[0], settings=DataSettings(resize="7x6"))
    assert isinstance(loaded.train_inputs, StoredInputs)
    monkeypatch.setattr("securesgd.data.stored_inputs.machine_memory", lambda: 1000)
    assert isinstance(load_data(sources[1]).train_inputs, StoredInputs)


def test_an_image_that_changes_during_training_is_named(tmp_path):
    folder = images(tmp_path / "photos")
    loaded = load_data(folder, settings=DataSettings(resize="7x6", on_disk=True))
    for file in folder.glob("*/3.jpg"):
        file.write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match=r"3\.jpg changed while it was used: it cannot be read as PNG or JPEG"):
        loaded.train_inputs[:]


def test_labels_of_stored_examples_are_checked_without_reading_them(tmp_path):
    loaded = load_data(npz(tmp_path / "all.npz"), settings=ON_DISK)
    examples = as_examples((loaded.train_inputs, loaded.train_targets + 1))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(90, 3))
    with pytest.raises(InvalidInputError, match="the label of example 2 is 3: valid are 0 to 2"):
        check_examples(examples, model, labelled=True)


def test_on_disk_is_refused_where_it_means_nothing(tmp_path):
    convert_data(npz(tmp_path / "all.npz"), tmp_path / "arrays")
    with pytest.raises(InvalidInputError, match=r"on_disk is for a table, a folder of images or an uncompressed \.npz"):
        load_data(tmp_path / "arrays", settings=ON_DISK)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_can_be_trained_on_from_disk_and_leaves_no_copy(tmp_path, monkeypatch, kind):
    path = table(tmp_path, 12_000, kind=kind)
    before = names_in(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    settings = DataSettings(test_share=0.25)
    memory = load_data(path, settings=settings, holdout=50, seed=3)
    stored = load_data(path, settings=DataSettings(test_share=0.25, on_disk=True), holdout=50, seed=3)
    require_same(stored, memory)
    assert (stored.notes, stored.source) == (memory.notes, memory.source)
    assert names_in(tmp_path) == before, "the file that is read from has no name any more"
    again = load_data(path, settings=ON_DISK, preprocessing=memory.preprocessing)
    (tmp_path / "people.schema.toml").unlink()
    require_same(again, load_data(path, settings=DataSettings(), preprocessing=memory.preprocessing))
    only_test = load_data(path, preprocessing=memory.preprocessing)
    assert (len(only_test.test_inputs), len(only_test.train_inputs)) == (12_000, 0)
    monkeypatch.setattr("securesgd.data.stored_inputs.machine_memory", lambda: 1000)
    large = load_data(path, preprocessing=memory.preprocessing, settings=settings, holdout=50, seed=3)
    require_same(large, memory)


def test_a_table_that_cannot_be_encoded_on_disk_is_one_line(tmp_path, monkeypatch):
    path = table(tmp_path, 30)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(InvalidInputError, match=r"people\.csv is encoded in a file .* No such file.*; set TMPDIR to a"):
        load_data(path, settings=ON_DISK)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path.write_text("\n".join(["id,age,sex,y", *(f"{i},3,f,no" for i in range(30))]))
    with pytest.raises(InvalidInputError, match=r"people\.csv: class 'yes' has no training example"):
        load_data(path, settings=ON_DISK)
    assert names_in(tmp_path) == ["people.csv", "people.schema.toml"]


def test_a_parquet_file_without_pyarrow_is_one_line(tmp_path, monkeypatch):
    path = table(tmp_path, 30, kind="parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for settings in (None, ON_DISK):
        with pytest.raises(InvalidInputError) as caught:
            load_data(path, settings=settings)
        assert str(caught.value) == f'{path}: pyarrow is not installed; run pip install "securesgd[parquet]"'


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_converted_table_is_the_table(tmp_path, kind):
    path = table(tmp_path, kind=kind)
    written = convert_data(path, tmp_path / "arrays", DataSettings(test_share=0.25), seed=3)
    memory = load_data(path, settings=DataSettings(test_share=0.25), seed=3)
    stored = load_data(tmp_path / "arrays", seed=3)
    require_same(stored, memory)
    assert written.notes == memory.notes
    assert stored.source["split"] == memory.source["split"].replace("the run's seed", "seed 3")
    names = ["reading.json", "test_x.npy", "test_y.npy", "train_x.npy", "train_y.npy"]
    assert names_in(tmp_path / "arrays") == names
    other = load_data(path, settings=DataSettings(test_share=0.25), seed=4)
    assert not torch.equal(other.test_inputs, stored.test_inputs)


def test_a_converted_table_with_a_file_of_test_rows(tmp_path):
    (tmp_path / "more").mkdir()
    settings = DataSettings(test=str(table(tmp_path / "more", 500)))
    path = table(tmp_path, 12_000)
    convert_data(path, tmp_path / "arrays", settings)
    require_same(load_data(tmp_path / "arrays", holdout=100), load_data(path, settings=settings, holdout=100))


@pytest.mark.parametrize("divided", [False, True])
def test_a_converted_folder_of_images_is_the_folder(tmp_path, divided):
    folder, settings = images(tmp_path / "photos", divided=divided), DataSettings(resize="7x3")
    convert_data(folder, tmp_path / "arrays", settings)
    require_same(load_data(tmp_path / "arrays"), load_data(folder, settings=settings))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("more", [{}, {"classes": np.array(["a", "b", "c"])}, {"classes": np.array(3)}])
def test_a_converted_npz_file_is_the_file(tmp_path, save, more):
    path = npz(tmp_path / "all.npz", save, np.float32, **more)
    convert_data(path, tmp_path / "arrays")
    require_same(load_data(tmp_path / "arrays"), load_data(path))


def test_runs_have_the_same_weights_and_read_new_rows_in_the_same_way(tmp_path):
    path = table(tmp_path, 400)
    convert_data(path, tmp_path / "arrays")
    settings = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 20, "steps": 6, "noise_seed": 1}
    runs = []
    for name, place in (("disk", tmp_path / "arrays"), ("memory", path)):
        torch.manual_seed(0)
        runs.append(ss.train(torch.nn.Linear(3, 2), str(place), out=tmp_path / name, **settings))
    weights = [run.model.state_dict() for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    records = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("disk", "memory")]
    assert records[0]["preprocessing"] == records[1]["preprocessing"] != {}
    again = load_data(tmp_path / "arrays", settings=DataSettings(), preprocessing=records[1]["preprocessing"])
    assert len(again.test_inputs) == 80
    other = records[1]["preprocessing"] | {"schema": records[1]["preprocessing"]["schema"] | {"classes": ["yes", "no"]}}
    with pytest.raises(InvalidInputError, match="made with another preprocessing than the run's"):
        load_data(tmp_path / "arrays", preprocessing=other)


def test_a_run_on_images_that_are_decoded_as_they_are_sampled_has_the_weights_of_one_in_memory(tmp_path):
    folder = images(tmp_path / "photos")
    settings = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 20, "steps": 4, "noise_seed": 1}
    weights = []
    for on_disk in (True, False):
        torch.manual_seed(0)
        data = load_data(folder, settings=DataSettings(resize="7x6", on_disk=on_disk))
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(126, 2))
        weights.append(ss.train(model, data, out=tmp_path / f"run{on_disk}", **settings).model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def bad_table(path, line, text):
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda p: bad_table(table(p), 15_001, "1,old,f,no"), InvalidInputError, "row 15001 age 'old' (valid"),
        (lambda p: bad_table(table(p), 15_001, "1,f,no"), InvalidInputError, "row 15001 has 3"),
        (lambda p: p / "none.csv", InvalidInputError, "none.csv does not exist; valid: a folder of images"),
        (lambda p: p / "people.schema.toml", InvalidInputError, "cannot be converted; valid: a folder of images"),
        (lambda p: images(p / "photos"), InvalidInputError, "the images have 2 sizes"),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(tmp_path, source, error, message):
    (tmp_path / "people.schema.toml").write_text(SCHEMA)
    place = source(tmp_path)
    before = names_in(tmp_path)
    with pytest.raises(error) as caught:
        convert_data(place, tmp_path / "arrays")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == before


def test_what_exists_is_not_overwritten(tmp_path):
    path = table(tmp_path, 50)
    convert_data(path, tmp_path / "arrays")
    with pytest.raises(InvalidInputError, match="arrays exists; valid: a new folder"):
        convert_data(path, tmp_path / "arrays")
    with pytest.raises(InvalidInputError, match="is a folder of arrays already"):
        convert_data(tmp_path / "arrays", tmp_path / "again")
    assert (tmp_path / "arrays").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("split"), "is damaged; needed: classes, split"),
        (lambda r: r["classes"].reverse(), "describes inputs of shape (3,) and the classes no, yes, beside it"),
        (lambda r: r["classes"].append(3), "is damaged: a class is 3"),
        (lambda r: r["preprocessing"].update(kind="sound"), "kind is 'sound'; needed: images or table"),
        (lambda r: r["preprocessing"]["schema"]["columns"].pop(0), "describes inputs of shape (2,)"),
    ],
)
def test_a_reading_that_does_not_fit_its_arrays_is_refused(tmp_path, change, message):
    convert_data(table(tmp_path, 50), tmp_path / "arrays")
    place = tmp_path / "arrays" / "reading.json"
    record = json.loads(place.read_text())
    change(record)
    place.write_text(json.dumps(record))
    with pytest.raises((InvalidInputError, DamagedFileError)) as caught:
        load_data(tmp_path / "arrays")
    assert message in str(caught.value)
    assert any(message in problem.problem for problem in check_data(tmp_path / "arrays").problems)


def test_data_check_counts_the_classes_of_a_folder_of_arrays(tmp_path):
    convert_data(table(tmp_path, 50), tmp_path / "arrays")
    check = check_data(tmp_path / "arrays")
    assert not check.stops
    assert check.kind == "arrays"
    assert check.rows == 50
    assert {split: sum(counts.values()) for split, counts in check.classes.items()} == {"train": 40, "test": 10}
    assert check.notes[0] == "train_x.npy: float32 of shape (40, 3)"


def test_data_check_names_all_arrays_that_cannot_be_read(tmp_path):
    convert_data(table(tmp_path, 50), tmp_path / "arrays")
    np.save(tmp_path / "arrays" / "train_x.npy", np.full((40, 3), 2.0))
    (tmp_path / "arrays" / "test_y.npy").unlink()
    (tmp_path / "arrays" / "test_x.npy").write_bytes(b"nothing")
    problems = [problem.problem for problem in check_data(tmp_path / "arrays").problems]
    expected = ("values in [2, 2]", "test_x.npy cannot be read", "test_y.npy is missing")
    assert all(words in problem for words, problem in zip(expected, problems, strict=True))
    with pytest.raises(InvalidInputError, match=r"target is 'y' but .* is a folder of arrays"):
        check_data(tmp_path / "arrays", DataSettings(target="y"))


def test_rows_are_shuffled_through_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("securesgd.data.shuffled_rows._PART", 100)
    generator = np.random.default_rng(0)
    places, rows = generator.permutation(1001), generator.random((1001, 2)).astype(np.float32)
    writer = ShuffledRows(tmp_path / "x.npy", places, (2,), np.float32)
    assert len(names_in(tmp_path)) == 84
    for part in np.array_split(rows, 7):
        writer.append(part)
    with pytest.raises(DamagedFileError, match="was changed while it was read"):
        writer.append(rows[:1])
    writer.finish()
    assert names_in(tmp_path) == ["x.npy"]
    assert np.array_equal(np.load(tmp_path / "x.npy")[places], rows)
