"""A loss of each example: a function of the model's outputs, or one that runs the model itself, as often as it likes.

`loss(outputs, targets)` is the usual form. `loss(model, inputs, targets)` may pass an example through the model several
times: two views that are to agree, a penalty on the gradient for the input. Its gradients are computed one example at a
time, since the fast path sees one pass only.
"""

__all__ = ["Loss", "loss_code", "per_example", "row_losses", "runs_model"]

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from securesgd.errors import InvalidInputError

Loss = Callable[..., Tensor]
"""loss(outputs, targets) or loss(model, inputs, targets), with one value per row."""


def runs_model(loss: Loss) -> bool:
    """Return whether `loss` takes (model, inputs, targets): three arguments that have no default."""
    if type(loss) is FunctionType and not loss.__dict__:  # what follows, at a hundredth of the cost
        return loss.__code__.co_argcount - len(loss.__defaults__ or ()) == 3
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 3


def row_losses(loss: Loss, model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each row, by whichever form `loss` has."""
    return loss(model, inputs, targets) if runs_model(loss) else loss(model(inputs), targets)


def per_example(loss: Loss) -> Loss:
    """Return `loss`, in the form it has, with a check that it returns one value per row.

    Raises: InvalidInputError, when called, if it does not.
    """

    def checked(values: Any, targets: Tensor) -> Tensor:
        if not isinstance(values, Tensor) or values.shape != targets.shape[:1]:
            what = f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise InvalidInputError(
                f"loss returned {what} for {len(targets)} rows: it must return one loss per row (reduction='none')"
            )
        return values

    if runs_model(loss):
        return lambda model, inputs, targets: checked(loss(model, inputs, targets), targets)
    return lambda outputs, targets: checked(loss(outputs, targets), targets)


def loss_code(loss: Loss) -> object:
    """Return what identifies the code of a loss, whatever numbers it was made with: two of one lambda have the same."""
    if isinstance(loss, functools.partial):
        return loss_code(loss.func)
    return getattr(loss, "__code__", None) or type(loss)
