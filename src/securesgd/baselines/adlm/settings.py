"""What an AdLM run is asked to do besides training: the claimed budget, its shares, and how relevance is made."""

__all__ = ["AdlmSettings"]

import math
from dataclasses import dataclass

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_count, validate_positive, validate_types

_SHARES = ("relevance_share", "input_share", "loss_share")


@dataclass(frozen=True, kw_only=True)
class AdlmSettings:
    """The table `[adlm]` of a configuration. The defaults are the authors' for MNIST."""

    epsilon: float = 0.3
    """The budget the method claims to keep. Not a guarantee of ours."""
    relevance_share: float = 0.25
    input_share: float = 0.25
    loss_share: float = 0.5
    hidden: int = 25
    """Width of the last hidden layer; the noise of the loss grows with its square."""
    crop: int | None = None
    """Side of the square cut out of the middle of the image; None for all of it."""
    signed: bool = False
    """Whether pixels are mapped from [0, 1] to [-1, 1]."""
    relevance_power: float = 4.0
    relevance_offset: float = 0.0
    relevance_examples: int = 2000
    pretrain_steps: int = 200
    """Adam steps, of 128 examples each, of the network whose relevances are used; without any privacy."""

    def __post_init__(self) -> None:
        validate_types(self)
        for name in ("epsilon", "relevance_power", *_SHARES):
            validate_positive(name, getattr(self, name))
        if not math.isclose(total := sum(getattr(self, name) for name in _SHARES), 1.0, abs_tol=1e-9):
            raise InvalidInputError(f"{', '.join(_SHARES)} add up to {total:g}; valid: shares of epsilon, together 1")
        for name, most in (("hidden", 10**5), ("relevance_examples", 10**7), ("pretrain_steps", 10**6)):
            validate_count(name, getattr(self, name), at_least=1, at_most=most)
        if self.crop is not None:
            validate_count("crop", self.crop, at_least=1)
        if not 0 <= self.relevance_offset < 1:
            raise InvalidInputError(f"relevance_offset is {self.relevance_offset!r}; valid: 0 <= relevance_offset < 1")

    @property
    def relevance_epsilon(self) -> float:
        """ε₁, for the relevances."""
        return self.epsilon * self.relevance_share

    @property
    def input_epsilon(self) -> float:
        """ε₂, for the noise on the input."""
        return self.epsilon * self.input_share

    @property
    def loss_epsilon(self) -> float:
        """ε₃, for the noise in the loss."""
        return self.epsilon * self.loss_share
