"""Features computed once: the copies of every example, noisy and augmented, behind the fixed front end of a network.

A scattering transform takes far longer than the small head behind it. With `kept_copies` it runs `copies` times per
example instead of `copies` times per step that the example is in. The noise of a copy is then the same in all steps:
fresh for every example and copy, but not for every step. Certificates do not depend on how a network was trained.
"""

__all__ = ["KeptFeatures", "trained_examples", "trained_network"]

import secrets
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.clipping.losses import Loss
from securesgd.errors import InvalidInputError
from securesgd.models.front_end import FeatureNetwork
from securesgd.runtime.random_state import RandomState
from securesgd.runtime.randomness import Randomness
from securesgd.training.augmentation import augmented_copies
from securesgd.training.examples import Examples
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.settings import TrainingSettings

_AT_ONCE = 256  # examples through the front end


def trained_network(
    model: nn.Module, settings: TrainingSettings, loss: Loss | None, one_off_release: OneOffRelease | None
) -> nn.Module:
    """Return what the steps train: the network from its features on if these are kept, else the model itself.

    Raises: InvalidInputError if the features cannot be kept.
    """
    if not settings.kept_copies:
        return model
    if loss is None or one_off_release is not None:
        reason = "a loop of your own may alter its inputs" if loss is None else "r is computed from gradients"
        raise InvalidInputError(f"kept_copies is true, but {reason}; valid: kept_copies = false")
    return FeatureNetwork(model)


def trained_examples(
    network: nn.Module, examples: Examples, settings: TrainingSettings, randomness: Randomness, folder: Path
) -> Examples:
    """Return what the steps draw from: the examples' kept features for a `FeatureNetwork`, else the examples."""
    if not isinstance(network, FeatureNetwork):
        return examples
    return KeptFeatures(network, examples, settings, randomness, folder)


class KeptFeatures:
    """Examples whose inputs are the features of their copies, [copies, ...] in half precision.

    Guarantee: what is kept of an example is a function of that example, of public settings and of secret random numbers
    drawn for its place: DP-SGD on it is DP-SGD on the examples. The file has no name, so that it is gone when the
    process ends, however it ends; a resumed run computes the same again.
    Assumes: front end and noise treat examples one by one, which is tried on made-up ones before and after, and on
    examples of the data in one place by chance; and they do not change in training.
    Raises: InvalidInputError if the front end is seen to mix examples.
    """

    def __init__(
        self,
        network: FeatureNetwork,
        examples: Examples,
        settings: TrainingSettings,
        randomness: Randomness,
        folder: Path,
    ) -> None:
        device, copies, targets = next(network.parameters()).device, settings.copies, []
        with torch.random.fork_rng():
            shape = tuple(examples.batch(np.arange(1))[0].shape[1:])
            network.require_separate(shape)
        blocks = range(0, len(examples), _AT_ONCE)
        tried = secrets.choice(blocks)
        with torch.random.fork_rng(), torch.no_grad(), tempfile.TemporaryFile(dir=folder) as file:
            for start in blocks:
                randomness.seed_model(start, "features")  # for examples that are random themselves, too
                inputs, labels = examples.batch(np.arange(start, min(start + _AT_ONCE, len(examples))))
                rows = augmented_copies(inputs.to(device), copies, settings.augmentation).flatten(0, 1)
                before = RandomState.capture(network)
                features = network.features(rows)
                if start == tried:
                    network.require_same_features(rows, features, before)
                kept = features.half().cpu().reshape(len(inputs), copies, *features.shape[1:])
                file.write(kept.numpy().tobytes())
                targets.append(labels)
            network.require_separate(shape)
            file.flush()
            self._features = np.memmap(file, dtype=np.float16, mode="r", shape=(len(examples), *kept.shape[1:]))
        self._targets = torch.cat(targets)

    def __len__(self) -> int:
        return len(self._features)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        features = torch.from_numpy(np.asarray(self._features[indices])).to(torch.get_default_dtype())
        return features, self._targets[torch.as_tensor(indices, dtype=torch.long)]
