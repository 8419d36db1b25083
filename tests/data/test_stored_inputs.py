"""Data that stay on disk: the same bits as in memory, a run with the same weights, and little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import securesgd as ss
from securesgd.data.load import load_data
from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.training.examples import as_examples, data_digest

NAMES = ("train_x", "train_y", "test_x", "test_y")


def arrays(kind="uint8", shape=(8, 8), train=120, test=30):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (train + test, *shape), dtype=np.uint8)
    x = x if kind == "uint8" else (x / 255).astype(kind)
    y = np.arange(train + test) % 3
    return x[:train], y[:train], x[train:], y[train:]


def save(folder, parts):
    folder.mkdir(exist_ok=True)
    for name, part in zip(NAMES, parts, strict=True):
        np.save(folder / f"{name}.npy", part)
    return folder


def save_npz(path, parts):
    np.savez(path, **dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)))
    return path


@pytest.mark.parametrize("holdout", [0, 17])
@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(8, 8), (6, 5, 3), (3, 6, 5), (7,)])
def test_a_folder_of_arrays_has_the_bits_of_a_file_in_memory(tmp_path, kind, shape, holdout):
    parts = arrays(kind, shape)
    stored = load_data(save(tmp_path / "arrays", parts), holdout=holdout, seed=4)
    memory = load_data(save_npz(tmp_path / "all.npz", parts), holdout=holdout, seed=4)
    assert isinstance(stored.train_inputs, StoredInputs)
    assert stored.train_inputs.shape == memory.train_inputs.shape
    assert stored.input_shape == memory.input_shape
    rows = np.array([5, 6, 7, 0, 99, 5, 40])
    for part in (slice(None), slice(3, 50), rows, torch.as_tensor(rows), np.arange(len(memory.train_inputs)) % 2 == 0):
        assert torch.equal(stored.train_inputs[part], memory.train_inputs[part])
    assert stored.train_inputs[rows[:0]].shape == memory.train_inputs[rows[:0]].shape
    assert torch.equal(stored.train_targets, memory.train_targets)
    assert torch.equal(stored.test_inputs, memory.test_inputs)
    if holdout:
        assert torch.equal(stored.holdout_inputs, memory.holdout_inputs)
    digests = [data_digest(as_examples((data.train_inputs, data.train_targets))) for data in (stored, memory)]
    assert digests[0] == digests[1]


def test_a_run_has_the_same_weights_from_disk_as_from_memory(tmp_path):
    settings = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 20, "steps": 6, "noise_seed": 1}
    weights = []
    for name, place in (
        ("disk", save(tmp_path / "arrays", arrays())),
        ("memory", save_npz(tmp_path / "all.npz", arrays())),
    ):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        run = ss.train(model, str(place), out=tmp_path / name, **settings)
        weights.append(run.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def changed(folder, name, content):
    np.save(folder / f"{name}.npy", content)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda f: (f / "test_y.npy").unlink(), InvalidInputError, "lacks test_y.npy"),
        (lambda f: os.truncate(f / "train_x.npy", 5000), DamagedFileError, "has 5,000 bytes, its header says"),
        (lambda f: (f / "train_x.npy").write_bytes(b"nothing"), DamagedFileError, "cannot be read as .npy"),
        (lambda f: changed(f, "train_x", np.full((120, 8, 8), 1.5)), InvalidInputError, "in row 0; valid: uint8"),
        (lambda f: changed(f, "train_x", np.where(np.eye(120, 64), np.nan, 0.5)), InvalidInputError, "nan"),
        (lambda f: changed(f, "train_x", np.zeros((120, 8, 8), int)), InvalidInputError, "holds int64"),
        (lambda f: changed(f, "train_x", np.asfortranarray(np.zeros((120, 8, 8)))), InvalidInputError, "by columns"),
        (lambda f: changed(f, "train_x", np.zeros((120, 8, 9), np.uint8)), InvalidInputError, "must be the same"),
        (lambda f: changed(f, "train_y", np.arange(119) % 3), InvalidInputError, "one label per example"),
        (lambda f: changed(f, "train_y", np.arange(120) % 3 * 2), InvalidInputError, "no training example"),
        (lambda f: changed(f, "train_x", np.zeros((0, 8, 8), np.uint8)), InvalidInputError, "none of them 0"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, damage, error, message):
    folder = save(tmp_path / "arrays", arrays())
    damage(folder)
    with pytest.raises(error) as caught:
        load_data(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_short_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    loaded = load_data(save(tmp_path / "arrays", arrays()))
    os.truncate(tmp_path / "arrays" / "train_x.npy", 4000)
    with pytest.raises(DamagedFileError, match="was cut short"):
        loaded.train_inputs[slice(None)]


_PROGRAM = """
import json, resource, sys, torch
import securesgd as ss
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
run = ss.train(model, sys.argv[1], out=sys.argv[2], noise_multiplier=1.0, delta=1e-8, batch_size=256, steps=5)
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def peak_memory(folder, out):
    """The largest resident memory, mapped files included, of a process that trains on the folder."""
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])["peak"]


def write_large(folder, examples):
    """Write this many images without holding them."""
    save(folder, arrays(shape=(28, 28)))
    block = np.random.default_rng(0).integers(0, 256, (10_000, 28, 28), dtype=np.uint8)
    with Path(folder / "train_x.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (examples, 28, 28)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(examples // len(block)):
            file.write(block.data)
    for name, count in (("train_y", examples), ("test_y", 30)):
        np.save(folder / f"{name}.npy", np.arange(count) % 10)
    return folder


@pytest.mark.slow
def test_half_a_million_images_take_less_memory_than_a_tenth_of_them_as_numbers(tmp_path):
    """In memory they are 1.6 GB; the rest is torch itself, here measured with 10,000 images."""
    few = peak_memory(write_large(tmp_path / "few", 10_000), tmp_path / "run-few")
    many = peak_memory(write_large(tmp_path / "many", 500_000), tmp_path / "run-many")
    assert many - few < 500_000 * 784 * 4 / 10
