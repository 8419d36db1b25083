"""`nn.LSTM`, `nn.GRU` and `nn.RNN` as linear maps: of the input and of the hidden state, for each layer and direction.

The map of the hidden state is used at every time step, and its weight gets Σ_t g_t h_{t−1}ᵀ. So it is recorded once,
with all h_{t−1} as its input and, as its output, a term added to its results whose gradient is all g_t.
"""

__all__ = ["recurrent_parts"]

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from securesgd.clipping.rules.forms import FastPathError
from securesgd.clipping.rules.linear import linear_gradients
from securesgd.clipping.rules.parts import Composite, Part, Record


def recurrent_parts(module: nn.Module) -> Composite | None:
    """Return the maps of a recurrent layer; None if it has others than the usual ones."""
    layer = cast(nn.RNNBase, module)
    names = {f"{kind}{suffix}" for suffix in _suffixes(layer) for maps in _KINDS for kind in maps}
    if layer.proj_size or not set(layer._parameters) <= names:
        return None
    parts = {}
    for suffix in _suffixes(layer):
        for part, kinds in zip(("input", "hidden"), _KINDS, strict=True):
            weight, bias = (f"{kind}{suffix}" for kind in kinds)
            parts[part + suffix] = Part(partial(linear_gradients, weight=weight, bias=bias), (weight, bias))
    return Composite(parts, _recurrent)


_KINDS = (("weight_ih", "bias_ih"), ("weight_hh", "bias_hh"))


def _suffixes(layer: nn.RNNBase) -> list[str]:
    directions = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"_l{i}{direction}" for i in range(layer.num_layers) for direction in directions]


class _HiddenTerm(torch.autograd.Function):
    """The bias of the hidden map for all rows and steps, whose gradient goes no further: the rule takes it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, rows: int, steps: int) -> Tensor:
        term = weight.new_zeros(rows, steps, len(weight))
        return term if bias is None else term.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        raise RuntimeError("the gradient of a hidden map is taken by its rule, not by autograd")


def _recurrent(layer: nn.RNNBase, record: Record, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """Return what `layer.forward` returns; random numbers are drawn in the same order."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise FastPathError("its input is not a batch of sequences of one length")
    x = input if layer.batch_first else input.transpose(0, 1)
    rows, is_lstm, suffixes = len(x), isinstance(layer, nn.LSTM), _suffixes(layer)
    if hx is None:
        zeros = x.new_zeros(len(suffixes), rows, layer.hidden_size)
        hx = (zeros, zeros) if is_lstm else zeros
    starts = list(zip(*hx, strict=True)) if is_lstm else [(h,) for h in hx]
    directions = 2 if layer.bidirectional else 1
    ends: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for suffix in suffixes[depth * directions : (depth + 1) * directions]:
            backwards = suffix.endswith("_reverse")
            seen = x.flip(1) if backwards else x
            states, end = _one_direction(layer, record, suffix, seen, starts[len(ends)])
            outputs.append(states.flip(1) if backwards else states)
            ends.append(end)
        x = torch.cat(outputs, dim=2) if directions == 2 else outputs[0]
        if layer.dropout and layer.training and depth + 1 < layer.num_layers:
            x = dropout(x.transpose(0, 1).contiguous(), layer.dropout).transpose(0, 1)  # drawn by time step
    finals = [torch.stack(state) for state in zip(*ends, strict=True)]
    return x if layer.batch_first else x.transpose(0, 1), tuple(finals) if is_lstm else finals[0]


def _one_direction(
    layer: nn.RNNBase, record: Record, suffix: str, x: Tensor, start: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the hidden states at all steps, [rows, steps, hidden], and the last state (h,) or (h, c)."""
    weight, bias = getattr(layer, f"weight_hh{suffix}"), getattr(layer, f"bias_hh{suffix}", None)
    own = linear(x, getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"bias_ih{suffix}", None))
    own = record(f"input{suffix}", x, own)
    term = cast(Tensor, _HiddenTerm.apply(weight, bias, *x.shape[:2]))  # type: ignore[no-untyped-call]
    step, transposed = _step(layer), weight.detach().T  # its own gradient is the rule's
    state, hidden = start, []
    if isinstance(layer, nn.GRU):
        pairs = zip(own.unbind(1), term.unbind(1), strict=True)
    else:
        both = (own + term).unbind(1)
        pairs = zip(both, both, strict=True)
    for from_input, from_bias in pairs:
        state = step(from_input, torch.addmm(from_bias, state[0], transposed), state)
        hidden.append(state[0])
    states = torch.stack(hidden, dim=1)
    before = torch.cat([start[0].unsqueeze(1), states[:, :-1]], dim=1).detach()
    record(f"hidden{suffix}", before, term)
    return states, state


def _step(layer: nn.RNNBase) -> Any:
    """Return step(input's term, hidden state's term, state) → next state.

    Of all but GRU, the second term already holds the first.
    """
    if isinstance(layer, nn.LSTM):
        return _lstm_step
    if isinstance(layer, nn.GRU):
        return _gru_step
    activation = torch.tanh if cast(nn.RNN, layer).nonlinearity == "tanh" else torch.relu
    return lambda _, total, state: (activation(total),)


def _lstm_step(_: Tensor, total: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = total.chunk(4, dim=1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(own: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (r, z, n), (hidden_r, hidden_z, hidden_n) = own.chunk(3, dim=1), hidden.chunk(3, dim=1)
    z = torch.sigmoid(z + hidden_z)
    n = torch.tanh(n + torch.sigmoid(r + hidden_r) * hidden_n)
    return ((1 - z) * n + z * state[0],)
