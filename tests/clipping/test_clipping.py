"""The clipping engine against a loop over examples: what it returns, and what it guarantees."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.hooks import Call
from securesgd.errors import InvalidInputError
from tests.clipping.clipping_reference import (
    FAST,
    SLOW,
    cross_entropy,
    distance,
    example_gradient,
    images,
    norm,
    reference,
    vectors,
)

CASES = [*FAST, *SLOW]


def build(case: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, torch.Tensor, torch.Tensor, float]:
    """A network of the zoo, a batch for it, and a limit that clips some of the batch."""
    torch.manual_seed(CASES.index(case))
    make_model, make_inputs = (FAST.get(case) or SLOW[case])[:2]
    model, inputs = make_model().to(dtype), make_inputs()
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    targets = torch.randint(4, (len(inputs),))
    _, norms = reference(model, inputs, targets, 1.0)
    return model, inputs, targets, (norms.min() + norms.max()).item() / 2


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"])
@pytest.mark.parametrize("case", FAST)
def test_equals_a_loop_over_examples(case: str, dtype: torch.dtype, tolerance: float) -> None:
    model, inputs, targets, limit = build(case, dtype)
    expected, norms = reference(model, inputs, targets, limit)
    assert norms.min() < limit < norms.max()
    engine = ClippingEngine(model, max_grad_norm=limit)
    result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert engine.slow_reason is None
    assert distance(result.gradients, expected) <= tolerance * norm(expected)
    for name, gradient in result.gradients.items():
        assert norm({name: gradient - expected[name]}) <= 20 * tolerance * norm({name: expected[name]}) + tolerance**2
    torch.testing.assert_close(result.norms.double(), norms, rtol=tolerance, atol=0)
    torch.testing.assert_close(result.losses, cross_entropy(model(inputs), targets), rtol=tolerance, atol=0)


@pytest.mark.parametrize("case", SLOW)
def test_what_the_fast_path_cannot_prove_runs_one_by_one(case: str) -> None:
    model, inputs, targets, limit = build(case)
    expected, norms = reference(model, inputs, targets, limit)
    engine = ClippingEngine(model, max_grad_norm=limit)
    with pytest.warns(UserWarning, match="one by one"):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert engine.slow_reason is not None
    assert SLOW[case][2] in engine.slow_reason
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    torch.testing.assert_close(result.norms, norms)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        again = engine.clipped_sum(inputs, targets, cross_entropy)
    assert distance(again.gradients, expected) <= 1e-10 * norm(expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:clipping runs")
def test_one_example_more_changes_the_sum_by_at_most_the_limit(case: str) -> None:
    """Red if biases are skipped, layers are clipped on their own, or the batch mean is clipped."""
    model, inputs, targets, limit = build(case)
    if inputs.is_floating_point():
        inputs[2] *= 1e3
    limit /= 4
    engine = ClippingEngine(model, max_grad_norm=limit)
    whole = engine.clipped_sum(inputs, targets, cross_entropy).gradients
    for out in range(len(inputs)):
        rest = [i for i in range(len(inputs)) if i != out]
        without = engine.clipped_sum(inputs[rest], targets[rest], cross_entropy).gradients
        gradient = norm(example_gradient(model, inputs[out : out + 1], targets[out : out + 1]))
        assert distance(whole, without) <= limit * (1 + 1e-9)
        assert distance(whole, without) == pytest.approx(min(limit, gradient), rel=1e-6)


def test_the_limit_is_over_all_parameters_together() -> None:
    """Clipping each layer to C would give norm C · sqrt(parameters); ignoring biases, more than C."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    result = ClippingEngine(model, 1e-3).clipped_sum(vectors(6, 1) * 9, torch.tensor([1]), cross_entropy)
    assert norm(result.gradients) == pytest.approx(1e-3, rel=1e-9)
    pair = ClippingEngine(model, 1e-3).clipped_sum(vectors(6, 1).repeat(2, 1), torch.tensor([1, 1]), cross_entropy)
    assert norm(pair.gradients) == pytest.approx(2e-3, rel=1e-9)


def test_small_gradients_are_not_scaled_up() -> None:
    model, inputs, targets, _ = build("mlp")
    result = ClippingEngine(model, 1e6).clipped_sum(inputs, targets, cross_entropy)
    plain = torch.autograd.grad(cross_entropy(model(inputs), targets).sum(), list(model.parameters()))
    for gradient, expected in zip(result.gradients.values(), plain, strict=True):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("case", ["conv", "grouped wide", "many maps", "long sequence", "tied", "custom", "residual"])
@pytest.mark.parametrize("micro_batch", [1, 3, 7, 100])
def test_micro_batches_change_nothing(case: str, micro_batch: int) -> None:
    model, inputs, targets, limit = build(case)
    engine = ClippingEngine(model, limit)
    whole = engine.clipped_sum(inputs, targets, cross_entropy)
    pieces = engine.clipped_sum(inputs, targets, cross_entropy, micro_batch=micro_batch)
    assert distance(whole.gradients, pieces.gradients) <= 1e-10 * norm(whole.gradients)
    torch.testing.assert_close(whole.norms, pieces.norms)
    torch.testing.assert_close(whole.losses, pieces.losses)


def test_an_empty_batch_gives_zeros() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    result = ClippingEngine(model, 1.0).clipped_sum(torch.zeros(0, 12), torch.zeros(0, dtype=torch.long), cross_entropy)
    assert norm(result.gradients) == 0
    assert {n: g.shape for n, g in result.gradients.items()} == {n: p.shape for n, p in model.named_parameters()}
    assert result.norms.shape == result.losses.shape == (0,)


@pytest.mark.parametrize("case", ["conv in place", "custom", "called twice", "parametrized"])
def test_the_model_is_left_as_it_was(case: str) -> None:
    model, inputs, targets, limit = build(case)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, hooks = copy.deepcopy(model), [len(m._forward_hooks) for m in model.modules()]
    ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy)
    for (name, p), (_, old) in zip(model.named_parameters(), before.named_parameters(), strict=True):
        assert torch.equal(p, old), name
        assert torch.equal(p.grad, torch.ones_like(p))
        assert p.requires_grad == old.requires_grad
        assert p.stride() == old.stride()
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_gradients_have_the_memory_layout_of_their_parameters_and_no_graph() -> None:
    model = nn.Sequential(nn.Conv2d(24, 48, 5, padding=2), nn.Flatten(), nn.Linear(768, 4)).double()
    result = ClippingEngine(model, 1.0).clipped_sum(images(24, 4), torch.zeros(7, dtype=torch.long), cross_entropy)
    for name, p in model.named_parameters():
        assert result.gradients[name].stride() == p.stride()
        assert not result.gradients[name].requires_grad
    assert not result.norms.requires_grad
    assert not result.losses.requires_grad


def test_requires_grad_may_change_between_calls() -> None:
    model, inputs, targets, limit = build("mlp")
    engine = ClippingEngine(model, limit)
    engine.clipped_sum(inputs, targets, cross_entropy)
    model[0].requires_grad_(False)
    expected, _ = reference(model, inputs, targets, limit)
    assert distance(engine.clipped_sum(inputs, targets, cross_entropy).gradients, expected) < 1e-10


@pytest.mark.parametrize("case", ["conv in place", "custom", "called twice", "borrowed parameter"])
@pytest.mark.filterwarnings("ignore:clipping runs")
def test_nothing_recorded_outlives_the_call(case: str) -> None:
    """Hooks in autograd's graph that lead back to it are invisible to the garbage collector."""
    model, inputs, targets, limit = build(case)
    engine = ClippingEngine(model, limit)
    for _ in range(3):
        engine.clipped_sum(inputs, targets, cross_entropy)
        engine.slow_reason = None
    inputs[0] *= float("nan")
    assert engine.clipped_sum(inputs, targets, cross_entropy).skipped == 1
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is Call]


def test_works_inside_no_grad() -> None:
    model, inputs, targets, limit = build("conv")
    expected, _ = reference(model, inputs, targets, limit)
    with torch.no_grad():
        result = ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy)
    assert distance(result.gradients, expected) < 1e-10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_an_example_with_a_loss_that_is_not_finite_contributes_nothing(bad: float, micro_batch: int | None) -> None:
    """No error, no warning: either would tell that the record is there."""
    model, inputs, targets, limit = build("mlp")
    expected, _ = reference(model, inputs[[0, 1, 2, 3, 5, 6]], targets[[0, 1, 2, 3, 5, 6]], limit)
    inputs[4, 0] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ClippingEngine(model, limit).clipped_sum(inputs, targets, cross_entropy, micro_batch=micro_batch)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    assert result.skipped == 1
    assert result.norms.isnan().tolist() == result.losses.isnan().tolist() == [i == 4 for i in range(7)]


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_an_example_with_a_gradient_that_is_not_finite_contributes_nothing(micro_batch: int | None) -> None:
    model = nn.Linear(3, 4).double()
    inputs = vectors(3)
    inputs[3] = 0
    with torch.no_grad():
        model.bias.zero_()

    def root(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(dim=1).sqrt()  # finite at 0, its gradient is not

    rest = [0, 1, 2, 4, 5, 6]
    expected, _ = reference(model, inputs[rest], torch.zeros(6), 1.0, root)
    result = ClippingEngine(model, 1.0).clipped_sum(inputs, torch.zeros(7), root, micro_batch=micro_batch)
    assert distance(result.gradients, expected) <= 1e-10 * norm(expected)
    assert result.skipped == 1


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, targets, _ = build("mlp")
    for limit in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="max_grad_norm"):
            ClippingEngine(model, limit)
    engine = ClippingEngine(model, 1.0)
    with pytest.raises(InvalidInputError, match="7 inputs but 6 targets"):
        engine.clipped_sum(inputs, targets[:-1], cross_entropy)
    with pytest.raises(InvalidInputError, match="copies is 0"):
        engine.clipped_sum(inputs, targets, cross_entropy, copies=0)
    with pytest.raises(InvalidInputError, match="micro_batch is 0"):
        engine.clipped_sum(inputs, targets, cross_entropy, micro_batch=0)
    with pytest.raises(InvalidInputError, match="one loss per row"):
        engine.clipped_sum(inputs, targets, functional.cross_entropy)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with pytest.raises(InvalidInputError, match="float32_matmul_precision is 'medium'"):
        engine.clipped_sum(inputs, targets, cross_entropy)
    monkeypatch.undo()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidInputError, match="autocast"):
        engine.clipped_sum(inputs, targets, cross_entropy)
