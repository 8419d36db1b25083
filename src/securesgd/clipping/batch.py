"""A batch of examples, with all that their gradients depend on besides the model."""

__all__ = ["Batch", "require_fitting"]

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from securesgd.clipping.losses import Loss
from securesgd.clipping.rules.forms import MOST_EXAMPLES
from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import require_full_precision


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples on the model's device.

    Attributes:
        parameters: the trainable parameters by name.
        inputs: shape [examples, ...]; [examples, copies, ...] if the copies are given.
        targets: shape [examples, ...].
        loss: maps outputs and targets to one loss per row.
        copies: how often each example goes through the model, as rows that follow each other.
        copies_given: the copies of an example are inputs of their own: augmented, or noisy already.
    """

    parameters: dict[str, nn.Parameter]
    inputs: Tensor
    targets: Tensor
    loss: Loss
    copies: int
    copies_given: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, examples: slice) -> "Batch":
        """Return the batch of some of the examples."""
        return replace(self, inputs=self.inputs[examples], targets=self.targets[examples])

    def rows(self, channels_last: bool) -> tuple[Tensor, Tensor]:
        """Return inputs and targets with every example `copies` times in a row; images in the layout asked for."""
        rows, targets = self.inputs.flatten(0, 1) if self.copies_given else self.inputs, self.targets
        if self.copies > 1:
            rows = rows if self.copies_given else rows.repeat_interleave(self.copies, dim=0)
            targets = targets.repeat_interleave(self.copies, dim=0)
        if rows.dim() == 4:
            last = torch.channels_last
            rows = torch.empty_like(rows, memory_format=last).copy_(rows) if channels_last else rows.contiguous()
        return rows, targets


def require_fitting(inputs: Tensor, targets: Tensor, given_copies: int | None = None) -> None:
    """Return if there is a target for each input, and no more of them than the bound on rounding holds for.

    Raises: InvalidInputError if not, or if inputs do not have as many copies as are given, or products are not computed
    in full precision.
    """
    if len(inputs) != len(targets):
        raise InvalidInputError(f"{len(inputs)} inputs but {len(targets)} targets: there must be one per example")
    if len(inputs) > MOST_EXAMPLES:
        raise InvalidInputError(f"the batch has {len(inputs)} examples: the bound on rounding holds to {MOST_EXAMPLES}")
    if given_copies is not None and inputs.shape[1:2] != (given_copies,):
        raise InvalidInputError(
            f"inputs have shape {list(inputs.shape)}; valid: [batch, {given_copies}, ...], the copies"
        )
    require_full_precision(inputs.device.type)
