import json

import numpy as np
import pytest
import torch

from securesgd.errors import DamagedFileError
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors

TENSORS = {
    "a": torch.arange(12.0).reshape(3, 4).T,
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "checkpoint.safetensors"
    save_tensors(file, Checkpoint(TENSORS, {"step": 3, "names": ["x", "y"]}))
    return file


def test_round_trip(path):
    loaded = load_tensors(path)
    assert loaded.record == {"step": 3, "names": ["x", "y"]}
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)


def test_every_damaged_byte_is_noticed_and_left_alone(path):
    whole = path.read_bytes()
    for position in np.random.default_rng(0).choice(len(whole), 120, replace=False):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        try:
            loaded = load_tensors(path)
        except DamagedFileError:
            pass
        else:  # white space of the header may change without changing anything it says
            assert loaded.record == {"step": 3, "names": ["x", "y"]}
            assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in TENSORS.items())
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("content", [b"", b"abc", b"\x00" * 100, b"PK\x03\x04"])
def test_foreign_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        load_tensors(path)


def test_truncation_at_any_length_is_noticed(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError):
            load_tensors(path)


def test_missing_and_without_checksum(path, tmp_path):
    with pytest.raises(DamagedFileError, match="is missing"):
        load_tensors(tmp_path / "none")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, path, {"record": json.dumps({})})
    with pytest.raises(DamagedFileError, match="checksum"):
        load_tensors(path)


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_tensors(path, Checkpoint({"a": torch.zeros(2)}, {}))
    assert path.read_bytes() == before
