"""Clipped sums of networks that take boxes: three streams, W and |W|."""

import warnings

import pytest
import torch
from torch import nn

from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.rules import forms, interval
from securesgd.models.interval_network import IntervalLinear, IntervalNetwork
from tests.clipping.clipping_reference import distance, norm, reference
from tests.models.interval_networks import NETWORKS, SHAPE


def model_and_data(
    name: str, dtype: torch.dtype, count: int = 11
) -> tuple[IntervalNetwork, torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    model = IntervalNetwork(NETWORKS[name](), SHAPE, steps=1, warm_up=0.0, ramp=0.0, initialisation="own").to(dtype)
    x, y = torch.rand(count, *SHAPE, dtype=dtype), torch.randint(5, (count,))
    return model.train(), x, y


@pytest.fixture(autouse=True)
def _the_fast_path() -> None:
    warnings.simplefilter("error")  # the slow path warns


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_clipped_sum_is_that_of_a_loop_over_examples(name: str, copies: int) -> None:
    model, x, y = model_and_data(name, torch.float64)
    sums, norms = reference(model, x, y, 0.3, model.loss)
    engine = ClippingEngine(model, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the next line says why
        fast = engine.clipped_sum(x, y, model.loss, copies=copies)
    assert engine.slow_reason is None
    assert distance(sums, fast.gradients) <= 1e-10 * norm(sums)
    torch.testing.assert_close(fast.norms, norms, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("name", NETWORKS)
def test_in_float32_and_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = model_and_data(name, torch.float32, count=37)
    double, _, _ = model_and_data(name, torch.float64)
    double.load_state_dict(model.state_dict())
    sums, norms = reference(double, x.double(), y, 0.3, double.loss)
    for kept in (forms.KEPT_BYTES, 0):
        monkeypatch.setattr(forms, "KEPT_BYTES", kept)
        monkeypatch.setattr(interval, "CHUNK_NUMBERS", 2**10)
        fast = ClippingEngine(model, 0.3).clipped_sum(x, y, model.loss, micro_batch=20)
        assert distance(sums, fast.gradients) <= 1e-4 * norm(sums)
        torch.testing.assert_close(fast.norms.double(), norms, rtol=1e-4, atol=0.0)


def test_weights_of_zero_have_no_slope() -> None:
    model, x, y = model_and_data("dense", torch.float64)
    with torch.no_grad():
        model.network[1].weight[:, ::3] = 0  # type: ignore[index]
    sums, _ = reference(model, x, y, 0.3, model.loss)
    fast = ClippingEngine(model, 0.3).clipped_sum(x, y, model.loss)
    assert distance(sums, fast.gradients) <= 1e-10 * norm(sums)


def test_streams_that_cancel_are_summed_one_by_one_and_stay_within_the_limit() -> None:
    """Huge terms of the three streams that add up to little: rounding must not pass for a gradient."""
    torch.manual_seed(0)
    layer = nn.Linear(32, 8)
    streams = torch.randn(6, 3, 32)
    streams[:, 2] = streams[:, 2].abs()
    gradient = torch.randn(6, 3, 8)
    streams[:3, 1], gradient[:3, 1] = streams[:3, 0], -gradient[:3, 0] * (1 + 1e-6)  # the signed streams cancel
    gradient[:3, 2] = 0
    boxed = IntervalLinear(layer)
    call = forms.LayerCall(
        module=boxed, inputs=(streams,), output=None, output_gradient=gradient, examples=6, copies=1,
        wanted=frozenset({"weight"}), keep=frozenset(), scratch=forms.Scratch(),
    )  # fmt: skip
    form = interval.interval_linear_gradients(call)["weight"]
    squares = form.squared_norms()
    factors = (1.0 / squares.sqrt()).clamp(max=1.0)
    for example in range(6):
        alone = torch.zeros(6, dtype=torch.float64)
        alone[example] = factors[example]
        assert (
            float(form.weighted_sum(alone).double().norm())
            <= float(factors[example] * squares[example].sqrt()) * 1.0001
        )


def test_a_step_of_a_network_of_the_user_needs_no_slow_path_with_empty_batches() -> None:
    model, x, y = model_and_data("residual", torch.float32)
    engine = ClippingEngine(model, 0.3)
    empty = engine.clipped_sum(x[:0], y[:0], model.loss)
    assert norm(empty.gradients) == 0
    engine.clipped_sum(x[:1], y[:1], model.loss)
    assert engine.slow_reason is None
