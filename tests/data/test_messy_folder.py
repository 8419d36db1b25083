"""Image folders as people have them: several sizes and kinds, damaged and stray files, sorted classes."""

import numpy as np
import pytest
import torch
from PIL import Image

from securesgd.data.check import check_data
from securesgd.data.load import load_data
from securesgd.data.settings import DataSettings
from securesgd.errors import InvalidInputError
from tests.command_line import run_here

SIZES = ((10, 8), (8, 8), (12, 9), (20, 30), (7, 11))


def picture(path, level, mode="RGB", size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode in ("L", "I;16") else (level,) * len(mode)).save(path)


@pytest.fixture
def messy(tmp_path):
    """Five sizes, PNG and JPEG, grey and colour; a cut file, a text among images, one above them, a transparent one."""
    for split in ("train", "test"):
        for label, name in enumerate(("dark", "light")):
            for i, size in enumerate(SIZES):
                suffix, mode = (("png", "RGB"), ("jpg", "L"))[i % 2]
                picture(tmp_path / split / name / f"{i}.{suffix}", 200 * label + 20, mode, size)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(tmp_path / "cut.png")
    (tmp_path / "test" / "dark" / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:150])
    (tmp_path / "cut.png").unlink()
    (tmp_path / "train" / "dark" / "labels.txt").write_text("a")
    (tmp_path / "train" / "README").write_text("a")
    picture(tmp_path / "train" / "light" / "clear.png", 9, "RGBA")
    return tmp_path


BAD = {"test/dark/cut.png", "train/dark/labels.txt", "train/README", "train/light/clear.png"}


def test_every_problem_is_found_in_one_pass(messy):
    check = check_data(messy)
    assert {problem.file for problem in check.problems} == BAD | {""}
    (sizes,) = (problem.problem for problem in check.problems if not problem.file)
    assert "5 sizes" in sizes
    assert "20×30 (4)" in sizes
    assert "--resize" in sizes
    assert check.sizes == {f"{w}×{h}": 4 for w, h in SIZES}
    assert check.modes == {"RGB": 12, "L": 8}
    assert check.classes == {"train": {"dark": 5, "light": 5}, "test": {"dark": 5, "light": 5}}
    assert check.stops
    with pytest.raises(InvalidInputError) as caught:
        load_data(messy)
    assert all(file in str(caught.value) for file in BAD)
    assert "5 problems" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_messy_folder_loads_with_resize_and_skip_bad(messy):
    settings = DataSettings(resize="9x6", skip_bad=True)
    data = load_data(messy, settings=settings)
    assert data.input_shape == (3, 6, 9)
    assert data.source["sizes"] == {"train": 10, "holdout": 0, "test": 10}
    for pixels, label in zip(data.test_inputs, data.test_targets.tolist(), strict=True):
        assert pixels.mean().item() == pytest.approx((200 * label + 20) / 255, abs=0.01)
    assert all(any(file in note for note in data.notes) for file in BAD)
    assert "resized 20 of 20 images to 9×6" in data.notes
    assert "converted 8 images of mode L to RGB" in data.notes
    assert not check_data(messy, settings).stops
    assert check_data(messy, DataSettings(resize="9x6")).stops


def test_resizing_averages_over_pixels(tmp_path):
    """A pattern finer than the new pixels becomes grey; taking every other pixel would make it black or white."""
    board = (np.indices((16, 16)).sum(0) % 2 * 255).astype(np.uint8)
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(board).save(tmp_path / split / name / "0.png")
    pixels = load_data(tmp_path, settings=DataSettings(resize="4x4")).train_inputs
    assert (pixels - 0.5).abs().max().item() < 0.05


def test_the_first_test_images_of_a_sorted_unbalanced_folder_have_both_classes(tmp_path):
    for split in ("train", "test"):
        for name, count in (("common", 120), ("rare", 30)):
            for i in range(count):
                picture(tmp_path / split / name / f"{i:03}.png", i, "L", (4, 4))
    data = load_data(tmp_path)
    assert set(data.test_targets[:40].tolist()) == {0, 1}
    assert set(data.train_targets[:40].tolist()) == {0, 1}
    assert torch.equal(load_data(tmp_path, seed=5).test_inputs, data.test_inputs)  # the order is not the run's


@pytest.fixture
def unsplit(tmp_path):
    for label, name in enumerate(("a", "b")):
        for i in range(50):
            picture(tmp_path / name / f"{i:03}.png", 100 * label + i, "L", (4, 4))
    return tmp_path


def values(inputs):
    return sorted((inputs[:, 0, 0, 0] * 255).round().int().tolist())


def test_class_folders_alone_are_split_by_share(unsplit):
    data = load_data(unsplit, settings=DataSettings(test_share=0.3), seed=1)
    assert data.source["sizes"] == {"train": 70, "holdout": 0, "test": 30}
    assert data.source["split"] == "a random 0.3 of the folder set apart for testing with the run's seed"
    everything = values(torch.cat([data.train_inputs, data.test_inputs]))
    assert everything == [*range(50), *range(100, 150)]
    same, other = (load_data(unsplit, settings=DataSettings(test_share=0.3), seed=seed) for seed in (1, 2))
    assert torch.equal(same.test_inputs, data.test_inputs)
    assert values(other.test_inputs) != values(data.test_inputs)
    assert check_data(unsplit).classes == {"all": {"a": 50, "b": 50}}


def test_preprocessing_reads_another_folder_the_same_way(messy, tmp_path_factory):
    trained = load_data(messy, settings=DataSettings(resize="9x6", skip_bad=True))
    other = tmp_path_factory.mktemp("other")
    picture(other / "light" / "0.png", 220, "L", (30, 30))  # grey only, one class only, another size
    (other / "light" / "1.png").write_text("no image")
    data = load_data(other, preprocessing=trained.preprocessing)
    assert data.class_names == trained.class_names == ("dark", "light")
    assert data.test_targets.tolist() == [1]
    assert data.input_shape == trained.input_shape
    assert tuple(data.train_inputs.shape) == (0, 3, 6, 9)
    assert data.preprocessing == trained.preprocessing
    assert len(data.notes) == 3
    with pytest.raises(InvalidInputError, match="the run was trained with 9×6"):
        load_data(other, settings=DataSettings(resize="5x5"), preprocessing=trained.preprocessing)
    picture(other / "eel" / "0.png", 220)
    with pytest.raises(InvalidInputError, match="class 'eel' is none of the run's: dark, light"):
        load_data(other, preprocessing=trained.preprocessing)


def test_preprocessing_uses_the_test_part_alone(messy):
    trained = load_data(messy, settings=DataSettings(resize="9x6", skip_bad=True))
    again = load_data(messy, preprocessing=trained.preprocessing)
    assert torch.equal(again.test_inputs, trained.test_inputs)
    assert len(again.train_inputs) == 0
    assert not [note for note in again.notes if "train/" in note]


def test_preprocessing_with_the_settings_gives_the_same_split(unsplit):
    settings = DataSettings(test_share=0.3)
    data = load_data(unsplit, settings=settings, seed=4, holdout=5)
    again = load_data(unsplit, settings=settings, seed=4, holdout=5, preprocessing=data.preprocessing)
    assert torch.equal(again.test_inputs, data.test_inputs)
    assert torch.equal(again.holdout_inputs, data.holdout_inputs)
    assert len(load_data(unsplit, preprocessing=data.preprocessing).test_inputs) == 100


def test_size_and_mode_of_the_run_are_not_adapted(unsplit, tmp_path_factory):
    trained = load_data(unsplit)
    other = tmp_path_factory.mktemp("other")
    picture(other / "a" / "0.png", 5, "RGB", (4, 4))
    picture(other / "b" / "0.png", 5, "L", (5, 4))
    with pytest.raises(InvalidInputError) as caught:
        load_data(other, preprocessing=trained.preprocessing)
    assert "a/0.png is in colour; the run was trained on grey" in str(caught.value)
    assert "b/0.png has 5×4 pixels; the run was trained on 4×4" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a"]}, {"classes": ["a", "a"]}, {"classes": [1, 2]}, {"classes": "ab"}, {"mode": "CMYK"},
        {"size": [4]}, {"size": [0, 4]}, {"size": [4, 10**9]}, {"size": [True, 4.0]}, {"resize": 1},
        {"skip_bad": None}, {"kind": "table"}, {"kind": None}, {"kind": ["images"]},
    ],
)  # fmt: skip
def test_damaged_preprocessing_is_refused(unsplit, change):
    record = load_data(unsplit).preprocessing | change
    with pytest.raises(InvalidInputError) as caught:
        load_data(unsplit, preprocessing=record)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInputError):
        load_data(unsplit, preprocessing=[record])


@pytest.mark.parametrize("size", ["64", "64x", "0x4", "4X4", "5000x4", "4x4x4", " 4x4", "٤x4", "-4x4", "1e3x4"])
def test_bad_sizes(size):
    with pytest.raises(InvalidInputError, match="valid: WIDTHxHEIGHT"):
        DataSettings(resize=size)


@pytest.mark.parametrize(
    "values",
    [{"test_share": 0.0}, {"test_share": 1}, {"test_share": float("nan")}, {"skip_bad": 1}, {"target": ""},
     {"target": 3}, {"test": "b.csv", "test_share": 0.5}],
)  # fmt: skip
def test_bad_settings(values):
    with pytest.raises(InvalidInputError, match="valid: "):
        DataSettings(**values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "y"}, "target is 'y' but .* is a folder of images with train/ and test/; target is for a table"),
        ({"test_share": 0.5}, "test_share is 0.5 but .* with train/ and test/"),
    ],
)
def test_settings_that_do_not_apply(messy, settings, message):
    with pytest.raises(InvalidInputError, match=message):
        load_data(messy, settings=DataSettings(**settings))


def test_named_sets_and_functions_take_no_settings():
    for source in ("digits", "tests.data.outside:arrays"):
        with pytest.raises(InvalidInputError, match=r"resize is '8x8' but .*; resize is for a folder"):
            load_data(source, settings=DataSettings(resize="8x8"))
    assert load_data("digits", settings=DataSettings()).preprocessing == {}


def test_a_damaged_file_decides_neither_size_nor_mode(unsplit):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(unsplit / "a" / "x.png")
    (unsplit / "a" / "x.png").write_bytes((unsplit / "a" / "x.png").read_bytes()[:150])
    data = load_data(unsplit, settings=DataSettings(skip_bad=True))
    assert data.input_shape == (1, 4, 4)
    assert len(data.notes) == 1


def test_nothing_left_is_said(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_text("no image")
    with pytest.raises(InvalidInputError, match="no image that can be used"):
        load_data(tmp_path, settings=DataSettings(skip_bad=True))


def test_the_command_lists_all_problems(messy):
    result = run_here("data", "check", messy)
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("problem ") == len(BAD) + 1
    assert all(file in result.stdout for file in BAD)
    fine = run_here("data", "check", messy, "--resize", "8x8", "--skip-bad")
    assert fine.returncode == 0
    assert fine.stdout.count("left out ") == len(BAD)
    assert run_here("data", "check", messy / "nowhere").returncode == 2
