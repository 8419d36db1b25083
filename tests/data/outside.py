"""Data sets as a user's own package defines them: functions that are named by import path."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

from securesgd.data.load import from_datasets


def arrays():
    """40 + 20 grey 8×8 images of two classes: dark and bright."""
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = (generator.random((60, 8, 8)) * 0.4 + 0.5 * labels[:, None, None]).astype(np.float32)
    return images[:40], labels[:40], images[40:], labels[40:]


def datasets():
    """The same images as two torch Datasets."""
    x_train, y_train, x_test, y_test = map(torch.from_numpy, arrays())
    return TensorDataset(x_train[:, None], y_train), TensorDataset(x_test[:, None], y_test)


def loaded():
    """The same images with class names."""
    return from_datasets(*datasets(), ("dark", "bright"))


def with_holdout():
    """Data that was split already."""
    return from_datasets(*datasets(), 2, holdout=5)


def inputs_only():
    """What is no data set."""
    return arrays()[0]


def wrong_values():
    """Pixels beyond 1."""
    x_train, y_train, x_test, y_test = arrays()
    return x_train + 1, y_train, x_test, y_test


def fails():
    """A function with a bug."""
    raise KeyError("pictures")
