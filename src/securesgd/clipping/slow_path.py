"""The slow path of the clipping engine: one example at a time, with an ordinary backward pass for each."""

__all__ = ["clip_slow"]

from collections.abc import Callable

import torch
from torch import Tensor

from securesgd.clipping.batch import Batch
from securesgd.clipping.rules.forms import squared_lengths


def clip_slow(
    losses_of: Callable[[Tensor, Tensor], Tensor], batch: Batch, clip_factors: Callable[[Tensor, Tensor], Tensor]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return (clipped sums, squared norms, losses), with `losses_of` called for one example at a time.

    Guarantee: correct for every model and loss autograd can differentiate, since no two examples share a pass. All
        sums over examples are in float64. An example whose clip factor is 0 is left out of them. The copies of an
        example are one pass; its gradient is their average.

    `clip_factors` maps the squared norm and the loss of an example to its factor.
    """
    parameters = batch.parameters
    total = {name: torch.zeros_like(p, requires_grad=False, dtype=torch.float64) for name, p in parameters.items()}
    squares, losses = [], []
    for i in range(len(batch)):
        x, y = batch.take(slice(i, i + 1)).rows(channels_last=False)
        value = losses_of(x, y).mean()
        values = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        gradient = {name: g for name, g in zip(parameters, values, strict=True) if g is not None}
        square = torch.zeros(1, dtype=torch.float64, device=x.device)
        for g in gradient.values():
            square += squared_lengths(g.reshape(-1))
        losses.append(value.detach().reshape(1))
        squares.append(square)
        factor = clip_factors(square, losses[-1]).item()
        for name, g in gradient.items() if factor else ():
            total[name].add_(g, alpha=factor)
    return total, torch.cat(squares), torch.cat(losses)
