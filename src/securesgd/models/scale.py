"""A trainable factor per unit: the whitened form of a learned r (`noisy.py`)."""

__all__ = ["Scale"]

from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies each unit (or channel) by a trainable positive number."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the values."""
        return x * self.values
