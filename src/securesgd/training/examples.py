"""The training examples as the loop sees them: a number of them, and the batch at given indices."""

__all__ = ["Examples", "data_digest", "examples_of"]

import hashlib
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from securesgd.errors import InvalidInputError

_DIGEST_BATCH = 1000


class Examples(Protocol):
    """A fixed collection of (input, target) pairs."""

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at `indices`, stacked; an empty batch keeps the examples' shape."""


class TensorExamples:
    """Examples held as two tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise InvalidInputError(f"{len(inputs)} inputs but {len(targets)} targets: there must be one per example")
        if len(inputs) == 0:
            raise InvalidInputError("there are no training examples")
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            bad = int((~torch.isfinite(inputs.flatten(1) if inputs.dim() > 1 else inputs[:, None])).any(1).nonzero()[0])
            raise InvalidInputError(f"the input of example {bad} is not finite; inputs must be finite numbers")
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        index = torch.as_tensor(indices, dtype=torch.long, device=self.inputs.device)
        return self.inputs[index], self.targets[index.to(self.targets.device)]


class DatasetExamples:
    """Examples of any map-style torch Dataset of (input, target) pairs.

    Assumes: dataset[i] is always the same, or random only through torch's own generator, which the loop seeds.
    """

    def __init__(self, dataset: Any) -> None:
        if len(dataset) == 0:
            raise InvalidInputError("there are no training examples")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        chosen = [self.dataset[int(i)] for i in indices] or [self.dataset[0]]
        inputs, targets = default_collate(chosen)
        count = len(indices)
        return inputs[:count], targets[:count]


def examples_of(data: "Dataset[Any] | tuple[Tensor, Tensor]") -> Examples:
    """Return `data` as Examples: a pair of tensors, a TensorDataset or any map-style Dataset of pairs."""
    if isinstance(data, TensorDataset):
        data = tuple(data.tensors)  # type: ignore[assignment]
    if isinstance(data, tuple | list):
        if len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
            raise InvalidInputError("training data must be a pair (inputs, targets) of tensors, or a torch Dataset")
        return TensorExamples(*data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InvalidInputError(f"training data must be a pair of tensors or a map-style Dataset, got {type(data)}")
    return DatasetExamples(data)


def data_digest(examples: Examples) -> str:
    """Return a digest of the data, for the *secret* file only: it would let a reader test guesses of the data.

    Reads every example once. Random augmentations are read under a fixed seed of torch's generator.
    """
    digest = hashlib.sha256(str(len(examples)).encode())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for start in range(0, len(examples), _DIGEST_BATCH):
            for tensor in examples.batch(np.arange(start, min(start + _DIGEST_BATCH, len(examples)))):
                digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
