"""Attention and recurrent layers on the fast path, against a loop over examples and against torch's own forward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.hooks import LayerHooks
from securesgd.clipping.units import trainable_units
from tests.clipping.clipping_reference import cross_entropy, distance, norm, reference, sequences
from tests.clipping.exotic_models import LAST, net

Forward = Callable[[Any, Tensor], Tensor]
BATCH, STEPS, WIDTH = 6, 4, 12
CAUSAL = nn.Transformer.generate_square_subsequent_mask(STEPS, dtype=torch.float64)


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(WIDTH, 3, **{"batch_first": True, **options})


def padding(x: Tensor) -> Tensor:
    """True for the last steps of some rows: by a row's own numbers, so that each row alone has the same."""
    long = (x[:, 0, 0] > 0).unsqueeze(1)
    return ~long & (torch.arange(x.shape[1]) >= 2)


def per_head(m: Any, x: Tensor) -> Tensor:
    mask = (x[:, None, :, :1] + x[:, None, None, :, 1]).expand(-1, 3, -1, -1).flatten(0, 1)
    return m.out(m.a(x, x, x, attn_mask=mask, need_weights=False)[0].mean(dim=1))


def time_first(m: Any, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    return m.out(m.a(y, y, y)[0].mean(dim=0))


def with_weights(m: Any, x: Tensor) -> Tensor:
    y, weights = m.a(x, x, x, average_attn_weights=False)
    return m.out((y + weights.mean(dim=(1, 3)).unsqueeze(2)).mean(dim=1))


def frozen_in_projection() -> nn.Module:
    layer = attention()()
    layer.in_proj_weight.requires_grad_(False)
    layer.in_proj_bias.requires_grad_(False)
    return layer


def frozen_out_projection() -> nn.Module:
    layer = attention()()
    layer.out_proj.requires_grad_(False)
    return layer


def frozen_hidden_weight() -> nn.Module:
    layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)
    layer.weight_hh_l0.requires_grad_(False)
    layer.bias_ih_l0.requires_grad_(False)
    return layer


def frozen_hidden_bias() -> nn.Module:
    layer = nn.GRU(WIDTH, WIDTH, batch_first=True)
    layer.bias_hh_l0.requires_grad_(False)
    return layer


def states(m: Any, x: Tensor) -> Tensor:
    y, (h, c) = m.a(x)
    return m.out(y.mean(dim=1) + h.prod(dim=0) + torch.tanh(c).sum(dim=0))


def given_start(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.start(x[:, 0])).unsqueeze(0)
    return m.out(m.a(x, (h, h * 2))[0].mean(dim=1))


def last_state(m: Any, x: Tensor) -> Tensor:
    return m.out(torch.cat([h.mean(dim=0) for h in m.a(x)[1:]], dim=1))


def recurrent_time_first(m: Any, x: Tensor) -> Tensor:
    return m.out(m.a(x.transpose(0, 1))[0][-1])


def average(m: Any, x: Tensor) -> Tensor:
    return m.out(m.a(x)[0].mean(dim=1))


def self_attention(**options: Any) -> Forward:
    return lambda m, x: m.out(m.a(x, x, x, **options)[0].mean(dim=1))


def decoder(m: Any, x: Tensor) -> Tensor:
    return m.out(m.a(x, torch.tanh(x[:, :2])).mean(dim=1))


WIDE = {"a": attention(), "out": LAST}
CASES: dict[str, Callable[[], nn.Module]] = {
    "self": net(self_attention(need_weights=False), **WIDE),
    "self with weights": net(self_attention(), **WIDE),
    "no bias": net(self_attention(), a=attention(bias=False), out=LAST),
    "causal hint": net(self_attention(need_weights=False, attn_mask=CAUSAL, is_causal=True), **WIDE),
    "causal mask": net(self_attention(attn_mask=CAUSAL, is_causal=True), **WIDE),
    "mask of booleans": net(self_attention(attn_mask=CAUSAL < 0, need_weights=False), **WIDE),
    "padding": net(lambda m, x: m.out(m.a(x, x, x, key_padding_mask=padding(x))[0].mean(dim=1)), **WIDE),
    "padding and mask": net(
        lambda m, x: m.out(m.a(x, x, x, padding(x), False, CAUSAL < 0)[0].mean(dim=1)), **WIDE),
    "mask per head": net(per_head, **WIDE),
    "time first": net(time_first, a=attention(batch_first=False), out=LAST),
    "weights used outside": net(with_weights, **WIDE),
    "other keys": net(lambda m, x: m.out(m.a(x, torch.tanh(x), x[:, :, :])[0].mean(dim=1)), **WIDE),
    "called twice": net(lambda m, x: m.out(m.a(*3 * [m.a(x, x, x)[0]])[0].mean(dim=1)), **WIDE),
    "frozen in-projection": net(self_attention(), a=frozen_in_projection, out=LAST),
    "frozen out-projection": net(self_attention(), a=frozen_out_projection, out=LAST),
    "encoder": net(
        lambda m, x: m.out(m.a(x, src_key_padding_mask=padding(x)).mean(dim=1)),
        a=lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 3, 8, dropout=0.0, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False), out=LAST),
    "decoder": net(decoder, a=lambda: nn.TransformerDecoderLayer(WIDTH, 3, 8, 0.0, batch_first=True), out=LAST),
    "lstm": net(average, a=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), out=LAST),
    "lstm, all states used": net(states, a=lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), out=LAST),
    "lstm, start given": net(given_start, a=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
                             start=lambda: nn.Linear(WIDTH, WIDTH), out=LAST),
    "lstm both ways": net(
        average, a=lambda: nn.LSTM(WIDTH, 6, 2, batch_first=True, bidirectional=True, bias=False), out=LAST),
    "lstm called twice": net(lambda m, x: m.out(m.a(m.a(x)[0])[0].mean(dim=1)),
                             a=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), out=LAST),
    "lstm with frozen weights": net(average, a=frozen_hidden_weight, out=LAST),
    "gru": net(last_state, a=lambda: nn.GRU(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True), out=LAST),
    "gru time first": net(recurrent_time_first, a=lambda: nn.GRU(WIDTH, WIDTH, bias=False), out=LAST),
    "gru with a frozen bias": net(average, a=frozen_hidden_bias, out=LAST),
    "rnn": net(average, a=lambda: nn.RNN(WIDTH, WIDTH, 2, batch_first=True), out=LAST),
    "rnn with relu": net(average, a=lambda: nn.RNN(WIDTH, WIDTH, nonlinearity="relu", batch_first=True), out=LAST),
}  # fmt: skip


def build(case: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(len(case))
    return CASES[case]().to(dtype), sequences(STEPS, WIDTH, BATCH).to(dtype), torch.randint(4, (BATCH,))


@pytest.mark.parametrize(("copies", "micro_batch"), [(1, None), (2, 4)])
@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop_over_examples(case: str, copies: int, micro_batch: int | None) -> None:
    model, inputs, targets = build(case)
    limit = float(reference(model, inputs, targets, 1.0)[1].median())
    expected, norms = reference(model, inputs, targets, limit)
    engine = ClippingEngine(model, limit)
    for _ in range(2):
        result = engine.clipped_sum(inputs, targets, cross_entropy, copies, micro_batch)
        assert engine.slow_reason is None
        assert distance(result.gradients, expected) <= 1e-9 * norm(expected)
        torch.testing.assert_close(result.norms, norms)
    assert norm(engine.clipped_sum(inputs[:0], targets[:0], cross_entropy).gradients) == 0


@pytest.mark.parametrize("case", ["self", "other keys", "lstm both ways", "gru"])
def test_equals_a_loop_in_single_precision(case: str) -> None:
    model, inputs, targets = build(case)
    expected, _ = reference(model, inputs, targets, 0.5)
    engine = ClippingEngine(model.float(), 0.5)
    result = engine.clipped_sum(inputs.float(), targets, cross_entropy)
    assert engine.slow_reason is None
    assert distance(result.gradients, expected) <= 1e-5 * norm(expected)


@pytest.mark.parametrize("case", CASES)
def test_the_code_that_records_computes_what_torch_computes(case: str) -> None:
    model, inputs, _ = build(case)
    with LayerHooks(trainable_units(model), len(inputs), lambda *_: None) as hooks:
        recorded = model(inputs)
        assert hooks.calls
    hooks.release()
    torch.testing.assert_close(recorded, model(inputs), rtol=1e-12, atol=1e-13)
    assert all("forward" not in vars(module) for module in model.modules())


DROPPING = {
    "attention": net(self_attention(need_weights=False), a=attention(dropout=0.4), out=LAST),
    "attention with weights": net(self_attention(), a=attention(dropout=0.4), out=LAST),
    "lstm": net(average, a=lambda: nn.LSTM(WIDTH, 6, 3, True, True, 0.4, True), out=LAST),
}


@pytest.mark.parametrize("case", DROPPING)
def test_dropout_inside_a_layer_draws_what_torch_draws(case: str) -> None:
    torch.manual_seed(3)
    model, inputs, targets = DROPPING[case]().double(), sequences(STEPS, WIDTH, BATCH), torch.randint(4, (BATCH,))
    engine = ClippingEngine(model, 0.5)
    torch.manual_seed(1)
    result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert engine.slow_reason is None
    torch.manual_seed(1)
    losses = cross_entropy(model(inputs), targets)
    torch.testing.assert_close(result.losses, losses.detach())
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for loss in losses:
        gradient = dict(zip(total, torch.autograd.grad(loss, model.parameters(), retain_graph=True), strict=True))
        for name, g in gradient.items():
            total[name] += g * min(1.0, 0.5 / norm(gradient))
    assert distance(result.gradients, total) <= 1e-9 * norm(total)


@pytest.mark.parametrize("case", ["self", "self with weights", "other keys", "lstm", "gru"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_that_is_not_finite_contributes_nothing_and_moves_no_other(case: str, bad: float) -> None:
    model, inputs, targets = build(case)
    engine = ClippingEngine(model, 0.5)
    engine.clipped_sum(inputs, targets, cross_entropy)
    spoilt = inputs.clone()
    spoilt[2, 1, 3] = bad
    result = engine.clipped_sum(spoilt, targets, cross_entropy)
    others = [i for i in range(BATCH) if i != 2]
    expected, norms = reference(model, inputs[others], targets[others], 0.5)
    assert result.skipped == 1
    assert engine.slow_reason is None
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)
    torch.testing.assert_close(result.norms[others], norms)


def mixing(m: Any, x: Tensor) -> Tensor:
    """Time and batch exchanged: attention over the examples."""
    y = x.transpose(0, 1)
    return m.out(m.a(y, y, y)[0].mean(dim=0))


def checkpointed(m: Any, x: Tensor) -> Tensor:
    return m.out(checkpoint(lambda y: m.a(y, y, y)[0], x, use_reentrant=False).mean(dim=1))


def rolled(m: Any, x: Tensor) -> Tensor:
    return m.out(m.a(x.roll(1, dims=0))[0].roll(-1, dims=0).mean(dim=1))


def borrowed(m: Any, x: Tensor) -> Tensor:
    return m.out((m.a(x, x, x)[0] @ m.a.out_proj.weight).mean(dim=1))


class Halved(nn.MultiheadAttention):
    """A class of the user's own computes what it likes."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = super().forward(*args, **kwargs)
        return output / 2, weights


ODD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "checkpoint": (net(checkpointed, **WIDE), "checkpoint"),
    "rolled": (net(rolled, a=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), out=LAST), "do not belong"),
    "borrowed weight": (net(borrowed, **WIDE), "used outside"),
    "subclass": (net(self_attention(), a=lambda: Halved(WIDTH, 3, batch_first=True), out=LAST), "one tensor"),
    "added key": (net(self_attention(), a=attention(add_bias_kv=True), out=LAST), "one tensor"),
    "projected states": (net(average, a=lambda: nn.LSTM(WIDTH, 16, proj_size=12, batch_first=True), out=LAST),
                         "one tensor"),
    "one sequence": (
        net(lambda m, x: m.out(torch.stack([m.a(row)[0].mean(dim=0) for row in x])),
            a=lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), out=LAST), "not a batch of sequences"),
    "longer than the batch": (
        net(lambda m, x: m.out(m.a(x.repeat(2, 1, 1))[0].mean(dim=1).view(2, len(x), -1).mean(dim=0)),
            a=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), out=LAST), "not the batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_what_cannot_be_proven_runs_one_by_one(case: str) -> None:
    make, reason = ODD[case]
    torch.manual_seed(5)
    model, inputs, targets = make().double(), sequences(STEPS, WIDTH, BATCH), torch.randint(4, (BATCH,))
    expected, _ = reference(model, inputs, targets, 0.5)
    engine = ClippingEngine(model, 0.5)
    with pytest.warns(UserWarning, match="one by one"):
        result = engine.clipped_sum(inputs, targets, cross_entropy)
    assert reason in str(engine.slow_reason)
    assert distance(result.gradients, expected) <= 1e-9 * norm(expected)


@pytest.mark.parametrize("steps", [STEPS, BATCH])
def test_attention_over_the_examples_is_refused(steps: int) -> None:
    model = net(mixing, **WIDE)().double()
    with pytest.raises(ValueError, match="depends on other examples"):
        ClippingEngine(model, 1.0).clipped_sum(
            sequences(steps, WIDTH, BATCH), torch.zeros(BATCH, dtype=torch.long), cross_entropy
        )
