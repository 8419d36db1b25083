"""What one example can change in the sum that comes out, rounding included: attacks on the numbers.

An example is replaced by a null record: NaN in its input or loss weight, so that it contributes nothing.
"""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping.engine import ClippedSum, ClippingEngine
from securesgd.clipping.rules import forms
from tests.clipping.clipping_reference import FAST, SLOW, distance

CASES = {**FAST, **{name: case[:2] for name, case in SLOW.items()}}
Loss = Callable[[Tensor, Tensor], Tensor]


def weighted_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets are pairs (class, weight)."""
    return functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none") * targets[:, 1]


def weighted_total(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of an example's outputs times its target: gradients are the targets."""
    return outputs.flatten(1).sum(dim=1) * targets


def change_of_one(
    engine: ClippingEngine,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    example: int,
    micro_batch: int | None = None,
    whole: ClippedSum | None = None,
) -> float:
    """l2 distance of the sums with an example and with a null record in its place, in units of the limit."""
    whole = whole or engine.clipped_sum(inputs, targets, loss, micro_batch=micro_batch)
    inputs, targets = inputs.clone(), targets.clone()
    if inputs.is_floating_point():
        inputs[example] = float("nan")
    targets[example, ...] = targets[example] * torch.tensor([0, float("nan")])[-(targets[example].numel()) :].squeeze()
    without = engine.clipped_sum(inputs, targets, loss, micro_batch=micro_batch)
    assert without.skipped >= 1
    for gradient in (*whole.gradients.values(), *without.gradients.values()):
        assert gradient.isfinite().all()
    return distance(whole.gradients, without.gradients) / engine.max_grad_norm


def allowed(engine: ClippingEngine) -> float:
    return engine.sensitivity / engine.max_grad_norm


# Gradients that are made again instead of kept: one network per kind of layer here, all in the slow suite, as float64.
MADE_AGAIN = ("mlp", "conv", "grouped wide", "pooled", "layer norm", "group norm", "scaled channels", "long sequence",
              "embedding", "conv 1d", "root parameters", "called twice", "tied")  # fmt: skip


@pytest.mark.parametrize(
    ("case", "dtype", "kept"),
    [
        pytest.param(case, dtype, kept, id=f"{case}-{str(dtype).removeprefix('torch.')}-{kept}",
                     marks=[] if dtype == torch.float32 and (kept or case in MADE_AGAIN) else [pytest.mark.slow])
        for case in CASES
        for dtype in (torch.float32, torch.float64)
        for kept in (True, False)
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_no_example_changes_the_sum_by_more_than_the_sensitivity(
    case: str, dtype: torch.dtype, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every network of the zoo, with inputs from 1e-20 to 1e20 and positions that cancel."""
    if not kept:
        monkeypatch.setattr(forms, "KEPT_BYTES", 0)
    torch.manual_seed([*CASES].index(case))
    make_model, make_inputs = CASES[case]
    model = make_model().to(dtype)
    for trial, limit in enumerate((1e-6, 1.0, 1e3)):
        inputs = make_inputs()
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        targets = torch.stack([torch.randint(4, (len(inputs),)).to(dtype), torch.ones(len(inputs), dtype=dtype)], dim=1)
        engine = ClippingEngine(model, limit)
        engine.clipped_sum(inputs, targets, weighted_cross_entropy)  # benign, so that the path is settled
        targets[:, 1] = 10.0 ** (torch.rand(len(inputs)) * 60 - 30)
        if inputs.is_floating_point():
            scales = 10.0 ** (torch.rand(len(inputs)) * 40 - 20)
            if trial == 2 and inputs.dim() > 2:  # positions that cancel
                inputs = inputs[:, :, :1].expand_as(inputs) * (torch.arange(inputs.shape[2]) % 2 * 2 - 1)[
                    (slice(None),) + (None,) * (inputs.dim() - 3)
                ].to(dtype)
            inputs = inputs * scales.view(-1, *[1] * (inputs.dim() - 1)).to(dtype)
        whole = engine.clipped_sum(inputs, targets, weighted_cross_entropy)
        for example in (trial, 6):
            changed = change_of_one(engine, inputs, targets, weighted_cross_entropy, example, whole=whole)
            assert changed <= allowed(engine), (limit, example)


def test_squares_that_vanish_are_measured() -> None:
    """|g|² is 0 in float32 here, and |g|²|a|² with it: the share was 300 times the limit."""
    model = nn.Linear(1, 4, bias=False)
    inputs, targets = torch.ones(8, 1), torch.full((8,), 1e-6)
    inputs[3], targets[3] = 1.5e19, 1e-23
    engine = ClippingEngine(model, 1e-6)
    assert change_of_one(engine, inputs, targets, weighted_total, 3) <= allowed(engine)
    inputs[3], targets[3] = 1e-25, 1e30
    assert change_of_one(engine, inputs, targets, weighted_total, 3) <= allowed(engine)


@pytest.mark.parametrize(
    ("dtype", "huge"),
    [(torch.float32, 2.0**127), (torch.float32, 1e30), (torch.float64, 1e150)],
)
@pytest.mark.parametrize("tiny", [0.6, 1.1, 1.6, 3.3])
def test_a_factor_that_makes_gradients_vanish_loses_no_digits_to_a_huge_input(
    dtype: torch.dtype, huge: float, tiny: float
) -> None:
    """factor · g near the smallest number of the type rounds up by most of its size; the input makes that large."""
    model = nn.Linear(1, 64, bias=False).to(dtype)
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    limit = max(1e-10, tiny * smallest * huge * 8)
    inputs, targets = torch.ones(4, 1, dtype=dtype), torch.zeros(4, dtype=dtype)
    inputs[2], targets[2] = huge, 1.0
    with torch.no_grad():
        model.weight.zero_()
    engine = ClippingEngine(model, limit)
    changed = change_of_one(engine, inputs, targets, weighted_total, 2)
    assert 0.9 <= changed <= allowed(engine)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("share", [0.7, 0.52, 0.99])
def test_a_large_batch_does_not_amplify_an_example(bias: bool, share: float) -> None:
    """One float32 sum of 2^17 shares has steps of up to 1.5 % of a share: an example changes it by whole steps."""
    model = nn.Linear(1, 1, bias=bias)
    if bias:
        model.weight.requires_grad_(False)  # a kept gradient
    inputs, targets = torch.ones(2**17, 1), torch.full((2**17,), share)
    engine = ClippingEngine(model, float(targets[0]))
    for micro_batch in (None, 2**16):
        assert change_of_one(engine, inputs, targets, weighted_total, 7, micro_batch) <= allowed(engine)


class Sequence(nn.Module):
    """A layer on several positions of an example."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Looked(nn.Module):
    """An embedding whose positions have weights that cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x) * torch.tensor([1e9, -1e9, 1.0]).view(3, 1)


def cancelling(kind: str) -> tuple[nn.Module, Tensor]:
    """100 examples of gradient norm about 1; example 60 has huge positions that cancel, and norm 1 too."""
    if kind == "embedding":
        inputs = torch.tensor([[3, 3, 0]]).repeat(100, 1)
        inputs[60] = 0
        return Looked(), inputs
    if kind == "sequence":
        inputs = torch.zeros(100, 3, 16)
        inputs[:, 2] = 1 / 64
        inputs[60, 0], inputs[60, 1] = 1e9, -1e9
        return Sequence(nn.Linear(16, 16, bias=False)), inputs
    inputs = torch.zeros(100, 16, 1, 3)
    inputs[..., 2] = 1 / 64
    inputs[60, :, :, 0], inputs[60, :, :, 1] = 1e9, -1e9
    return Sequence(nn.Conv2d(16, 16, 1, bias=False)), inputs


@pytest.mark.parametrize("kind", ["sequence", "convolution", "embedding"])
def test_positions_that_cancel_do_not_wipe_out_the_sum(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of an example may be far shorter than the terms it is a sum of: they must not meet others' terms."""
    monkeypatch.setattr(forms, "KEPT_BYTES", 0)
    model, inputs = cancelling(kind)
    with torch.no_grad():
        next(model.parameters()).zero_()
    engine = ClippingEngine(model, 1.0)
    assert change_of_one(engine, inputs, torch.ones(100), weighted_total, 60) <= allowed(engine)


def test_a_gradient_made_again_is_no_longer_than_it_was_measured() -> None:
    """Whatever the measurement said: here half and a tenth of the truth, and nothing."""
    gradients = torch.randn(4, 300)
    squares = gradients.double().square().sum(dim=1)
    measured = squares * torch.tensor([1.0, 0.25, 0.01, 0.0])
    alone = [
        forms.sum_again(lambda part: forms.Kept.from_gradients(gradients[part].clone()), measured, row, 2)
        .double()
        .norm()
        .item()
        for row in torch.eye(4, dtype=torch.float64)
    ]
    assert alone[0] == pytest.approx(squares[0].sqrt().item(), rel=1e-5)
    for length, square in zip(alone, measured.tolist(), strict=True):
        assert length <= square**0.5 * (1 + 1e-5)


class Unstable(nn.Module):
    """Gives another value when it is run on an example alone, for one kind of example."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (torch.where(x > 100, 2.0, x) if len(x) > 1 else x)


@pytest.mark.filterwarnings("error")
def test_one_odd_row_of_a_custom_module_contributes_nothing_and_decides_nothing() -> None:
    """The way of the computation, its warning and its time would tell that the record was there."""
    model = nn.Sequential(Unstable(), nn.Linear(4, 4)).double()
    inputs, targets = torch.rand(7, 4, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    engine = ClippingEngine(model, 1.0)
    engine.clipped_sum(inputs, targets, weighted_total)
    inputs[3] = 101
    assert change_of_one(engine, inputs, targets, weighted_total, 3) == 0
    assert engine.slow_reason is None


@pytest.mark.parametrize("size", [1, 127, 128, 300, 100_000])
def test_lengths_in_float32_are_exact_to_the_proven_digits(size: int) -> None:
    """Equal numbers: adding their squares one after the other drifts."""
    vectors = torch.full((3, size), 0.1) * torch.tensor([1.0, 1e-15, 1e15]).unsqueeze(1)
    exact = vectors.double().square().sum(dim=1)
    torch.testing.assert_close(forms.squared_lengths(vectors), exact, rtol=8e-6, atol=0)


def test_factors_are_rounded_down() -> None:
    factors = torch.cat([torch.rand(1000, dtype=torch.float64), 10.0 ** -torch.arange(60, dtype=torch.float64)])
    rounded = forms.round_down(factors, torch.float32)
    assert (rounded.double() <= factors).all()
    torch.testing.assert_close(rounded.double(), factors, rtol=2e-7, atol=2e-45)


def test_the_sensitivity_covers_every_rounding() -> None:
    """The terms of the proof again, in exact arithmetic."""
    for dtype, digits in ((torch.float32, 24), (torch.float64, 53)):
        unit = Fraction(1, 2**digits)
        groups = 2 * 160 * 163 * unit / (1 - 163 * unit)
        between = 2 * Fraction(2**18) ** 2 / 2**53
        length = 132 * unit + Fraction(2**30, 2**53) + Fraction(1, 2**29)
        model = nn.Linear(2, 2).to(dtype)
        for limit in (1e-10, 0.1, 1.0, 1e3):
            sensitivity = Fraction(ClippingEngine(model, limit).sensitivity)
            assert sensitivity >= Fraction(limit) * (1 + groups + between) * (1 + length)
            assert sensitivity <= Fraction(limit) * Fraction(1.0033 if digits == 24 else 1.00002)
