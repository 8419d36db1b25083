"""Models and losses in which an example depends on the others of its batch, or on those of earlier steps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.clipping.clipping_reference import Loss, cross_entropy

WIDTH, CLASSES = 6, 4
Mix = Callable[["Mixer", Tensor], Tensor]


class Mixer(nn.Module):
    """A small network with `mix` between its two layers, which gets the whole batch of hidden rows."""

    def __init__(self, mix: Mix, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last, self.drop = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), nn.Dropout(dropout)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.memory: list[Tensor] = []
        self.mix, self.calls = mix, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.mix(self, self.drop(self.first(x)))))


def causal_attention(m: Mixer, h: Tensor) -> Tensor:
    scores = (h @ h.T).masked_fill(torch.ones(len(h), len(h)).triu(1).bool(), float("-inf"))
    return h + 3 * torch.softmax(scores, dim=1) @ h


def cumulative_sum(m: Mixer, h: Tensor) -> Tensor:
    return h.cumsum(dim=0)


def previous_row(m: Mixer, h: Tensor) -> Tensor:
    return torch.cat([h[:1], h[1:] + h[:-1]])


def previous_row_detached(m: Mixer, h: Tensor) -> Tensor:
    return torch.cat([h[:1], h[1:] + h[:-1].detach()])


def experts_with_capacity(m: Mixer, h: Tensor) -> Tensor:
    """Two experts for half of the batch each: first come, first served, the rest is passed on."""
    choice = functional.one_hot((h.detach()[:, 0] > 0).long(), 2)
    taken = ((choice.cumsum(dim=0) <= len(h) // 2) & (choice > 0)).to(h.dtype)
    return h + sum(taken[:, i : i + 1] * 5 * expert(h) for i, expert in enumerate(m.experts))


def gathered_experts_with_capacity(m: Mixer, h: Tensor) -> Tensor:
    """The same, each expert run on its rows only."""
    choice, out = (h.detach()[:, 0] > 0).long(), h.clone()
    for i, expert in enumerate(m.experts):
        rows = (choice == i).nonzero().flatten()[: len(h) // 2]
        out = out.index_add(0, rows, 5 * m.drop(expert(h[rows])))
    return out


def centred(m: Mixer, h: Tensor) -> Tensor:
    return h - h.mean(dim=0)


def centred_detached(m: Mixer, h: Tensor) -> Tensor:
    return h - h.detach().mean(dim=0)


def normalised_by_hand(m: Mixer, h: Tensor) -> Tensor:
    return (h - h.mean(dim=0)) / (h.var(dim=0) + 1e-5).sqrt()


def ranks(m: Mixer, h: Tensor) -> Tensor:
    return h + h.detach().argsort(dim=0).argsort(dim=0) / len(h)


def softmax_over_batch(m: Mixer, h: Tensor) -> Tensor:
    return 5 * h.softmax(dim=0)


def rolled(m: Mixer, h: Tensor) -> Tensor:
    return h + h.roll(1, dims=0)


def first_sets_temperature(m: Mixer, h: Tensor) -> Tensor:
    return h * (1 + h[0].detach().abs().sum())


def last_looks_at_all(m: Mixer, h: Tensor) -> Tensor:
    return torch.cat([h[:-1], h.mean(dim=0, keepdim=True)])


def farthest_row(m: Mixer, h: Tensor) -> Tensor:
    return h + h.detach()[torch.cdist(h.detach(), h.detach()).argmax(dim=1)]


class ScaledBackward(torch.autograd.Function):
    """Nothing shows in the values: the gradient of every row is scaled by a number that all rows make."""

    @staticmethod
    def forward(ctx, h, factor):
        ctx.save_for_backward(factor)
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def gradient_scaled_by_batch(m: Mixer, h: Tensor) -> Tensor:
    return ScaledBackward.apply(h, h.detach().abs().sum())


def gradient_only(m: Mixer, h: Tensor) -> Tensor:
    mean = h.mean(dim=0)
    return h + mean - mean.detach()


def late(m: Mixer, h: Tensor) -> Tensor:
    """Treats examples one by one in its first nine passes."""
    return h if m.calls < 10 else cumulative_sum(m, h)


MIXING: dict[str, Mix] = {
    mix.__name__: mix
    for mix in (
        causal_attention, cumulative_sum, previous_row, previous_row_detached, experts_with_capacity,
        gathered_experts_with_capacity, centred, centred_detached, normalised_by_hand, ranks, softmax_over_batch,
        rolled, first_sets_temperature, last_looks_at_all, farthest_row, gradient_scaled_by_batch, gradient_only,
    )
}  # fmt: skip


def running_mean(m: Mixer, h: Tensor) -> Tensor:
    if m.training:
        m.mean.lerp_(h.detach().mean(dim=0), 0.1)
    return h - m.mean


def written_never_read(m: Mixer, h: Tensor) -> Tensor:
    m.mean.copy_(h.detach()[0])
    return h


def example_counter(m: Mixer, h: Tensor) -> Tensor:
    m.mean.add_(len(h))
    return h


def memory_bank(m: Mixer, h: Tensor) -> Tensor:
    earlier = sum(m.memory) if m.memory else torch.zeros_like(h[0])
    m.memory = [*m.memory, h.detach()[0]][-5:]
    return h + earlier


def changed_weights(m: Mixer, h: Tensor) -> Tensor:
    with torch.no_grad():
        m.experts[0].weight.data += h.detach()[0].sum()
    return h


KEEPING: dict[str, Mix] = {
    mix.__name__: mix for mix in (running_mean, written_never_read, example_counter, memory_bank, changed_weights)
}


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    unit = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(unit @ unit.T, torch.arange(len(unit)), reduction="none")


def weighted_by_frequency(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=CLASSES)
    return cross_entropy(outputs, targets) / counts[targets]


def hardest_examples(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    return losses * (losses.detach() >= losses.detach().median())


LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in (contrastive, weighted_by_frequency, hardest_examples)}


def nothing(m: Mixer, h: Tensor) -> Tensor:
    return h


def batch(count: int = 12, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)
