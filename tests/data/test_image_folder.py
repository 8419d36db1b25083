"""A folder of images by class."""

import numpy as np
import pytest
from PIL import Image

from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError


def picture(path, colour=0, mode="RGB", size=(6, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                picture(tmp_path / split / name / f"{i}.png", (255 * label, 51, 0))
    return tmp_path


def test_images_by_class(folder):
    (folder / "train" / "cat" / ".DS_Store").write_text("")
    data = load_data(folder)
    assert data.class_names == ("cat", "dog")
    assert data.input_shape == (3, 5, 6)
    assert sorted(data.train_targets.tolist()) == [0, 0, 0, 1, 1, 1]
    for pixels, label in zip(data.train_inputs, data.train_targets.tolist(), strict=True):
        assert pixels[:, 0, 0].tolist() == pytest.approx([label, 0.2, 0])
    assert data.source["sizes"] == {"train": 6, "holdout": 0, "test": 4}


def test_grey_images_have_one_channel_and_jpg_is_read(tmp_path):
    for split in ("train", "test"):
        picture(tmp_path / split / "a" / "0.png", 51, "L")
        picture(tmp_path / split / "b" / "0.JPG", 255, "L")
    data = load_data(tmp_path)
    assert data.input_shape == (1, 5, 6)
    np.testing.assert_allclose(data.train_inputs[:, 0, 0, 0], [0.2, 1], atol=0.01)
    picture(tmp_path / "train" / "a" / "1.png", (255, 0, 0))
    assert load_data(tmp_path).input_shape == (3, 5, 6)


def remove_test(folder):
    (folder / "test").rename(folder / "elsewhere")


def empty_class(folder):
    for path in (folder / "train" / "dog").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_test, r"test is not a folder; needed: train/<class>"),
        (empty_class, r"train/dog is empty; every class needs at least one image"),
        (lambda f: picture(f / "test" / "eel" / "0.png"), r"class 'eel' is in test/ but not in train/"),
        (lambda f: picture(f / "train" / "eel" / "0.png"), r"class 'eel' is in train/ but not in test/"),
        (
            lambda f: picture(f / "test" / "dog" / "x.png", size=(7, 5)),
            r"2 sizes: 6×5 \(10\), 7×5 \(1\); give all the same with --resize .*--resize 6x5",
        ),
        (lambda f: picture(f / "test" / "dog" / "x.png", mode="RGBA"), r"x\.png is of mode RGBA; valid"),
        (lambda f: picture(f / "test" / "dog" / "x.png", mode="I;16"), r"x\.png is of mode I;16; valid"),
        (lambda f: (f / "test" / "dog" / "x.bmp").write_text(""), r"x\.bmp is not an image of a valid kind: \.png"),
        (lambda f: (f / "test" / "readme").write_text(""), r"test/readme is not a class folder"),
    ],
)
def test_bad_folders(folder, change, message):
    change(folder)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_data(folder)
    assert "\n" not in str(caught.value)


def test_one_class_is_not_enough(tmp_path):
    for split in ("train", "test"):
        picture(tmp_path / split / "a" / "0.png")
    with pytest.raises(InvalidInputError, match="at least 2 classes, got 1"):
        load_data(tmp_path)


def test_damaged_images_are_named(folder):
    path = folder / "train" / "dog" / "1.png"
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:30], whole[:70]):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"train/dog/1\.png .*skip_bad"):
            load_data(folder)
