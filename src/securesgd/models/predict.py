"""Votes of a model that may be noisy, and the accuracy of the class with most of them."""

__all__ = ["accuracy", "predicted_classes", "share_right", "tally", "vote_counts"]

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork

Scores = Literal["votes", "soft"]


def tally(
    network: SplitNetwork, clean: Tensor, noises: Iterable[Tensor], *, scores: Scores = "votes", together: int = 1
) -> Tensor:
    """Return the score of each class summed over all draws of `noises`, [examples, classes] in double precision.

    In a draw the winning class scores 1 (`votes`), or every class its softmax probability (`soft`). `clean` is
    `network.clean(x)`. Each of the `noises` is `network.spread` of some draws for all examples, [1, draws, *shape], or
    of draws for each, [examples, draws, *shape]. A pass through the network holds all draws of `together` examples;
    with one, no example's bits depend on the others.
    """
    total: Tensor | None = None
    for noise in noises:
        for start in range(0, len(clean), together):
            part = slice(start, start + together)
            h = clean[part].unsqueeze(1) + (noise if len(noise) == 1 else noise[part])
            outputs = network.outputs(h.flatten(0, 1))
            if total is None:
                total = torch.zeros(len(clean), outputs.shape[1], dtype=torch.float64, device=outputs.device)
            outputs = outputs.reshape(*h.shape[:2], -1)
            if scores == "soft":
                total[part] += outputs.softmax(2).double().sum(1)
            else:
                total[part] += nn.functional.one_hot(outputs.argmax(2), outputs.shape[2]).sum(1)
    assert total is not None, "no noise was given"
    return total.cpu()


@torch.inference_mode()
def vote_counts(model: nn.Module, inputs: Tensor, draws: int, generator: torch.Generator, batch: int = 500) -> Tensor:
    """Return how often each class wins over `draws` noisy passes, shape [examples, classes].

    Every example gets noise of its own. A model without noise votes once. The model must be in eval mode.
    """
    if not isinstance(model, NoisyNetwork):
        device = next(model.parameters(), inputs).device
        outputs = torch.cat([model(inputs[i : i + batch].to(device)) for i in range(0, len(inputs), batch)])
        return nn.functional.one_hot(outputs.argmax(1), outputs.shape[1]).cpu()
    network, counts = SplitNetwork(model), []
    for start in range(0, len(inputs), batch):
        clean = network.clean(inputs[start : start + batch])
        shape = (len(clean), *network.noise_shape)
        noises = (
            network.spread(torch.randn(shape, generator=generator, dtype=network.dtype)).unsqueeze(1)
            for _ in range(draws)
        )
        counts.append(tally(network, clean, noises, together=batch).long())
    return torch.cat(counts)


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, draws: int = 20, seed: int = 0) -> float:
    """Return the share of examples whose most voted class is the right one."""
    return share_right(predicted_classes(model, inputs, draws, seed), targets)


def predicted_classes(model: nn.Module, inputs: Tensor, draws: int = 20, seed: int = 0) -> Tensor:
    """Return the most voted class of each example, in eval mode."""
    was_training = model.training
    model.eval()
    counts = vote_counts(model, inputs, draws, torch.Generator().manual_seed(seed))
    model.train(was_training)
    return counts.argmax(1)


def share_right(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of predictions that are the right class."""
    return float((predictions == targets.cpu()).float().mean())
