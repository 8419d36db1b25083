"""The two forms of a layer's per-example gradients: kept in memory, or measured now and summed later.

Both forms give the two results that clipping needs: the norm of each example's gradient, and the sum over examples of
factor × gradient. A rule returns whichever is cheaper.

Rounding is part of the guarantee. With factors that make every example's share at most C long:

- The length is that of the *stored* numbers that are added up, or more. Their squares are added in the model's type
  over at most `NORM_BLOCK` numbers, then in float64.
- Shares are added in the model's type over at most `GROUP` examples, then in float64. A sum of m terms in any order
  is off by at most gamma_m · sum |term| in each component, gamma_m = m·u / (1 − m·u): in l2 by gamma_m · m · C. That
  holds with an example and with zeros in its place, so the two sums differ by at most C + 2 · gamma_m · m · C.

`rounding_slack` adds this up.
"""

__all__ = [
    "GROUP",
    "MOST_EXAMPLES",
    "Deferred",
    "ExampleGradient",
    "FastPathError",
    "Kept",
    "LayerCall",
    "Scratch",
    "example_groups",
    "joint_examples",
    "needs_own_sum",
    "nonzero_rows",
    "round_down",
    "rounding_slack",
    "squared_lengths",
    "sum_again",
    "sum_products",
]

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

KEPT_BYTES = 256 * 2**20  # per parameter: above this, per-example gradients are measured in pieces and dropped
KEEPING = 4.0  # cost of writing and reading one number of a kept gradient, in multiply-adds (measured)
CANCELLATION = 0.02
"""A squared norm from float32 Gram matrices has a relative error of about 6e-8 / ratio, where ratio compares it with
its size without cancellation between positions (measured from 1 down to 1e-7). Below this ratio it is computed again
from the gradient itself, so that norms keep 1e-5. Exactness only: the guarantee does not need it, see `sum_again`."""
GROUP = 160
"""Examples whose shares are added in the model's type: in float32, 2 · 160 · gamma_163 = 3.1e-3 of C."""
NORM_BLOCK = 128
"""Numbers whose squares are added in the model's type: in float32, gamma_132 = 7.9e-6 of the squared norm."""
SPREAD = 16.0
"""By what factor |g||x| of an example may exceed the norm of sum_p g_p x_pᵀ for `joint_examples`. Without correlation
between positions it is the square root of their number."""
LARGE = 2.0**32  # of an input: a product with what is lost below 2^-126 is then far below any limit
SMALL = 2.0**-400  # the largest number of an input or gradient below which float64 squares may vanish
MOST_EXAMPLES = 2**18
"""Examples of one sum, all micro-batches and processes together: that many float64 additions are off by 2^-16 of C."""
MOST_PARAMETERS = 2**30
"""Entries of one gradient. Their float64 additions are off by 2^-22 of the squared norm; squares that vanish in
float32, each below 2^-126, by 2^-29 of the square of the smallest limit, 1e-10."""


def rounding_slack(dtype: torch.dtype) -> float:
    """Return s such that one example changes a sum of shares, each at most C long as measured, by at most C · (1 + s).

    Assumes: at most `MOST_EXAMPLES` examples and `MOST_PARAMETERS` entries; C >= 1e-10.
    """
    unit = torch.finfo(dtype).eps / 2

    def gamma(roundings: int, unit: float = unit) -> float:
        return roundings * unit / (1 - roundings * unit)

    # 4: the square root of a block's sum, its square, and the clip factor
    length = 1 + gamma(NORM_BLOCK + 4) + gamma(MOST_PARAMETERS, 2.0**-53) + 2.0**-29
    # 3: a share may be a product of four numbers
    sums = 1 + 2 * GROUP * gamma(GROUP + 3) + 2 * MOST_EXAMPLES * gamma(MOST_EXAMPLES, 2.0**-53)
    return length * sums - 1


class FastPathError(Exception):
    """The fast path cannot prove its result for this model, so the slow path is taken; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """All per-example gradients of one parameter, in the layout its fast kernel produced.

    `raw` has shape [parts, examples, ...]; together the parts of an example hold each entry of its gradient once.
    `restore` turns such a stack into one of shape [examples, *parameter.shape].
    """

    raw: Tensor
    restore: Callable[[Tensor], Tensor]

    @classmethod
    def from_gradients(cls, gradients: Tensor) -> "Kept":
        """Return the form for gradients already in the layout of the parameter, shape [examples, ...]."""
        return cls(gradients.unsqueeze(0), lambda raw: raw.squeeze(0))

    def squared_norms(self) -> Tensor:
        """Return the squared l2 norm of each example's stored gradient, shape [examples], float64."""
        return squared_lengths(self._flat()).sum(dim=0)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return sum_i factors[i] · gradient_i in the layout of the parameter; float64 if of several groups.

        `factors` are float64. An example of factor 0 adds nothing, whatever its gradient is; it is overwritten.
        """
        total: Tensor | None = None
        for group in example_groups(len(factors)):
            part = self._group_sum(group, factors[group], None)
            total = part if total is None else total.double().add_(part)
        assert total is not None
        return self._restored(total)

    def _group_sum(self, examples: slice, factors: Tensor, into: Tensor | None) -> Tensor:
        """Return the weighted sum over at most `GROUP` examples as [parts, 1, entries], added to `into`."""
        flat = self._flat()[:, examples]
        zero = (factors == 0).nonzero().squeeze(1)
        if len(zero):  # 0 · NaN is NaN
            flat[:, zero] = 0
        weights = round_down(factors, flat.dtype).expand(len(flat), 1, -1)
        return torch.bmm(weights, flat) if into is None else into.baddbmm_(weights, flat)

    def _restored(self, total: Tensor) -> Tensor:
        return self.restore(total.view(len(total), 1, *self.raw.shape[2:])).squeeze(0)

    def _flat(self) -> Tensor:
        return self.raw.flatten(2) if self.raw.dim() > 2 else self.raw.unsqueeze(2)

    def gradients(self) -> Tensor:
        """Return the gradients, shape [examples, *parameter.shape]."""
        return self.restore(self.raw)


@dataclass(frozen=True, slots=True)
class Deferred:
    """Only the squared norms (float64) of one parameter's gradients, and a way to compute their weighted sum later.

    `summed` takes float64 factors; no example's share in it may be longer than factor × norm, rounding apart.
    """

    squares: Tensor
    summed: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        """Return the squared l2 norm of each example's gradient, shape [examples]."""
        return self.squares

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return sum_i factors[i] · gradient_i in the layout of the parameter."""
        return self.summed(factors)


ExampleGradient = Kept | Deferred


def sum_again(make: Callable[[slice], Kept], squares: Tensor, factors: Tensor, chunk: int) -> Tensor:
    """Return sum_i factors[i] · gradient_i for gradients measured and dropped before, computed again `chunk` at a time.

    Guarantee: the share of an example is at most factor × sqrt(squares) long, however wrong the measurement was: a
        gradient that turns out longer is scaled down. Measurement and gradient are different computations, and where
        positions cancel, the difference of their rounding errors has no bound in terms of either.
    """
    total: Tensor | None = None
    kept: Kept | None = None
    for group in example_groups(len(factors)):
        part: Tensor | None = None
        for start in range(group.start, group.stop, chunk):
            examples = slice(start, min(start + chunk, group.stop))
            kept = make(examples)
            shrink = (squares[examples] / kept.squared_norms()).sqrt().clamp(max=1.0).nan_to_num(nan=0.0)
            part = kept._group_sum(slice(None), factors[examples] * shrink, part)
        assert part is not None
        total = part if total is None else total.double().add_(part)
    assert kept is not None
    assert total is not None
    return kept._restored(total)


def sum_products(make: Callable[[slice], Kept], count: int, group: int, chunk: int) -> Tensor:
    """Return the sum of `count` products, made `chunk` at a time: `group` of them in the model's type, then float64."""
    total: Tensor | None = None
    kept: Kept | None = None
    for first in range(0, count, group):
        part: Tensor | None = None
        stop = min(first + group, count)
        for start in range(first, stop, chunk):
            kept = make(slice(start, min(start + chunk, stop)))
            ones = torch.ones(kept.raw.shape[1], dtype=torch.float64, device=kept.raw.device)
            part = kept._group_sum(slice(None), ones, part)
        assert part is not None
        total = part if total is None else total.double().add_(part)
    assert kept is not None
    assert total is not None
    return kept._restored(total)


def joint_examples(positions: int, dtype: torch.dtype) -> int:
    """Return over how many examples one product may add at once, positions and examples alike; 1 if over none.

    If factor × |g||x| <= `SPREAD` · C for each of n examples, with |g| and |x| over all their positions, then a product
    over n · positions terms is off by gamma · n · SPREAD · C in l2, gamma for three roundings more than terms. The
    sum over the GROUP / n products has fewer roundings than one over GROUP examples, and both together stay below
    what `rounding_slack` has for the latter.
    """
    unit = torch.finfo(dtype).eps / 2

    def error(joint: int) -> float:
        return (joint * positions + 3) * joint * SPREAD * unit + GROUP * (GROUP // joint + 4) * unit

    joint = 1
    while 2 * joint <= GROUP // 8 and error(2 * joint) <= GROUP * GROUP * unit:
        joint *= 2
    return joint


def needs_own_sum(squares: Tensor, spread: Tensor, x: Tensor, g: Tensor) -> Tensor:
    """Return which examples may not be added up in one product with others (`joint_examples`).

    Those whose terms are longer than `SPREAD` allows, (|g||x|)² = `spread` against `squares`, or huge, or whose squares
    may have vanished. Such gradients are made one by one, by `sum_again`.
    """
    largest, steepest = (t.flatten(1).abs().amax(dim=1) for t in (x, g))
    alone = ~((spread <= (SPREAD * (1 - 1e-6)) ** 2 * squares) & (largest < LARGE))
    if g.dtype == torch.float64:  # what is not measured is not clipped, but for `sum_again`
        alone |= (largest > 0) & (steepest > 0) & ((largest < SMALL) | (steepest < SMALL))
    return alone


def example_groups(examples: int) -> list[slice]:
    """Return slices of at most `GROUP` examples, as equal as they can be."""
    step = math.ceil(examples / max(1, math.ceil(examples / GROUP)))
    return [slice(start, min(start + step, examples)) for start in range(0, examples, max(1, step))]


def squared_lengths(vectors: Tensor) -> Tensor:
    """Return the sum of squares over the last dimension, float64; infinite if a square is."""
    if vectors.dtype == torch.float64:
        return torch.linalg.vector_norm(vectors, dim=-1).square()
    whole = vectors.shape[-1] // NORM_BLOCK * NORM_BLOCK
    squares = torch.linalg.vector_norm(vectors[..., whole:], dim=-1).double().square()
    if whole:
        blocks = vectors[..., :whole].view(*vectors.shape[:-1], -1, NORM_BLOCK)
        squares += torch.linalg.vector_norm(blocks, dim=-1).double().square().sum(dim=-1)
    return squares


def round_down(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Return non-negative float64 `factors` in `dtype`, none of them larger than it was."""
    rounded = factors.to(dtype)
    return torch.where(rounded.double() > factors, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def nonzero_rows(rows: Tensor, factors: Tensor) -> Tensor:
    """Return `rows` with zeros in those of factor 0: 0 · NaN is NaN."""
    zero = (factors == 0).nonzero().squeeze(1)
    return rows.index_fill(0, zero, 0) if len(zero) else rows


class Scratch:
    """Memory for one layer's kept gradients, used again in the next step: fresh pages cost more than the product."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of this shape; what an earlier call returned is overwritten by its use."""
        size = math.prod(shape)
        old = self._memory
        if old is None or old.numel() < size or old.dtype != like.dtype or old.device != like.device:
            self._memory = old = like.new_empty(size)
        return old[:size].view(shape)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer, seen from the backward pass: everything its per-example gradients depend on.

    The rows of `inputs` and `output_gradient` are example-major: row i · copies + m is copy m of example i.
    The gradient of an example is the sum over its rows (the average over copies is already in
    `output_gradient`).
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    output: Tensor | None
    output_gradient: Tensor
    examples: int
    copies: int
    wanted: frozenset[str]  # the layer's own names of its trainable parameters
    keep: frozenset[str]  # those whose gradients are added to another call's and so must be kept
    scratch: Scratch
    synthetic: bool = False  # the rows are not data: only then may their values decide how the model is run
    statistics: tuple[Tensor, Tensor] | None = None  # of a `GroupNorm`: see `group_statistics`
    buffers: dict[str, Tensor] = field(
        default_factory=dict
    )  # of a module that is run again, as they were before the call

    @property
    def input(self) -> Tensor:
        """Return the only input."""
        tensor: Tensor = self.inputs[0]
        return tensor

    def may_keep(self, name: str) -> bool:
        """Return whether keeping the gradients of parameter `name` stays within the memory allowance."""
        parameter = self.module.get_parameter(name)
        return name in self.keep or self.examples * parameter.numel() * parameter.element_size() <= KEPT_BYTES
