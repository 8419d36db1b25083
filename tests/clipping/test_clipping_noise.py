"""Models that draw random numbers, and several copies of an example."""

import pytest
import torch
from torch import Tensor, nn

from securesgd.clipping.engine import ClippingEngine
from tests.clipping.clipping_reference import (
    cross_entropy,
    distance,
    example_gradient,
    images,
    norm,
    reference,
    vectors,
)


class Noise(nn.Module):
    """Adds fresh noise, and remembers what it added."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = generator
        self.drawn: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        self.drawn.append(noise)
        return x + noise


class Replay(nn.Module):
    """Adds given noise."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise


class NoisyLayer(nn.Module):
    """Noise and a parameter in one module: it cannot be run again for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.scale + 0.1 * torch.randn_like(x))


def conv_layers(middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), middle, nn.Tanh(), nn.Conv2d(6, 12, 3, padding=1), nn.GroupNorm(2, 12), nn.Tanh(),
        nn.Conv2d(12, 24, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(384, 4),
    ).double()  # fmt: skip


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_copies_are_averaged_before_clipping(copies: int, micro_batch: int | None) -> None:
    noise = Noise()
    model, inputs, targets = conv_layers(noise), images(2, 6), torch.randint(4, (7,))
    result = ClippingEngine(model, 1.0).clipped_sum(
        inputs, targets, cross_entropy, copies=copies, micro_batch=micro_batch
    )
    rows = torch.cat(noise.drawn)
    assert len(rows) == 7 * copies
    assert len(rows.flatten(1).unique(dim=0)) == 7 * copies  # fresh for every copy
    limit_sum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    clipped = 0
    engine_limit = 1.0
    for i in range(7):
        drawn = rows[i * copies : (i + 1) * copies]
        replay = conv_layers(Replay(drawn))
        x, y = inputs[i : i + 1].repeat_interleave(copies, 0), targets[i : i + 1].repeat_interleave(copies, 0)
        gradient = example_gradient(replay, x, y)
        size = norm(gradient)
        clipped += size > engine_limit
        assert result.norms[i].item() == pytest.approx(size, rel=1e-10)
        for name, g in gradient.items():
            limit_sum[name] += g * min(1.0, engine_limit / size)
    assert clipped > 0
    assert distance(result.gradients, limit_sum) <= 1e-10 * norm(limit_sum)


@pytest.mark.parametrize("layer", [nn.Conv2d(24, 48, 5, padding=2), nn.Conv2d(16, 4, 3, stride=2, groups=2)])
def test_copies_of_a_model_without_noise_change_nothing(layer: nn.Conv2d) -> None:
    size = {24: 768, 16: 4}[layer.in_channels]
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(size, 4)).double()
    inputs, targets = images(layer.in_channels, 4), torch.randint(4, (7,))
    once = ClippingEngine(model, 1.0).clipped_sum(inputs, targets, cross_entropy)
    engine = ClippingEngine(model, 1.0)
    thrice = engine.clipped_sum(inputs, targets, cross_entropy, copies=3)
    assert engine.slow_reason is None
    assert distance(once.gradients, thrice.gradients) <= 1e-10 * norm(once.gradients)
    torch.testing.assert_close(once.norms, thrice.norms)
    torch.testing.assert_close(once.losses, thrice.losses)


def test_copies_of_sequences_and_embeddings() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Flatten(), nn.Linear(45, 4)
    ).double()
    inputs, targets = torch.randint(11, (7, 9)), torch.randint(4, (7,))
    expected, _ = reference(model, inputs, targets, 1.0)
    engine = ClippingEngine(model, 1.0)
    result = engine.clipped_sum(inputs, targets, cross_entropy, copies=4)
    assert engine.slow_reason is None
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)


def test_a_parameter_inside_a_noisy_module_runs_one_by_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NoisyLayer(), nn.Linear(12, 4)).double()
    inputs, targets = vectors(12), torch.randint(4, (7,))
    engine = ClippingEngine(model, 0.5)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="module '0'.*cannot be vectorised"):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
    torch.manual_seed(1)  # the first attempt was taken back, so the loop draws the same numbers
    expected, _ = reference(model, inputs, targets, 0.5)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)


def test_an_own_generator_is_wound_back_when_a_pass_is_repeated() -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1)  # fails on channels-last images, so the first pass is repeated

    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Noise(generator), Flat(), nn.Linear(64, 4)).double()
    engine = ClippingEngine(model, 1.0)
    inputs, targets = images(3, 6), torch.randint(4, (7,))
    first = engine.clipped_sum(inputs, targets, cross_entropy)
    generator.manual_seed(5)
    second = engine.clipped_sum(inputs, targets, cross_entropy)
    assert engine.slow_reason is None
    assert distance(first.gradients, second.gradients) == 0


def test_dropout_uses_the_mask_of_the_forward_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 30), nn.Dropout(0.5), nn.Tanh(), nn.Linear(30, 4)).double()
    inputs, targets = vectors(12), torch.randint(4, (7,))
    torch.manual_seed(9)
    result = ClippingEngine(model, 1e9).clipped_sum(inputs, targets, cross_entropy)
    torch.manual_seed(9)
    plain = torch.autograd.grad(cross_entropy(model(inputs), targets).sum(), list(model.parameters()))
    for gradient, expected in zip(result.gradients.values(), plain, strict=True):
        torch.testing.assert_close(gradient, expected)
