"""The training examples as the loop sees them: a number of them, and the batch at given indices."""

__all__ = [
    "Examples",
    "StoredExamples",
    "as_examples",
    "check_examples",
    "check_loss",
    "check_loss_of",
    "check_range",
    "data_digest",
    "require_other_examples",
    "tensors_of",
]

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from securesgd.clipping.losses import Loss, per_example, runs_model
from securesgd.data.load import LoadedData
from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.random_state import BufferState, RandomState

_READ_BATCH = 1000
_RUN_BATCH = 100  # through the model at once


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


class StoredExamples:
    """Examples whose inputs, float32 in [0, 1] of one shape, stay on disk: a batch is read when it is asked for."""

    def __init__(self, inputs: StoredInputs, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise InvalidInputError(f"{len(inputs)} inputs but {len(targets)} targets: there must be one per example")
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return self.inputs[indices], self.targets[torch.as_tensor(indices, dtype=torch.long)]


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
        kinds = [[_kind(part) for part in example] for example in chosen]
        for i, kind in zip(indices, kinds, strict=False):
            if kind != kinds[0]:  # stacked, one float64 among float32 would change the type of all
                raise _mismatch(int(i), kind, kinds[0])
        inputs, targets = default_collate(chosen)
        count = len(indices)
        return inputs[:count], targets[:count]


def as_examples(data: "Dataset[Any] | tuple[Tensor | StoredInputs, Tensor]") -> Examples:
    """Return `data` as Examples: a pair of tensors (inputs may be on disk), or any map-style Dataset of pairs."""
    if isinstance(data, TensorDataset):
        data = tuple(data.tensors)  # type: ignore[assignment]
    if isinstance(data, tuple | list):
        inputs, targets = data if len(data) == 2 else (None, None)
        if isinstance(inputs, StoredInputs) and isinstance(targets, Tensor):
            return StoredExamples(inputs, targets)
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise InvalidInputError("training data must be a pair (inputs, targets) of tensors, or a torch Dataset")
        return TensorExamples(inputs, targets)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InvalidInputError(f"training data must be a pair of tensors or a map-style Dataset, got {type(data)}")
    return DatasetExamples(data)


def tensors_of(data: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a pair of tensors, a Dataset or the test part of a loaded data set."""
    if isinstance(data, LoadedData):
        return data.test_inputs, data.test_targets
    examples = as_examples(data)
    return examples.batch(np.arange(len(examples)))


def check_examples(examples: Examples, model: nn.Module, *, labelled: bool) -> None:
    """Return if all examples are of one shape and type, and labels and tokens within the bounds that the model sets.

    Labels (if `labelled`: they are classes for the cross-entropy) are whole numbers from 0 to the width of the model's
    output less 1. Inputs that are whole numbers are tokens below the size of the model's largest embedding; which of
    its tables they go to is decided by the model, so it is run on all of them.

    Inputs on disk were checked when they were opened, and are of one shape and type: they are not read again.

    The outcome depends on the data and is not a release: the check precedes the run, for whoever holds the data, with
    nothing written yet. During the run, an invalid index would be an error that reveals a record.

    Raises:
        InvalidInputError: naming the first example outside, its value and the bounds.
    """
    if isinstance(examples, StoredExamples):
        if labelled:
            _require_labels(examples.targets, _output_width(model, examples), 0)
        return
    vocabulary = max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)
    classes = _output_width(model, examples) if labelled else None
    first: list[tuple[Any, ...]] | None = None
    for start, inputs, targets in _read_all(examples):
        kind = [(part.dtype, *part.shape[1:]) for part in (inputs, targets)]
        first = first or kind
        if kind != first:
            raise _mismatch(start, kind, first)
        if classes is not None:
            _require_labels(targets, classes, start)
        if vocabulary is not None and not inputs.is_floating_point():
            _require_range(inputs, "token", vocabulary, start)
        if not inputs.is_floating_point():
            _require_outputs(model, inputs, start)


def check_range(examples: Examples, input_range: tuple[float, float]) -> None:
    """Return if all inputs are within a range: certificates are about inputs within it, and would refuse others.

    As `check_examples`, it precedes the run. Raises: InvalidInputError naming the first example outside, with values.
    """
    low, high = input_range
    if isinstance(examples, StoredExamples) and low <= 0 and high >= 1:
        return
    for start, inputs, _ in _read_all(examples):
        if not inputs.is_floating_point():
            return
        outside = ((inputs < low) | (inputs > high)).flatten(1).any(1).nonzero()
        if len(outside):
            row = int(outside[0])
            raise InvalidInputError(
                f"the input of example {start + row} has values from {inputs[row].min():g} to {inputs[row].max():g}; "
                f"valid: {low:g} to {high:g}, so scale inputs there, not to mean 0, or say input_range=None if any "
                "numbers are meant"
            )


def check_loss(examples: Examples, model: nn.Module, loss: Loss) -> None:
    """Return if the loss can be computed for the first examples and their targets, one value for each.

    A mistake in it is reported here, with nothing written yet, and not after the first steps were reserved.
    Raises: InvalidInputError if torch or the loss refuses them, or there is not one value per example.
    """
    if not callable(loss):
        raise InvalidInputError(f"loss is a {type(loss).__name__}; valid: a function of outputs and targets")
    check_loss_of(*examples.batch(np.arange(min(2, len(examples)))), model, loss)


def check_loss_of(inputs: Tensor, targets: Tensor, model: nn.Module, loss: Loss) -> None:
    """Return if the loss can be computed for these inputs and targets, as `check_loss` for the first examples."""
    device = next(model.parameters()).device
    inputs, targets = inputs.to(device), targets.to(device)
    with _restored(model):
        model.train()
        by_itself = runs_model(loss)
        outputs = inputs if by_itself else _outputs(model, inputs)
        try:
            per_example(loss)(*([model] if by_itself else []), outputs, targets)
        except InvalidInputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            what = "inputs" if by_itself else "outputs"
            raise InvalidInputError(
                f"the loss cannot be computed from {what} of shape {_shape(outputs)} and targets of shape "
                f"{_shape(targets)}, type {targets.dtype}: {error}"
            ) from error


def _outputs(model: nn.Module, inputs: Tensor) -> Any:
    """Return the model's outputs. Raises: InvalidInputError if it does not take inputs of this shape and type."""
    if isinstance(model, NoisyNetwork) and tuple(inputs.shape[1:]) != model.input_shape:
        raise InvalidInputError(
            f"inputs have shape {list(inputs.shape[1:])}; valid: {list(model.input_shape)}, as the NoisyNetwork was "
            "built for"
        )
    try:
        return model(inputs)
    except InvalidInputError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the model does not take inputs of shape {list(inputs.shape[1:])} and type {inputs.dtype}: {error}"
        ) from error


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _kind(part: Any) -> tuple[Any, ...]:
    """Return what examples must have in common to be stacked without a change of shape or type."""
    return type(part), *(getattr(part, name, None) for name in ("shape", "dtype"))


def _mismatch(example: int, kind: Any, first: Any) -> InvalidInputError:
    return InvalidInputError(f"example {example} is {kind}, others are {first}: all must have one shape and type")


def _require_outputs(model: nn.Module, tokens: Tensor, start: int) -> None:
    """Return if the model has an output for all of these. Raises: InvalidInputError for a token that a table lacks."""
    device = next(model.parameters()).device
    for at in range(0, len(tokens), _RUN_BATCH):
        piece = tokens[at : at + _RUN_BATCH].to(device)
        try:
            with _eval_mode(model):
                model(piece)
        except (IndexError, RuntimeError) as error:
            raise InvalidInputError(
                f"the model does not take examples {start + at} to {start + at + len(piece) - 1}: {error}"
            ) from error


def _require_labels(targets: Tensor, classes: int, start: int) -> None:
    if not targets.is_floating_point():
        _require_range(targets, "label", classes, start)
    elif targets.shape[1:2] != (classes,):
        raise InvalidInputError(f"labels are {targets.dtype}: they must be whole numbers from 0 to {classes - 1}")


def _require_range(values: Tensor, what: str, count: int, start: int) -> None:
    outside = ((values < 0) | (values >= count)).reshape(len(values), -1)
    if bool(outside.any()):
        example = int(outside.any(dim=1).nonzero()[0])
        value = values.reshape(len(values), -1)[example][outside[example]][0].item()
        raise InvalidInputError(f"the {what} of example {start + example} is {value}: valid are 0 to {count - 1}")


def _output_width(model: nn.Module, examples: Examples) -> int:
    """Return the number of classes of the model, from its output for an input of zeros."""
    parameter = next(model.parameters())
    inputs, _ = examples.batch(np.arange(1))
    with _eval_mode(model):
        outputs: Tensor = _outputs(model, torch.zeros_like(inputs, device=parameter.device))
    if outputs.dim() < 2:
        raise InvalidInputError(f"the model's output has shape {list(outputs.shape)}: it must be [batch, classes]")
    return outputs.shape[1]


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode without gradients; afterwards restore its modes, buffers and generators."""
    with _restored(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the model's modes, buffers and generators at the end."""
    modes = [(module, module.training) for module in model.modules()]
    random, buffers = RandomState.capture(model), BufferState.capture(model)
    try:
        yield
    finally:
        random.restore()
        buffers.restore()
        for module, training in modes:
            module.training = training


def _read_all(examples: Examples) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (number of the first, inputs, targets) of all examples, random augmentations under a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for start in range(0, len(examples), _READ_BATCH):
            yield start, *examples.batch(np.arange(start, min(start + _READ_BATCH, len(examples))))


def data_digest(examples: Examples) -> str:
    """Return a digest of the data, for the *secret* file only: it would let a reader test guesses of the data.

    Reads every example once. Random augmentations are read under a fixed seed of torch's generator.
    """
    digest = hashlib.sha256(str(len(examples)).encode())
    for _, *tensors in _read_all(examples):
        for tensor in tensors:
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def require_other_examples(private: Examples, inputs: Tensor, targets: Tensor) -> None:
    """Return if examples that are said to be public are not the private ones: half of these are not among them.

    As `check_examples`, it precedes the run. It finds a mistake, the same data under another name; it proves nothing.
    Raises: InvalidInputError if they are.
    """
    public, found = set(_row_digests(inputs, targets)), 0
    for _, *rows in _read_all(private):
        if rows[0].shape[1:] != inputs.shape[1:]:
            return
        found += sum(digest in public for digest in _row_digests(*rows))
    if 2 * found >= len(private):
        raise InvalidInputError(
            f"{found} of the {len(private)} private examples are in public_dataset, too; valid: another data set"
        )


def _row_digests(inputs: Tensor, targets: Tensor) -> Iterator[bytes]:
    for row, target in zip(inputs.detach().cpu().float().numpy(), targets.detach().cpu().double().numpy(), strict=True):
        yield hashlib.blake2b(row.tobytes() + target.tobytes(), digest_size=16).digest()
