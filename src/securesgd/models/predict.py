"""Predictions of a model that may be noisy: the class that most noisy passes vote for."""

__all__ = ["accuracy", "vote_counts"]

import torch
from torch import Tensor, nn

from securesgd.models.noisy import NoisyNetwork


@torch.no_grad()
def vote_counts(model: nn.Module, inputs: Tensor, draws: int, generator: torch.Generator, batch: int = 500) -> Tensor:
    """Return how often each class wins over `draws` noisy passes, shape [examples, classes].

    The first layer is computed once per example. A model without noise votes once. The model must be in eval mode.
    """
    device = next(model.parameters()).device
    counts = []
    for start in range(0, len(inputs), batch):
        x = inputs[start : start + batch].to(device)
        if not isinstance(model, NoisyNetwork):
            outputs = model(x)
            counts.append(torch.nn.functional.one_hot(outputs.argmax(1), outputs.shape[1]).cpu())
            continue
        clean, std, total = model.noisy.clean(x), model.noisy.noise.std, None
        for _ in range(draws):
            noise = torch.randn(clean.shape, generator=generator, dtype=clean.dtype).to(device)
            with model.from_layer(clean + std * noise):
                outputs = model(x)
            votes = torch.nn.functional.one_hot(outputs.argmax(1), outputs.shape[1])
            total = votes if total is None else total + votes
        assert total is not None
        counts.append(total.cpu())
    return torch.cat(counts)


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, draws: int = 20, seed: int = 0) -> float:
    """Return the share of examples whose most voted class is the right one."""
    was_training = model.training
    model.eval()
    counts = vote_counts(model, inputs, draws, torch.Generator().manual_seed(seed))
    model.train(was_training)
    return float((counts.argmax(1) == targets.cpu()).float().mean())
