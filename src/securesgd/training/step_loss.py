"""The loss of a step in a loop of the user's own: which one it is, and a check of the first before it is paid for."""

__all__ = ["check_first_loss", "loss_of_each_step", "loss_of_step", "per_example_cross_entropy"]

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securesgd.clipping.losses import Loss
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.training.batch import Batch
from securesgd.training.examples import Examples, check_examples, check_loss_of


def per_example_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example."""
    return cross_entropy(outputs, targets, reduction="none")


def loss_of_each_step(*_: Tensor) -> Tensor:
    """Stand in the fingerprint of a run whose steps get their losses one by one; `AskedSteps` records those."""
    raise NotImplementedError


def loss_of_step(model: nn.Module, loss: Loss | None) -> Loss:
    """Return the loss to use: the one given, or else the model's own, or else the cross-entropy.

    Raises: InvalidInputError if it cannot be called, or the model has a loss of its own and this is another.
    """
    if isinstance(model, IntervalNetwork):
        if loss not in (None, model.loss):
            raise InvalidInputError("loss is given; valid for an IntervalNetwork: its own, which has the bounds in it")
        return model.loss
    if loss is not None and not callable(loss):
        raise InvalidInputError(f"loss is a {type(loss).__name__}; valid: a function of outputs and targets")
    return loss or per_example_cross_entropy


def check_first_loss(examples: Examples, batch: Batch, model: nn.Module, loss: Loss) -> None:
    """Return if the loss can be computed for the rows of a batch, and all labels are classes if it is for classes.

    It precedes the first step, so that nothing is paid for a mistake. Raises: InvalidInputError.
    """
    if loss is per_example_cross_entropy:
        check_examples(examples, model, labelled=True)
    if len(batch):
        check_loss_of(batch.inputs[:2], batch.targets[:2], model, loss)
