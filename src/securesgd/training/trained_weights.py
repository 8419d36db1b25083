"""Weights that depend on data: the ledger of a run that started from them would not count where they come from.

Known are the weights that runs of this process have left, in memory only, and the models that runs are open for.
"""

__all__ = ["note_training", "open_training", "remember_weights", "require_first_training"]

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import InvalidInputError
from securesgd.runtime.tensors import Checkpoint, tensors_digest
from securesgd.training.examples import as_examples, data_digest
from securesgd.training.state import weights

_TRAINED: set[tuple[str, str]] = set()
"""Digests of weights that depend on data, with those of the data."""
_OPEN: "weakref.WeakKeyDictionary[nn.Module, Path]" = weakref.WeakKeyDictionary()
"""Models in training, with the folders of their runs."""


def require_first_training(model: nn.Module, data: str) -> None:
    """Return if the weights are not of an earlier run of this process on the data with this digest.

    Raises: InvalidInputError: the new run would start from weights that depend on its data, at a cost that only the
    ledger of the earlier run has.
    """
    if (tensors_digest(weights(model)), data) in _TRAINED:
        raise InvalidInputError(
            "the model was trained on these data before, and a new ledger would not count that; valid: a model with "
            "new weights, or resume=True for a run that was interrupted"
        )


def note_training(model: nn.Module, data: str, begin: Checkpoint) -> None:
    """Remember the weights that a run leaves in the model, unless it has not moved them yet."""
    digest = tensors_digest(weights(model))
    first = {name.removeprefix("model."): t for name, t in begin.tensors.items() if name.startswith("model.")}
    if int(begin.record["step"]) > 0 or digest != tensors_digest(first):
        _TRAINED.add((digest, data))


def remember_weights(model: nn.Module, data: "Dataset[Any] | tuple[Tensor | StoredInputs, Tensor]") -> None:
    """Remember that the weights in `model`, loaded from a finished run, depend on `data`: `train` then refuses both."""
    _TRAINED.add((tensors_digest(weights(model)), data_digest(as_examples(data))))


@contextmanager
def open_training(model: nn.Module, folder: Path) -> Iterator[None]:
    """Keep other runs from the model within the context. Raises: InvalidInputError if one is open for it."""
    if model in _OPEN:
        raise InvalidInputError(
            f"the model is being trained in {_OPEN[model]}; valid: finish() or close() that training first"
        )
    _OPEN[model] = folder
    try:
        yield
    finally:
        _OPEN.pop(model, None)
