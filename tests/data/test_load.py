"""Loading: pixels in [0, 1], the split recorded, every wrong input one clear line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from securesgd.data.catalog import CATALOG
from securesgd.data.load import from_datasets, load_data
from securesgd.errors import DamagedFileError, DataUnavailableError, InvalidInputError


def images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def npz(path, **changes):
    arrays = {
        "x_train": images(12, 5, 6),
        "y_train": np.arange(12) % 3,
        "x_test": images(6, 5, 6, seed=1),
        "y_test": np.arange(6) % 3,
        **changes,
    }
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def test_digits_are_split_once_and_for_all():
    data = load_data("digits")
    assert data.train_inputs.shape == (1_500, 1, 8, 8)
    assert data.test_inputs.shape == (297, 1, 8, 8)
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.dtype == torch.int64
    assert (data.train_inputs.min().item(), data.train_inputs.max().item()) == (0, 1)
    assert data.classes == 10
    assert data.input_shape == CATALOG["digits"].input_shape
    assert data.holdout_inputs is None
    assert data.train_targets[:8].tolist() == load_data("digits", seed=5).train_targets[:8].tolist()
    everything = torch.cat([data.train_inputs, data.test_inputs]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 1_797  # no image of the test set is a training image


def test_the_holdout_is_taken_out_of_train_and_recorded():
    whole, data, same, other = load_data("digits"), *(load_data("digits", holdout=300, seed=seed) for seed in (1, 1, 2))
    assert (len(data.train_inputs), len(data.holdout_inputs)) == (1_200, 300)
    together = torch.cat([data.train_inputs, data.holdout_inputs]).flatten(1)
    assert torch.equal(torch.unique(together, dim=0), torch.unique(whole.train_inputs.flatten(1), dim=0))
    assert torch.equal(data.test_inputs, whole.test_inputs)
    assert torch.equal(data.holdout_inputs, same.holdout_inputs)
    assert not torch.equal(data.holdout_inputs, other.holdout_inputs)
    assert data.source == {
        "name": "digits",
        "split": "fixed permutation of scikit-learn's digits",
        "seed": 1,
        "sizes": {"train": 1_200, "holdout": 300, "test": 297},
    }
    json.dumps(data.source)
    pairs = zip(whole.train_inputs, whole.train_targets, strict=True)
    labels = {tuple(image.flatten().tolist()): label.item() for image, label in pairs}
    for image, label in zip(data.holdout_inputs, data.holdout_targets, strict=True):
        assert labels[tuple(image.flatten().tolist())] == label.item()


def test_the_record_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_data("digits").name = "other"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"holdout": 1_500}, "holdout must be in 0..1499 for 1500 training examples, got 1500"),
        ({"holdout": -1}, "got -1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_bad_holdouts(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        load_data("digits", **arguments)


def test_unknown_names_and_absent_data():
    with pytest.raises(InvalidInputError, match=r"unknown data set 'cifar': did you mean 'cifar10'\?.*\.npz"):
        load_data("cifar")
    with pytest.raises(DataUnavailableError, match="mnist is not on this machine: run `securesgd data fetch mnist`"):
        load_data("mnist")
    with pytest.raises(InvalidInputError, match="'mnist'"):
        load_data(Path("mnist"))  # a Path is a path


def test_npz(tmp_path):
    x = images(12, 5, 6)
    data = load_data(npz(tmp_path / "a.npz"), holdout=2)
    assert data.input_shape == (1, 5, 6)
    assert data.class_names == ("0", "1", "2")
    assert torch.equal(load_data(tmp_path / "a.npz").train_inputs, torch.tensor(x[:, None] / np.float32(255)))
    assert data.source["name"] == str(tmp_path / "a.npz")
    named = load_data(str(npz(tmp_path / "b.npz", classes=np.array(["cat", "dog", "eel"]))))
    assert named.class_names == ("cat", "dog", "eel")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 6), (1, 5, 6)), ((3, 5, 6), (3, 5, 6)), ((5, 6, 3), (3, 5, 6)), ((5, 6, 1), (1, 5, 6)), ((7,), (7,))],
)
def test_npz_shapes(tmp_path, shape, expected):
    x = images(12, *shape) / 255.0
    data = load_data(npz(tmp_path / "a.npz", x_train=x, x_test=x[:6]))
    assert data.input_shape == expected
    assert data.train_inputs.dtype == torch.float32
    ordered = x.transpose(0, 3, 1, 2) if shape[-1] in (1, 3) and len(shape) == 3 else x
    np.testing.assert_allclose(data.train_inputs.numpy().ravel(), ordered.ravel(), rtol=1e-6)


FLOATS = images(12, 5, 6) / 255.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"lacks y_test; it holds x_train, y_train, x_test"),
        ({"x_train": images(11, 5, 6)}, r"y_train has shape \(12,\); it needs one label per example: \(11,\)"),
        ({"x_test": images(6, 6, 5)}, r"x_train holds inputs of shape \(1, 5, 6\) but x_test of \(1, 6, 5\)"),
        ({"x_train": images(12)}, r"x_train has shape \(12,\); valid: \(n, height, width\)"),
        ({"x_train": images(12, 2, 5, 6)}, r"x_train has shape \(12, 2, 5, 6\)"),
        ({"x_train": images(0, 5, 6), "y_train": np.arange(0)}, r"x_train has shape \(0, 1, 5, 6\)"),
        ({"x_train": FLOATS.astype(int)}, "x_train holds int64; valid: uint8"),
        ({"x_train": FLOATS * 255}, r"x_train holds values in \[0, 255\]; valid"),
        ({"x_train": FLOATS - 0.5}, r"x_train holds values in \[-0.5, 0.5\]"),
        ({"x_train": np.where(FLOATS[3, 2, 1] == FLOATS, np.nan, FLOATS)}, "x_train holds NaN"),
        ({"x_train": np.where(FLOATS[3, 2, 1] == FLOATS, np.inf, FLOATS)}, r"x_train holds values in \[.*inf\]"),
        ({"y_train": np.arange(12) % 3 - 1}, r"y_train\[0\] is -1; labels must be in 0..1"),
        ({"y_test": np.full(6, 7)}, r"y_test\[0\] is 7; labels must be in 0..2"),
        ({"y_train": np.arange(12) % 3 * 2}, "class '1' has no training example"),
        ({"classes": np.array(5)}, "class '3' has no training example"),
        ({"classes": np.array(["a", "b"])}, r"y_train\[2\] is 2; labels must be in 0..1"),
        ({"classes": np.array(["a", "b", "a"])}, "class names must differ, got a, b, a"),
        ({"classes": np.array([1.5])}, r"classes has shape \(1,\) of float64"),
        ({"y_train": np.zeros(12, int)}, "at least 2 classes, got 1"),
        ({"y_train": np.arange(12) % 3 * 1.0}, "y_train holds float64; labels must be whole numbers"),
        ({"y_train": np.eye(3)[np.arange(12) % 3]}, r"y_train has shape \(12, 3\)"),
    ],
)
def test_bad_npz_is_one_line_with_the_file(tmp_path, changes, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_data(npz(tmp_path / "a.npz", **changes))
    assert "\n" not in str(caught.value)


def test_npz_files_that_are_none(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(InvalidInputError, match=r"a\.npz does not exist"):
        load_data(path)
    whole = npz(path).read_bytes()
    np.save(tmp_path / "b.npy", np.arange(3))
    for content in (b"", b"text", whole[:700], whole[:-300], (tmp_path / "b.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"a\.npz"):
            load_data(path)


def test_a_pickle_in_an_npz_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    trapped = np.array([Trap()], dtype=object)
    with pytest.raises(DamagedFileError, match="without pickle"):
        load_data(npz(tmp_path / "a.npz", x_train=trapped))
    assert not (tmp_path / "sprung").exists()


class Pairs(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_any_torch_dataset():
    x, y = torch.rand(10, 3, 4, 4), torch.arange(10) % 2
    data = from_datasets(TensorDataset(x, y), TensorDataset(x[:4], y[:4]), ["a", "b"], name="mine", holdout=3, seed=4)
    assert data.class_names == ("a", "b")
    assert data.source["sizes"] == {"train": 7, "holdout": 3, "test": 4}
    assert torch.equal(data.test_inputs, x[:4])
    pictures = Pairs(*((Image.fromarray(image), i % 2) for i, image in enumerate(images(6, 4, 4, 3))))
    from_pictures = from_datasets(pictures, pictures, 2)
    assert from_pictures.input_shape == (3, 4, 4)
    assert from_pictures.train_inputs.max() <= 1
    assert x.data_ptr() != data.test_inputs.data_ptr()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the train Dataset is empty"),
        ([1, 2], r"item 0 of the train Dataset is a int; needed: \(input, label\)"),
        ([(torch.rand(4), 0), (torch.rand(5), 1)], r"item 1 of the train Dataset is float32\(5,\) but item 0"),
        ([(torch.rand(4), torch.eye(2))], r"a label of shape \(2, 2\); needed: a number"),
        ([(torch.rand(4) + 1, 0), (torch.rand(4), 1)], "x_train holds values in"),
        ([(torch.rand(4), 0), (torch.rand(4), 2)], r"y_train\[1\] is 2; labels must be in 0..1"),
    ],
)
def test_bad_torch_datasets(items, message):
    fine = Pairs((torch.rand(4), 0), (torch.rand(4), 1))
    with pytest.raises(InvalidInputError, match=message):
        from_datasets(Pairs(*items), fine, 2)


def test_an_iterable_dataset_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.rand(4), 0

    with pytest.raises(InvalidInputError, match="map-style"):
        from_datasets(Stream(), Stream(), 2)
