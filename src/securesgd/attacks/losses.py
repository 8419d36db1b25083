"""What an attack climbs: a number per example from the logits of all noise draws, larger when the model is more wrong.

================  =====================================================================================================
loss              of logits z over the draws
================  =====================================================================================================
cross-entropy     mean of −log softmax(z)_label: the classical loss, its gradient averaged over draws (EOT)
smoothed          −log of the mean of softmax(z)_label: the loss of the averaged classifier (Salman et al. 2019, Eq. 7)
dlr               mean of the difference-of-logits ratio, which does not saturate (Croce & Hein 2020, Eq. 6)
margin            mean of (best other − label)
================  =====================================================================================================

With one draw (no noise) `smoothed` is `cross-entropy`.
"""

__all__ = ["LOSSES", "smoothed_margin"]

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits [draws, n, classes], labels [n]) to one value per example [n]"""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the draws."""
    return -_at(functional.log_softmax(logits, 2), labels).mean(0)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return minus the log of the label's mean probability over the draws."""
    return math.log(len(logits)) - _at(functional.log_softmax(logits, 2), labels).logsumexp(0)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how far the best other logit is ahead of the label's, averaged over the draws."""
    return (_others(logits, labels).amax(2) - _at(logits, labels)).mean(0)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the margin over the spread of the largest three logits; the bare margin if there are only two classes."""
    ahead = _others(logits, labels).amax(2) - _at(logits, labels)
    if logits.shape[2] < 3:
        return ahead.mean(0)
    top = logits.topk(3, dim=2).values
    return (ahead / (top[..., 0] - top[..., 2] + 1e-12)).mean(0)


def smoothed_margin(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return how far the best other class is ahead in mean probability: above 0 the averaged classifier is wrong."""
    return (_others(probabilities[None], labels).amax(2) - _at(probabilities[None], labels))[0]


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "smoothed": smoothed, "dlr": dlr, "margin": margin}


def _at(values: Tensor, labels: Tensor) -> Tensor:
    """Return the label's entry of each row, shape [draws, n]."""
    return values.gather(2, labels.expand(len(values), -1)[..., None])[..., 0]


def _others(values: Tensor, labels: Tensor) -> Tensor:
    """Return the values with the label's entry set to minus infinity."""
    return values.scatter(2, labels.expand(len(values), -1)[..., None], -torch.inf)
