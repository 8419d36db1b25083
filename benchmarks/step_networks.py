"""Networks of common architectures for `dpsgd_step.py`: residual, vision transformer, text classifiers."""

__all__ = ["NETWORKS"]

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions with GroupNorm, around which the input goes too."""

    def __init__(self, channels: int, maps: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, maps, 3, stride, 1, bias=False),
            nn.GroupNorm(8, maps),
            nn.ReLU(),
            nn.Conv2d(maps, maps, 3, 1, 1, bias=False),
            nn.GroupNorm(8, maps),
        )
        same = stride == 1 and channels == maps
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, maps, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """Return a residual network of six blocks, 32 to 128 maps, for images of 3×32×32."""
    sizes = [(32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1, bias=False),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        *(Residual(*size) for size in sizes),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Vit(nn.Module):
    """A vision transformer on patches of 4×4, with a class token and learned positions."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.layers = encoder(width, depth)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.layers(tokens)[:, 0]))


class Transformer(nn.Module):
    """A text classifier: words, positions, self-attention, mean."""

    def __init__(self, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(1000, width), nn.Embedding(64, width)
        self.layers, self.head = encoder(width, depth), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        return self.head(self.layers(self.words(x) + self.positions(places)).mean(dim=1))


class Lstm(nn.Module):
    """A text classifier: words, an LSTM, its last state."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(1000, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.words(x))[0][:, -1])


def encoder(width: int, depth: int) -> nn.Module:
    """Return layers of attention with four heads, without dropout."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


NETWORKS = {"lstm": Lstm, "resnet": resnet, "transformer": Transformer, "vit": Vit}
