"""AdLM's preparation before the first step: relevances of a pre-trained network on the private data, beta, and noise.

None of it has the privacy claimed for it, and the ledger records that: the pre-trained network is not private, and the
relevances are scaled by their smallest and largest before noise is added.
"""

__all__ = ["adlm_training_arguments", "mean_relevance", "pretrain_network"]

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from securesgd.baselines.adlm.budget import AdlmSettings, budget_shares, normalised_relevance, relevance_scale
from securesgd.baselines.adlm.network import AdlmNetwork
from securesgd.baselines.adlm.relevance import propagate_relevance
from securesgd.privacy import UnprotectedRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.training.examples import Examples
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.settings import TrainingSettings

_BATCH = 128
_LEARNING_RATE = 1e-3
_NOT_PRIVATE = (
    "AdLM as published, guarantee not endorsed: noise divided by the batch size is for a sum of affine outputs, but "
    "activations and pooling act on each noisy example; it is drawn anew at every step on the same data and no "
    "composition is counted; gradients of the layers below the last hidden one read the private data without noise"
)


def adlm_training_arguments(model: AdlmNetwork, training: TrainingSettings) -> dict[str, Any]:
    """Return what the training loop does differently for AdLM, as keyword arguments."""
    return {
        "loss": model.loss,
        "project": lambda _: model.advance(training.steps),
        "one_off_release": _preparation(model.settings, training.batch_size),
        "not_private": _NOT_PRIVATE,
    }


def _preparation(settings: AdlmSettings, batch_size: int) -> OneOffRelease:
    """Return the release before step 0 that gives an `AdlmNetwork` its noise; its event voids the guarantee."""

    def action(model: nn.Module, examples: Examples, stream: KeyStream) -> None:
        assert isinstance(model, AdlmNetwork)
        generator = stream.generator()
        mean = mean_relevance(pretrain_network(model, examples, generator), model, examples, generator)
        scale = relevance_scale(mean.size, settings.relevance_epsilon, len(examples))
        relevance = normalised_relevance(mean, settings.relevance_power, settings.relevance_offset)
        # The offset goes in once more after the noise, as in the authors' code for CIFAR-10.
        noisy = relevance + generator.laplace(0.0, scale, mean.shape) + settings.relevance_offset
        model.set_noise(budget_shares(noisy), batch_size, generator)

    return OneOffRelease(step=0, event=_event(settings), action=action)


def pretrain_network(model: AdlmNetwork, examples: Examples, generator: np.random.Generator) -> nn.Sequential:
    """Return a copy of the network, trained on the clean examples without any privacy; the model is left as it is."""
    copied = copy.deepcopy(model)
    network = nn.Sequential(*copied.layers, nn.Hardtanh(), copied.head).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    device = model.head.weight.device
    for _ in range(model.settings.pretrain_steps):
        inputs, targets = examples.batch(generator.integers(len(examples), size=_BATCH))
        outputs = network(model.preprocess(inputs.to(device)))
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, targets.to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


def mean_relevance(
    network: nn.Sequential, model: AdlmNetwork, examples: Examples, generator: np.random.Generator
) -> np.ndarray:
    """Return the relevance of each pixel, all channels together, averaged over random examples."""
    count = min(model.settings.relevance_examples, len(examples))
    chosen, total = generator.permutation(len(examples))[:count], np.zeros(tuple(model.input_scale.shape))
    for start in range(0, count, _BATCH):
        inputs, _ = examples.batch(chosen[start : start + _BATCH])
        relevance = propagate_relevance(network, model.preprocess(inputs.to(model.head.weight.device)))
        total += relevance.sum(dim=(0, 1)).double().cpu().numpy()
    return total / count


def _event(settings: AdlmSettings) -> UnprotectedRelease:
    """Return the event that records the preparation in the ledger."""
    return UnprotectedRelease(
        label="AdLM relevance",
        reason=(
            f"AdLM as published, guarantee not endorsed (it claims epsilon = {settings.epsilon:g} in all): the network "
            "that relevances come from was trained on the private data without noise, relevances are scaled by their "
            f"smallest and largest without noise, and at most {settings.relevance_examples} of them are averaged with "
            "the noise for an average over all examples"
        ),
    )
