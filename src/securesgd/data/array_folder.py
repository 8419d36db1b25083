"""A folder of .npy files, for data larger than memory: training inputs are read as they are sampled."""

__all__ = ["is_array_folder", "read_array_folder"]

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.arrays import DataArrays, require_memory, validate_arrays
from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular

_NAMES = ("train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy")


def is_array_folder(path: Path) -> bool:
    """Return whether a path is a folder with arrays in it: it has a train_x.npy."""
    return (path / _NAMES[0]).exists()


def read_array_folder(folder: Path) -> DataArrays:
    """Return train_x.npy, train_y.npy, test_x.npy and test_y.npy of a folder, validated; train_x.npy stays on disk.

    Labels and test examples are held in memory. No pickle is read, so the files cannot run code.
    Raises: InvalidInputError for a missing file or what `load_data` refuses; DamagedFileError if one cannot be read.
    """
    missing = [name for name in _NAMES if not (folder / name).exists()]
    if missing:
        raise InvalidInputError(f"{folder} lacks {', '.join(missing)}; needed: {', '.join(_NAMES)}")
    inputs = StoredInputs(folder / _NAMES[0])
    train_y, test_x, test_y = (_load(folder / name) for name in _NAMES[1:])
    return validate_arrays((inputs, train_y), (test_x, test_y), None, str(folder))


def _load(path: Path) -> NDArray[Any]:
    require_memory(path.stat().st_size, str(path))
    try:
        with open_regular(path) as file:
            array: NDArray[Any] = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive")
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFileError(f"{path} cannot be read as .npy without pickle: {error}") from None
    return array
