"""A batch of examples, with all that their gradients depend on besides the model."""

__all__ = ["Batch"]

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from securesgd.clipping.losses import Loss


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples on the model's device.

    Attributes:
        parameters: the trainable parameters by name.
        inputs: shape [examples, ...].
        targets: shape [examples, ...].
        loss: maps outputs and targets to one loss per row.
        copies: how often each example goes through the model, as rows that follow each other.
    """

    parameters: dict[str, nn.Parameter]
    inputs: Tensor
    targets: Tensor
    loss: Loss
    copies: int

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, examples: slice) -> "Batch":
        """Return the batch of some of the examples."""
        return replace(self, inputs=self.inputs[examples], targets=self.targets[examples])

    def rows(self, channels_last: bool) -> tuple[Tensor, Tensor]:
        """Return inputs and targets with every example `copies` times in a row; images in the layout asked for."""
        rows, targets = self.inputs, self.targets
        if self.copies > 1:
            rows, targets = (t.repeat_interleave(self.copies, dim=0) for t in (rows, targets))
        if channels_last and rows.dim() == 4:
            rows = torch.empty_like(rows, memory_format=torch.channels_last).copy_(rows)
        return rows, targets
