"""The ordinary gradient sum, for the methods that do not protect the training data."""

__all__ = ["NotFiniteError", "plain_sum"]

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.training.clipping import ClippedSum, Loss


class NotFiniteError(InvalidInputError):
    """The loss of an example is NaN or infinite. Only training that protects nothing may say so."""


def plain_sum(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, copies: int = 1, micro_batch: int | None = None
) -> ClippedSum:
    """Return the sum over examples of their gradients, unclipped: no privacy. `norms` is empty.

    Arguments as for `ClippingEngine.clipped_sum`, so that one loop serves all methods.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(parameters.values())).device
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    losses = [torch.zeros(0, device=device)]
    step = micro_batch or max(1, len(inputs))
    for start in range(0, len(inputs), step):
        rows = inputs[start : start + step].to(device).repeat_interleave(copies, dim=0)
        values = loss(model(rows), targets[start : start + step].to(device).repeat_interleave(copies, dim=0))
        gradients = torch.autograd.grad(values.sum() / copies, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient
        losses.append(values.detach().view(-1, copies).mean(dim=1))
    every = torch.cat(losses)
    if not bool(torch.isfinite(every).all()):
        raise NotFiniteError("the loss is not finite; check the input for NaN or a learning rate that is too large")
    return ClippedSum(total, torch.zeros(0, device=device), every, skipped=0)
