"""A fetched data set read from its folder."""

__all__ = ["stored_arrays"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.arrays import CheckedArrays, checked_arrays
from securesgd.data.catalog import DataSet, StoredFile
from securesgd.data.cifar import batch_arrays
from securesgd.data.idx import idx_array
from securesgd.data.places import verified_bytes

_Pair = tuple[NDArray[Any], NDArray[Any]]


def stored_arrays(dataset: DataSet, folder: Path) -> CheckedArrays:
    """Return the arrays of a data set whose files are in `folder`.

    Guarantee: the decoded bytes are those whose sha256 was compared with the catalog's.
    Raises: DamagedFileError if a file is absent, cut short or different.
    """
    of_test = [file for file in dataset.files if file.name.startswith(("t10k", "test"))]
    of_train = [file for file in dataset.files if file not in of_test]
    read = _idx_pair if dataset.layout == "idx" else _cifar_pair
    return checked_arrays(read(of_train, folder), read(of_test, folder), dataset.class_names, str(folder))


def _idx_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    images, labels = sorted(files, key=lambda file: "labels" in file.name)
    return idx_array(verified_bytes(folder, images)), idx_array(verified_bytes(folder, labels))


def _cifar_pair(files: Sequence[StoredFile], folder: Path) -> _Pair:
    batches = [batch_arrays(verified_bytes(folder, file)) for file in files]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])
