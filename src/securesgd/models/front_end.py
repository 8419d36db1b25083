"""A fixed front end: the first layers of a network, with nothing to train, so that nothing in them costs privacy.

What comes out of it, the *features* of an input, is the same in every step of a training. It can be computed once.
"""

__all__ = ["FeatureNetwork", "FrontEnd", "front_end_of"]

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.random_state import RandomState

_MIXES = (
    "the front end mixes examples or remembers them: kept features of one would depend on others; valid: layers that "
    "treat every example by itself"
)
_ROWS, _TRIALS = 16, 8  # of a comparison: a mixed pair of rows is split in half of the trials


class FrontEnd(nn.Sequential):
    """Layers without parameters at the beginning of an `nn.Sequential`; each must treat every example by itself.

    Raises: InvalidInputError if a layer has parameters.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        trainable = [name for name, _ in self.named_parameters()]
        if trainable:
            raise InvalidInputError(f"the front end has the parameter {trainable[0]}; valid: layers without parameters")


def front_end_of(model: nn.Module) -> FrontEnd | None:
    """Return the front end of a network, or of a noisy network with its noise at the input; None if it has none."""
    plain = _without_noise(model)
    first = plain[0] if isinstance(plain, nn.Sequential) and len(plain) else None
    return first if isinstance(first, FrontEnd) else None


class FeatureNetwork(nn.Module):
    """A network from its features on: what is trained if features are kept. It shares the parameters of `model`.

    Guarantee: FeatureNetwork(model)(features) is model(x), where features are what the front end (with the noise before
    it, if there is any) makes of x.
    Raises: InvalidInputError if the model has no front end, or something to train before it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if front_end_of(model) is None:
            raise InvalidInputError(
                "kept_copies is true, but the network has no fixed front end; valid: a network like scatter-linear, or "
                "kept_copies = false"
            )
        if isinstance(model, NoisyNetwork) and model.noisy.scale is not None:
            raise InvalidInputError(
                "kept_copies is true, but r is learned, so that the noise changes in training; valid: another "
                "redistribution, or kept_copies = false"
            )
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs of the model for inputs with these features."""
        plain = _without_noise(self.model)
        assert isinstance(plain, nn.Sequential)
        for layer in list(plain)[1:]:
            features = layer(features)
        return features

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features of inputs, with noise of their own for each if the model has noise."""
        front_end = front_end_of(self.model)
        assert front_end is not None
        return front_end(self.model.noisy(inputs) if isinstance(self.model, NoisyNetwork) else inputs)

    @torch.no_grad()
    def require_separate(self, input_shape: tuple[int, ...]) -> None:
        """Return if no features of an example were seen to change with the other examples, or in a second pass.

        Made-up inputs are compared, in random halves and bit for bit, so that the outcome tells nothing about the data.
        Raises: InvalidInputError if they change: what is kept of an example would depend on others.
        """
        front_end = front_end_of(self.model)
        assert front_end is not None
        like = next(self.parameters())
        for _ in range(_TRIALS):
            inputs, others = torch.rand(2, _ROWS, *input_shape, dtype=like.dtype, device=like.device)
            replaced = torch.rand(_ROWS, device=like.device) < 0.5
            features = front_end(inputs)
            inputs[replaced] = others[replaced]
            if len(features) != _ROWS or not torch.equal(features[~replaced], front_end(inputs)[~replaced]):
                raise InvalidInputError(_MIXES)

    @torch.no_grad()
    def require_same_features(self, rows: Tensor, features: Tensor, before: RandomState) -> None:
        """Return if the features of half of these rows stay the same, bit for bit, when the others are replaced.

        `before` has the random generators as they were for `features`. Examples that do not mix pass, whatever they
        are, so that the outcome tells nothing about the data. Raises: InvalidInputError as `require_separate`.
        """
        replaced = torch.rand(len(rows), device=rows.device) < 0.5
        others = torch.where(replaced.view(-1, *[1] * (rows.dim() - 1)), torch.rand_like(rows), rows)
        before.restore()
        again = self.features(others)
        if len(features) != len(rows) or not torch.allclose(
            features[~replaced], again[~replaced], rtol=0, atol=0, equal_nan=True
        ):
            raise InvalidInputError(_MIXES)


def _without_noise(model: nn.Module) -> nn.Module:
    """Return the network behind the noise, if that is at the input, else the model itself."""
    if isinstance(model, NoisyNetwork) and model.place == "input":
        assert isinstance(model.network, nn.Sequential)
        return model.network[1]
    return model
