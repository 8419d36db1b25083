"""The engine on the paper's networks: against a loop over examples and against Opacus."""

import copy

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from securesgd.clipping.engine import ClippingEngine
from securesgd.models.networks import network
from tests.clipping.clipping_reference import cross_entropy, distance, norm, reference

SHAPES = {"cifar-cnn": (3, 32, 32), "mnist-cnn": (1, 28, 28), "tanh-cnn": (1, 28, 28)}
ONCE = [pytest.param("cifar-cnn", marks=pytest.mark.slow), "mnist-cnn", "tanh-cnn"]
"""The largest network is compared with a loop in the fast suite, and in every other way in the slow one."""


def problem(name: str, dtype: torch.dtype, batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor, float]:
    torch.manual_seed(0)
    model = network(name, SHAPES[name], 10).to(dtype)
    inputs, targets = torch.rand(batch, *SHAPES[name], dtype=dtype), torch.randint(10, (batch,))
    _, norms = reference(model, inputs, targets, 1.0)
    return model, inputs, targets, (norms.min() + norms.max()).item() / 2


@pytest.mark.parametrize("name", SHAPES)
def test_equals_a_loop_over_examples(name: str) -> None:
    model, inputs, targets, limit = problem(name, torch.float64, 4)
    expected, norms = reference(model, inputs, targets, limit)
    result = ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    torch.testing.assert_close(result.norms, norms, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ONCE)
def test_float32_equals_the_same_forward_pass_differentiated_one_example_at_a_time(name: str) -> None:
    """One forward pass for both: two different ones may round a max-pool tie to different pixels."""
    model, inputs, targets, limit = problem(name, torch.float32, 8)
    result = ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy)
    rows = torch.empty_like(inputs, memory_format=torch.channels_last).copy_(inputs)
    losses = cross_entropy(model(rows), targets)
    parameters = dict(model.named_parameters())
    expected = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(8):
        gradient = torch.autograd.grad(losses[i], list(parameters.values()), retain_graph=True)
        size = norm(dict(zip(parameters, gradient, strict=True)))
        assert result.norms[i].item() == pytest.approx(size, rel=1e-5)
        for key, g in zip(parameters, gradient, strict=True):
            expected[key] += g * min(1.0, limit / size)
    assert distance(result.gradients, expected) <= 1e-5 * norm(expected)


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.filterwarnings("ignore")
def test_equals_opacus(name: str) -> None:
    model, inputs, targets, limit = problem(name, torch.float64, 4)
    private = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    cross_entropy(private(inputs), targets).sum().backward()
    samples = {key.removeprefix("_module."): p.grad_sample for key, p in private.named_parameters()}
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples.values()]).norm(dim=0)
    factors = (limit / norms).clamp(max=1.0)
    expected = {key: torch.tensordot(factors, g, dims=1) for key, g in samples.items()}
    result = ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    torch.testing.assert_close(result.norms, norms, rtol=1e-10, atol=0)
