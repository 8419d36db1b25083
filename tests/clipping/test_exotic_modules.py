"""Modules off the beaten track against a loop over examples: equal on either path, or refused; never silently wrong."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from tests.clipping.clipping_reference import cross_entropy, distance, norm, reference, vectors
from tests.clipping.exotic_models import EXOTIC, RANDOM, REFUSED, PassCounter

LIMITS = (1e-3, 1.0, 1e3)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def build(case: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(len(case))
    make_model, make_inputs = EXOTIC.get(case) or RANDOM[case]
    model = make_model().double()
    if case == "shared weight of two layers":
        model.b.weight = model.a.weight
    inputs = make_inputs()
    return model, inputs, torch.randint(4, (len(inputs),))


class Stateless(nn.Module):
    """A model whose buffers are the same in every pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.before = model, {name: buffer.clone() for name, buffer in model.named_buffers()}

    def forward(self, x: Tensor) -> Tensor:
        for name, buffer in self.model.named_buffers():
            buffer.data.copy_(self.before[name])
        return self.model(x)


def compare(case: str, limit: float, copies: int, micro_batch: int | None) -> str | None:
    model, inputs, targets = build(case)
    expected, norms = reference(Stateless(copy.deepcopy(model)), inputs, targets, limit)
    expected = {name.removeprefix("model."): gradient for name, gradient in expected.items()}
    engine = ClippingEngine(model, limit)
    result = engine.clipped_sum(inputs, targets, cross_entropy, copies, micro_batch)
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)
    torch.testing.assert_close(result.norms, norms)
    again = engine.clipped_sum(inputs[:3], targets[:3], cross_entropy, copies, micro_batch)
    assert norm(again.gradients) <= 3 * limit * (1 + 1e-9)
    return engine.slow_reason


@pytest.mark.parametrize("case", EXOTIC)
def test_equals_a_loop_over_examples(case: str) -> None:
    compare(case, 1.0, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("case", EXOTIC)
def test_equals_a_loop_over_examples_for_every_limit_copies_and_pieces(case: str, limit: float) -> None:
    for copies, micro_batch in ((1, None), (2, None), (1, 1), (1, 2), (2, 3)):
        compare(case, limit, copies, micro_batch)


@pytest.mark.parametrize("limit", [1.0, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (1e-3, 1e3))])
@pytest.mark.parametrize("case", RANDOM)
def test_random_modules_equal_the_same_draws_differentiated_one_example_at_a_time(case: str, limit: float) -> None:
    """On the fast path the draws are those of the batch; one by one, those of a loop."""
    model, inputs, targets = build(case)
    engine = ClippingEngine(model, limit)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    result = engine.clipped_sum(inputs, targets, cross_entropy)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    if engine.slow_reason is not None:
        expected, _ = reference(model, inputs, targets, limit)
    else:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        expected = {name: torch.zeros_like(p) for name, p in named.items()}
        losses = cross_entropy(model(inputs), targets)
        for i in range(len(inputs)):
            gradient = dict(zip(named, torch.autograd.grad(losses[i], named.values(), retain_graph=True), strict=True))
            for name, g in gradient.items():
                expected[name] += g * min(1.0, limit / norm(gradient))
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make_model, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message):
        ClippingEngine(make_model(), 1.0).clipped_sum(
            torch.randn(5, 12), torch.zeros(5, dtype=torch.long), cross_entropy
        )


@pytest.mark.parametrize("path", ["fast", "slow"])
@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_a_buffer_that_counts_passes_does_not_tell_the_size_of_the_batch(path: str, micro_batch: int | None) -> None:
    counter = PassCounter()
    engine = ClippingEngine(nn.Sequential(counter, nn.Linear(12, 4)).double(), 1.0)
    if path == "slow":
        engine.slow_reason = "asked for"
    for call, count in enumerate((2, 5, 1, 7), start=1):
        engine.clipped_sum(vectors(12, count), torch.zeros(count, dtype=torch.long), cross_entropy, 1, micro_batch)
        assert counter.passes == call
