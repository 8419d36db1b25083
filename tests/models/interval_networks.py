"""Small networks that have interval bounds, each with something the others lack."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """What a user may write: a fixed normalisation, functions instead of modules, a sum, groups, pooling."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.hidden, self.out = nn.Linear(64, 13), nn.Linear(13, 5)
        self.register_buffer("mean", torch.full((1, 1, 1), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first((x - self.mean) / -0.5))
        h = h + functional.leaky_relu(self.second(h), 0.1)
        h = functional.max_pool2d(h, 2)
        return self.out(torch.tanh(self.hidden(h.view(h.size(0), -1))))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 12), nn.Sigmoid(), nn.Linear(12, 5))


def strided() -> nn.Module:
    body = [nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(6, 8, 2, dilation=2), nn.ELU()]
    return nn.Sequential(*body, nn.AvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def without_bias() -> nn.Module:
    layers = [nn.Linear(64, 9, bias=False), nn.LeakyReLU(0.2), nn.Linear(9, 5, bias=False)]
    return nn.Sequential(nn.Flatten(), *layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense, "residual": Residual, "strided": strided, "without bias": without_bias,
}  # fmt: skip
SHAPE = (1, 8, 8)
