"""scikit-learn's 8×8 digits, split once and for all."""

__all__ = ["digits_arrays"]

import hashlib

import numpy as np

from securesgd.data.arrays import CheckedArrays, checked_arrays
from securesgd.data.catalog import DataSet
from securesgd.errors import DamagedFileError

_SPLIT_SEED = 0
_SHA256 = "8801edd8f0184d7683b7b6efb968867d421e35eb80d954f2bd54e204409c2d45"


def digits_arrays(dataset: DataSet) -> CheckedArrays:
    """Return the digits in a fixed order drawn with a fixed seed, the first 1,500 as training examples.

    Guarantee: the same arrays on every machine and version; a checksum of the permuted data is compared.
    Raises: DamagedFileError if scikit-learn's copy or numpy's permutation is not the one this split was made with.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    levels, targets = images[order].astype(np.uint8), labels[order].astype(np.int64)  # 0..16
    digest = hashlib.sha256(levels.tobytes() + targets.astype("<i8").tobytes()).hexdigest()
    if digest != _SHA256:
        raise DamagedFileError(f"digits: the split has sha256 {digest[:12]}… instead of {_SHA256[:12]}…")
    inputs = (levels / np.float32(16)).reshape(-1, *dataset.input_shape)
    cut = dataset.train_size
    return checked_arrays((inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:]), dataset.class_names)
