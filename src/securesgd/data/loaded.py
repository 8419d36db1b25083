"""The record every stage after this one reads: tensors, their split, and where they came from."""

__all__ = ["LoadedData", "loaded_data"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securesgd.data.arrays import CheckedArrays
from securesgd.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedData:
    """A data set in memory.

    *_inputs    float32 in [0, 1], (n, *input_shape); *_targets int64 in 0..classes-1
    holdout_*   taken out of the training examples for validation, None if none was asked for; whatever is chosen by
                looking at them is not covered by the privacy of the training run
    source      what a run folder records: name, how it was split, the seed of the holdout, and the sizes. Nothing in
                it but the sizes depends on the examples, so it can be published beside a private model; where the
                claim is add-or-remove-one, without those of training and holdout
    """

    name: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    holdout_inputs: Tensor | None
    holdout_targets: Tensor | None
    source: dict[str, Any]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def loaded_data(arrays: CheckedArrays, *, name: str, split: str, holdout: int, seed: int) -> LoadedData:
    """Return the arrays as tensors, `holdout` random training examples set apart with `seed`; the others keep order.

    Raises: InvalidInputError if holdout is not in 0..training examples - 1, or the seed negative.
    """
    examples = len(arrays.train_inputs)
    if not 0 <= holdout < examples:
        raise InvalidInputError(f"holdout must be in 0..{examples - 1} for {examples} training examples, got {holdout}")
    if seed < 0:
        raise InvalidInputError(f"seed must be >= 0, got {seed}")
    apart = np.zeros(examples, bool)
    apart[np.random.default_rng(seed).permutation(examples)[:holdout]] = True
    kept = slice(None) if holdout == 0 else ~apart
    train_inputs = _tensor(arrays.train_inputs[kept])
    return LoadedData(
        name=name,
        class_names=arrays.class_names,
        input_shape=tuple(train_inputs.shape[1:]),
        train_inputs=train_inputs,
        train_targets=torch.tensor(arrays.train_targets[kept]),
        test_inputs=_tensor(arrays.test_inputs),
        test_targets=torch.tensor(arrays.test_targets),
        holdout_inputs=_tensor(arrays.train_inputs[apart]) if holdout else None,
        holdout_targets=torch.tensor(arrays.train_targets[apart]) if holdout else None,
        source={
            "name": name,
            "split": split,
            "seed": seed,
            "sizes": {"train": examples - holdout, "holdout": holdout, "test": len(arrays.test_inputs)},
        },
    )


def _tensor(pixels: NDArray[Any]) -> Tensor:
    """Return a float32 tensor in [0, 1] of its own memory."""
    tensor = torch.empty(pixels.shape, dtype=torch.float32)
    tensor.numpy()[:] = pixels
    return tensor.div_(255) if pixels.dtype == np.uint8 else tensor
