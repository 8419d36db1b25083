"""The slow, obvious clipped sum that the engine is held against, and the zoo of networks it is held on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.models import noise_layer as scale

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def example_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> dict[str, Tensor]:
    """Gradient of the mean loss of the given rows: one example, or all copies of one example."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss(model(x), y).mean(), list(named.values()), allow_unused=True)
    pairs = zip(named.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def norm(gradient: dict[str, Tensor]) -> float:
    return float(sum(g.detach().double().square().sum() for g in gradient.values()) ** 0.5)


def reference(
    model: nn.Module, inputs: Tensor, targets: Tensor, limit: float, loss: Loss = cross_entropy
) -> tuple[dict[str, Tensor], Tensor]:
    """(clipped sum, norms): a loop over examples, each clipped over all its parameters together."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    norms = []
    for i in range(len(inputs)):
        gradient = example_gradient(model, inputs[i : i + 1], targets[i : i + 1], loss)
        size = norm(gradient)
        norms.append(size)
        for name, g in gradient.items():
            total[name] += g * min(1.0, limit / size) if size > 0 else g
    return total, torch.tensor(norms, dtype=torch.float64)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return norm({name: a[name] - b[name] for name in a})


class Scale(nn.Module):
    """A custom module: torch knows no rule for it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(size))
        self.power = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x * self.factor) ** self.power


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.norm(self.first(x))))


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.last = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(torch.tanh(self.conv(x.view(-1, 1, 3, 4)))).flatten(1)
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """An embedding and a linear layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.words(x)))).mean(dim=1)


class Borrower(nn.Module):
    """Uses a parameter of a module without calling the module."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(12, 12)
        self.b = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(functional.linear(torch.tanh(self.a(x)), self.a.weight))


class Position(nn.Module):
    """A learned table that is added to every example: its layer's first dimension is not the batch."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6, padding_idx=0)
        self.places = nn.Embedding(length, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 4)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.words(x) + self.places(torch.arange(self.length))))).mean(dim=1)


class TimeFirst(nn.Module):
    """Works on [time, batch, features] inside."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(5, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.step(x.transpose(0, 1))).mean(dim=0))


class Root(nn.Module):
    """Parameters of its own beside layers, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(12))
        self.unused = nn.Parameter(torch.randn(3))
        self.layer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(x + self.start))


def images(channels: int, size: int, batch: int = 7) -> Tensor:
    return torch.rand(batch, channels, size, size, dtype=torch.float64)


def vectors(size: int, batch: int = 7) -> Tensor:
    return torch.randn(batch, size, dtype=torch.float64)


def sequences(length: int, size: int, batch: int = 7) -> Tensor:
    return torch.randn(batch, length, size, dtype=torch.float64)


def tokens(length: int = 9, batch: int = 7) -> Tensor:
    return torch.randint(11, (batch, length))


def conv_net(layer: nn.Module, size: int, channels: int) -> nn.Module:
    with torch.no_grad():
        width = layer(torch.rand(1, channels, size, size)).numel()
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 4))


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    net[2].requires_grad_(False)
    net[0].weight.requires_grad_(False)
    return net


def parametrized() -> nn.Module:
    return nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(12, 8)), nn.Tanh(), nn.Linear(8, 4))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class Last(nn.Module):
    """The last state of a recurrent layer."""

    def forward(self, x: tuple[Tensor, object]) -> Tensor:
        return x[0][:, -1]


FAST: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), lambda: vectors(12)),
    "mlp in place": (lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(True), nn.Linear(9, 4)), lambda: vectors(12)),
    "no bias": (lambda: nn.Sequential(nn.Linear(12, 4, bias=False)), lambda: vectors(12)),
    "conv": (lambda: conv_net(nn.Conv2d(3, 5, 3), 8, 3), lambda: images(3, 8)),
    "conv in place": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(True), nn.Conv2d(5, 4, 3), nn.ReLU(True), nn.Flatten(1),
                              nn.Linear(64, 4)), lambda: images(2, 8)),
    "strided": (lambda: conv_net(nn.Conv2d(3, 5, (3, 5), stride=(2, 3), padding=(1, 2)), 11, 3), lambda: images(3, 11)),
    "dilated": (lambda: conv_net(nn.Conv2d(3, 5, 3, dilation=(2, 3), padding=(2, 1)), 10, 3), lambda: images(3, 10)),
    "strided dilated": (
        lambda: conv_net(nn.Conv2d(16, 5, 4, stride=2, dilation=2, padding=3), 11, 16), lambda: images(16, 11)),
    "grouped": (lambda: conv_net(nn.Conv2d(6, 4, 3, groups=2, padding=1), 7, 6), lambda: images(6, 7)),
    "grouped wide": (lambda: conv_net(nn.Conv2d(40, 4, 3, groups=2, stride=2), 7, 40), lambda: images(40, 7)),
    "depthwise": (lambda: conv_net(nn.Conv2d(6, 12, 3, groups=6), 7, 6), lambda: images(6, 7)),
    "same": (lambda: conv_net(nn.Conv2d(3, 5, 4, padding="same"), 6, 3), lambda: images(3, 6)),
    "same wide": (lambda: conv_net(nn.Conv2d(20, 5, 4, padding="same", dilation=2), 6, 20), lambda: images(20, 6)),
    "valid": (lambda: conv_net(nn.Conv2d(3, 5, 4, padding="valid"), 6, 3), lambda: images(3, 6)),
    "circular": (lambda: conv_net(nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"), 6, 3), lambda: images(3, 6)),
    "reflect same": (
        lambda: conv_net(nn.Conv2d(3, 5, 4, padding="same", padding_mode="reflect"), 6, 3), lambda: images(3, 6)),
    "padding beyond the image": (lambda: conv_net(nn.Conv2d(16, 3, 5, padding=4), 2, 16), lambda: images(16, 2)),
    "many maps": (lambda: conv_net(nn.Conv2d(24, 48, 5, padding=2), 4, 24), lambda: images(24, 4)),
    "pointwise": (lambda: conv_net(nn.Conv2d(8, 6, 1), 6, 8), lambda: images(8, 6)),
    "pooled": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
                              nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 4)), lambda: images(1, 14)),
    "residual": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), Residual(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 4)),
        lambda: images(2, 6)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4)), lambda: vectors(12)),
    "layer norm of images": (
        lambda: nn.Sequential(nn.LayerNorm([2, 5, 5]), nn.Flatten(), nn.Linear(50, 4)), lambda: images(2, 5)),
    "layer norm without bias": (
        lambda: nn.Sequential(nn.LayerNorm(12, bias=False), nn.Linear(12, 4)), lambda: vectors(12)),
    "group norm": (
        lambda: nn.Sequential(nn.GroupNorm(3, 6), nn.Tanh(), nn.Flatten(), nn.Linear(96, 4)), lambda: images(6, 4)),
    "scaled input": (
        lambda: nn.Sequential(scale.Scale(torch.rand(2, 6, 6) + 0.5), nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(),
                              nn.Linear(48, 4)), lambda: images(2, 6)),
    "scaled channels": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), scale.Scale(torch.rand(3, 1, 1) + 0.5), nn.Tanh(), nn.Flatten(),
                              nn.Linear(27, 4)), lambda: images(2, 5)),
    "scaled units": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), scale.Scale(torch.rand(3, 3, 3) + 0.5), nn.Tanh(), nn.Flatten(),
                              nn.Linear(27, 4)), lambda: images(2, 5)),
    "short sequence": (
        lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4), Mean()), lambda: sequences(3, 20)),
    "long sequence": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 4), Mean()),
        lambda: sequences(40, 5)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 4), nn.Tanh(), Mean()), tokens),
    "padded embedding": (lambda: nn.Sequential(nn.Embedding(11, 4, padding_idx=3), nn.Tanh(), Mean()), tokens),
    "custom": (
        lambda: nn.Sequential(nn.Linear(12, 8), Scale(8), nn.Linear(8, 4)), lambda: vectors(12)),
    "conv 1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 4)),
        lambda: torch.randn(7, 3, 8, dtype=torch.float64)),
    "prelu": (lambda: nn.Sequential(nn.Linear(12, 8), nn.PReLU(), nn.Linear(8, 4)), lambda: vectors(12)),
    "parametrized": (parametrized, lambda: vectors(12)),
    "root parameters": (Root, lambda: vectors(12)),
    "frozen": (frozen, lambda: vectors(12)),
    "called twice": (Twice, lambda: vectors(12)),
    "tied": (Tied, tokens),
    "position table": (lambda: Position(9), tokens),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(5, 6, batch_first=True), Last()), lambda: sequences(4, 5)),
    "attention": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 9, dropout=0.0, batch_first=True), nn.Linear(6, 4),
                              Mean()), lambda: sequences(5, 6)),
}  # fmt: skip

SLOW: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "borrowed parameter": (Borrower, lambda: vectors(12), "used outside the module"),
    "position table as long as the batch": (lambda: Position(7), lambda: tokens(7), "do not belong"),
    "time first": (TimeFirst, lambda: sequences(9, 5), "first dimension"),
    "time first, as long as the batch": (TimeFirst, lambda: sequences(7, 5), "do not belong"),
}
