"""Modules off the beaten track, each in a network with four outputs."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.clipping.clipping_reference import images, sequences, tokens, vectors

Forward = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """Named parts, put together by a function of the network and its input."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.join = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x)


def chain(*layers: nn.Module, width: int = 12) -> Callable[[], nn.Module]:
    """The layers, and a linear one on the flattened rest. Copied, so that every network has weights of its own."""
    return lambda: nn.Sequential(*copy.deepcopy(layers), nn.Flatten(), nn.Linear(width, 4))


def net(forward: Forward, **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Net(forward, **{name: part() for name, part in parts.items()})


def linear(a: int = 12, b: int = 12) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(a, b)


def values(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def short_sequences() -> Tensor:
    return sequences(3, 12, 5)


def rows() -> Tensor:
    return vectors(12, 5)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -0.5 * g


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class FakeQuantised(nn.Linear):
    """Weights rounded to 1/8, with the gradient of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight + ((8 * self.weight).round() / 8 - self.weight).detach(), self.bias)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


class FrozenTable(nn.Module):
    """A buffer that serves as a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(12, 12))
        self.offset = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table + self.offset


class PassCounter(nn.Module):
    """Counts its passes in a buffer, and cools down by it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x


def two_experts(m: Net, x: Tensor) -> Tensor:
    """Every row goes to the expert of its sign: each expert sees some of the rows."""
    out, left = torch.zeros(len(x), 4, dtype=x.dtype), x[:, 0] > 0
    out = out.index_add(0, left.nonzero().flatten(), m.a(x[left]))
    return out.index_add(0, (~left).nonzero().flatten(), m.b(x[~left]))


def dense_experts(m: Net, x: Tensor) -> Tensor:
    gate = m.gate(x).softmax(dim=1)
    return gate[:, :1] * m.a(x) + gate[:, 1:] * m.b(x)


def per_example_depth(m: Net, x: Tensor) -> Tensor:
    return m.out(torch.stack([m.a(row) if row.sum() > 0 else m.a(torch.tanh(m.a(row))) for row in x]))


def loop_over_layers(m: Net, x: Tensor) -> Tensor:
    for layer in m.layers:
        x = x + torch.tanh(layer(x))
    return m.out(x)


def own_weights_from_input(m: Net, x: Tensor) -> Tensor:
    return torch.einsum("bij,bj->bi", m.hyper(x).view(len(x), 4, 12), x)


def no_grad_section(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(x.sum(dim=1, keepdim=True))
    return m.out(torch.tanh(m.a(x)) * gate)


def no_grad_layer(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    return m.out(torch.tanh(h))


def attention(m: Net, x: Tensor) -> Tensor:
    return m.out(m.a(x, x, x, need_weights=False)[0].mean(dim=1))


def attention_time_first(m: Net, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    return m.out(m.a(y, y, y)[0].mean(dim=0))


def recurrent_time_first(m: Net, x: Tensor) -> Tensor:
    return m.out(m.a(x.transpose(0, 1))[0][-1])


def cell(m: Net, x: Tensor) -> Tensor:
    h = torch.zeros(len(x), 12, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = m.a(x[:, t], h)
    return m.out(h)


def lstm_cell(m: Net, x: Tensor) -> Tensor:
    state = (torch.zeros(len(x), 12, dtype=x.dtype), torch.zeros(len(x), 12, dtype=x.dtype))
    for t in range(x.shape[1]):
        state = m.a(x[:, t], state)
    return m.out(state[0])


def bag_with_offsets(m: Net, x: Tensor) -> Tensor:
    return m.out(m.a(x.flatten(), torch.arange(0, x.numel(), x.shape[1])))


def fourier(m: Net, x: Tensor) -> Tensor:
    return m.out(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(m.filter), n=12))


def stochastic_depth(m: Net, x: Tensor) -> Tensor:
    kept = torch.rand(len(x), 1, dtype=x.dtype) < 0.5
    return m.out(x + kept * torch.tanh(m.a(x)))


def gumbel(m: Net, x: Tensor) -> Tensor:
    return m.out(functional.gumbel_softmax(m.a(x), hard=True))


def in_place(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h += 1
    h[:, :3] *= 2
    return m.out(torch.tanh_(h))


def dictionary(m: Net, x: Tensor) -> Tensor:
    parts = {"left": m.a(x), "right": (x, torch.tanh(x))}
    return m.out(parts["left"] + parts["right"][1])


LAST = linear(12, 4)
PARTS = {"a": linear(), "out": LAST}

EXOTIC: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "weight norm": (chain(parametrizations.weight_norm(nn.Linear(12, 12)), nn.Tanh()), rows),
    "spectral norm": (chain(parametrizations.spectral_norm(nn.Linear(12, 12)), nn.Tanh()), rows),
    "orthogonal": (chain(parametrizations.orthogonal(nn.Linear(12, 12)), nn.Tanh()), rows),
    "conv 1d": (chain(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), width=48), lambda: sequences(3, 12, 5)),
    "conv 3d": (chain(nn.Conv3d(1, 2, 2), nn.Tanh(), width=16), lambda: torch.randn(5, 1, 3, 3, 3).double()),
    "transposed conv": (chain(nn.ConvTranspose2d(2, 3, 3), nn.Tanh(), width=75), lambda: images(2, 3, 5)),
    "transposed conv 1d": (chain(nn.ConvTranspose1d(3, 2, 3, groups=1), nn.Tanh(), width=28), short_sequences),
    "grouped dilated conv": (
        chain(nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=1), nn.Tanh(), width=54), lambda: images(4, 5, 5)),
    "circular conv": (
        chain(nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), width=147), lambda: images(2, 5, 5)),
    "bilinear": (net(lambda m, x: m.a(x, torch.tanh(x)), a=lambda: nn.Bilinear(12, 12, 4)), rows),
    "lstm": (
        net(lambda m, x: m.out(m.a(x)[0][:, -1]), a=lambda: nn.LSTM(12, 12, batch_first=True), out=LAST),
        short_sequences),
    "gru time first": (net(recurrent_time_first, a=lambda: nn.GRU(12, 12, 2), out=LAST), short_sequences),
    "rnn time first, as long as the batch": (
        net(recurrent_time_first, a=lambda: nn.RNN(12, 12), out=LAST), lambda: sequences(5, 12, 5)),
    "gru cell": (net(cell, a=lambda: nn.GRUCell(12, 12), out=LAST), short_sequences),
    "lstm cell": (net(lstm_cell, a=lambda: nn.LSTMCell(12, 12), out=LAST), short_sequences),
    "attention": (net(attention, a=lambda: nn.MultiheadAttention(12, 3, batch_first=True), out=LAST), short_sequences),
    "attention time first": (
        net(attention_time_first, a=lambda: nn.MultiheadAttention(12, 3), out=LAST), short_sequences),
    "attention time first, as long as the batch": (
        net(attention_time_first, a=lambda: nn.MultiheadAttention(12, 3), out=LAST), lambda: sequences(5, 12, 5)),
    "transformer layer": (
        chain(nn.TransformerEncoderLayer(12, 3, 8, dropout=0.0, batch_first=True), width=36), short_sequences),
    "embedding bag sum": (net(lambda m, x: m.out(m.a(x)), a=lambda: nn.EmbeddingBag(11, 12, mode="sum"), out=LAST),
                          lambda: tokens(9, 5)),
    "embedding bag mean with offsets": (
        net(bag_with_offsets, a=lambda: nn.EmbeddingBag(11, 12, mode="mean"), out=LAST), lambda: tokens(9, 5)),
    "tied embedding": (
        net(lambda m, x: functional.linear(m.a(x).mean(dim=1), m.a.weight)[:, :4], a=lambda: nn.Embedding(11, 12)),
        lambda: tokens(9, 5)),
    "prelu": (chain(nn.Linear(12, 12), nn.PReLU(12)), rows),
    "glu": (chain(nn.Linear(12, 24), nn.GLU()), rows),
    "local response": (chain(nn.Conv2d(2, 4, 3), nn.LocalResponseNorm(3), width=36), lambda: images(2, 5, 5)),
    "instance norm": (
        chain(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), width=36), lambda: images(2, 5, 5)),
    "rms norm": (chain(nn.Linear(12, 12), nn.RMSNorm(12)), rows),
    "layer norm of all": (chain(nn.LayerNorm([3, 12]), nn.Tanh(), width=36), short_sequences),
    "group norm": (chain(nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.Tanh(), width=36), lambda: images(2, 5, 5)),
    "pooled": (chain(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(2), nn.Tanh()), lambda: images(2, 5, 5)),
    "pixel shuffle": (chain(nn.Conv2d(2, 4, 3), nn.PixelShuffle(2), nn.Tanh(), width=36), lambda: images(2, 5, 5)),
    "einsum": (net(lambda m, x: m.out(torch.einsum("bi,ij->bj", x, m.w).tanh()), w=values(12, 12), out=LAST), rows),
    "fourier": (net(fourier, filter=values(7, 2), out=LAST), rows),
    "checkpointed": (
        net(lambda m, x: m.out(checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False)), **PARTS), rows),
    "checkpointed group norm": (
        net(lambda m, x: m.out(checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False).flatten(1)),
            a=lambda: nn.GroupNorm(2, 4), out=linear(36, 4)), lambda: images(4, 3, 3)),
    "no grad section": (net(no_grad_section, **PARTS), rows),
    "layer without gradient": (net(no_grad_layer, **PARTS), rows),
    "detached path": (net(lambda m, x: m.out(torch.tanh(m.a(x)) + m.a(x).detach()), **PARTS), rows),
    "in place": (net(in_place, **PARTS), rows),
    "gradient reversed": (net(lambda m, x: m.out(Reversed.apply(torch.tanh(m.a(x)))), **PARTS), rows),
    "straight through": (net(lambda m, x: m.out(Straight.apply(m.a(x))), **PARTS), rows),
    "fake quantised": (chain(FakeQuantised(12, 12), nn.Tanh()), rows),
    "weights from the input": (net(own_weights_from_input, hyper=linear(12, 48)), rows),
    "control flow by example": (net(per_example_depth, **PARTS), rows),
    "frozen layer": (net(lambda m, x: m.out(torch.tanh(m.a(x))), a=lambda: nn.Linear(12, 12).requires_grad_(False),
                         out=LAST), rows),
    "called twice": (net(lambda m, x: m.out(torch.tanh(m.a(torch.tanh(m.a(x))))), **PARTS), rows),
    "loop over layers": (
        net(loop_over_layers, layers=lambda: nn.ModuleList([nn.Linear(12, 12) for _ in range(3)]), out=LAST), rows),
    "buffer as weight": (chain(FrozenTable(), nn.Tanh()), rows),
    "functional": (net(lambda m, x: functional.linear(torch.tanh(functional.linear(x, m.a.weight)), m.out.weight),
                       **PARTS), rows),
    "borrowed beside its layer": (
        net(lambda m, x: m.out(torch.tanh(m.a(x)) + x @ m.a.weight), **PARTS), rows),
    "weight decay in the loss path": (
        net(lambda m, x: m.out(torch.tanh(m.a(x))) * (1 + m.a.weight.square().sum()), **PARTS), rows),
    "output is a view": (
        net(lambda m, x: m.out(m.a(x).view(len(x), 3, 4).transpose(1, 2).flatten(1)), **PARTS), rows),
    "dictionary": (net(dictionary, **PARTS), rows),
    "sparse experts": (net(two_experts, a=LAST, b=LAST), rows),
    "dense experts": (net(dense_experts, gate=linear(12, 2), a=LAST, b=LAST), rows),
    "scripted": (lambda: nn.Sequential(torch.jit.script(Scripted()), nn.Linear(12, 4)), rows),
    "data parallel": (lambda: nn.DataParallel(nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))), rows),
    "counter": (chain(nn.Linear(12, 12), PassCounter(), nn.Tanh()), rows),
    "shared weight of two layers": (
        net(lambda m, x: m.out(torch.tanh(m.b(torch.tanh(m.a(x))))), a=linear(), b=linear(), out=LAST), rows),
}  # fmt: skip


class NumpyNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.random.normal(size=x.shape))  # noqa: NPY002


RANDOM: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "dropout": (chain(nn.Linear(12, 12), nn.Dropout(0.4), nn.Tanh()), rows),
    "dropout in place": (chain(nn.Linear(12, 12), nn.Dropout(0.4, inplace=True), nn.Tanh()), rows),
    "dropout of maps": (chain(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), nn.Tanh(), width=36), lambda: images(2, 5, 5)),
    "alpha dropout": (chain(nn.Linear(12, 12), nn.AlphaDropout(0.4), nn.Tanh()), rows),
    "random slope": (chain(nn.Linear(12, 12), nn.RReLU()), rows),
    "gumbel softmax": (net(gumbel, **PARTS), rows),
    "noise from numpy": (chain(nn.Linear(12, 12), NumpyNoise(), nn.Tanh()), rows),
    "stochastic depth": (net(stochastic_depth, **PARTS), rows),
    "transformer layer with dropout": (
        chain(nn.TransformerEncoderLayer(12, 3, 8, dropout=0.2, batch_first=True), width=36), short_sequences),
    "sparse experts with dropout": (
        net(two_experts, a=lambda: nn.Sequential(nn.Dropout(0.4), nn.Linear(12, 4)), b=LAST), rows),
}  # fmt: skip

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "complex": (lambda: Net(lambda m, x: (x @ m.w).real, w=torch.randn(12, 4, dtype=torch.complex128)), "complex128"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4)), "run the model once"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)), "GroupNorm"),
    "quantisation that observes": (
        lambda: nn.Sequential(nn.Linear(12, 4), torch.ao.quantization.FakeQuantize()), "later steps|depends on other"),
}  # fmt: skip
