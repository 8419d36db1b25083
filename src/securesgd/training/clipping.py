"""The sum over a batch of per-example gradients, each clipped to an l2 norm over all parameters together.

This is lines 4-16 of Algorithm 1 without the noise. The fast path (`bookkeeping`) costs little more than an ordinary
step; where it cannot prove that it sees the whole gradient, the engine runs the examples one by one (`one_by_one`).

What is bounded is the sum that comes out, rounding included. In two batches that differ in one example, replaced by a
*null record* that contributes nothing, the rows of all other examples hold the same bits, since no kernel's shape
changes; so do their gradients, norms and clip factors. Only sums over examples differ:

1. The clip factor min(1, C / norm) is computed in float64 and rounded down. The norm is that of the stored numbers that
   are added up, up to a relative error of 4e-6 in float32; a gradient that is made again for the sum is scaled down if
   it turns out longer than it was measured.
2. Stored gradients are added in groups of at most 160, groups in float64: `gradients.forms.rounding_slack`.
3. An example with a loss or gradient that is not finite contributes nothing, like the null record: no error tells
   that it was there.
"""

__all__ = ["ClippedSum", "ClippingEngine"]

import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.training.admission import check_model
from securesgd.training.bookkeeping import Bookkeeping
from securesgd.training.gradients.forms import MOST_EXAMPLES, Scratch, Unfit, rounding_slack
from securesgd.training.one_by_one import one_by_one
from securesgd.training.random_state import RandomState
from securesgd.training.recording import units_of

Loss = Callable[[Tensor, Tensor], Tensor]
Parameters = dict[str, nn.Parameter]
SMALLEST_NORM = 1e-10
Sums = tuple[dict[str, Tensor], Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """What `ClippingEngine.clipped_sum` returns.

    Attributes:
        gradients: parameter name to the sum over examples of clipped gradients, float64. Frozen parameters are absent.
        norms: the unclipped gradient norm of each example, shape [batch]; NaN if it was skipped.
        losses: the loss of each example (average over its copies), shape [batch]; NaN if it was skipped.
        skipped: how many examples contributed nothing since their loss or gradient is not finite.

    **Private**: only `gradients` is bounded, and only with noise is it private.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    skipped: int


class ClippingEngine:
    """Computes clipped gradient sums of one model.

    Guarantee: replacing one example by a null record, which keeps its row but contributes nothing, changes
        `ClippedSum.gradients` by at most `sensitivity` in l2 norm over all parameters together: `max_grad_norm` and
        0.32 % of it for rounding in float32, 0.002 % in float64. That is for the numbers returned, whatever model,
        batch and example, and in whatever order kernels add. An example whose loss or gradient is not finite is such
        a null record, and nothing but `skipped`, `norms` and `losses` tells.

    Assumes: every kernel computes a row of the batch from that row alone, with the same bits whatever the other rows
        hold, and products of matrices are sums of products in IEEE arithmetic (numbers below 2^-126 may be flushed to
        zero). The random numbers of dropout and noise layers are secret and drawn for the null record too: leaving a
        row out instead shifts the draws of all that follow, which changes the sum by up to 2C for each of them. The
        forward pass changes no state that carries an example's data into later steps (counters and random generators
        are fine; running statistics of examples are not), and raises no error that depends on the data. Layers known
        to do so are refused. Examples that influence each other are noticed by their gradients, and in models without
        randomness by their losses; what is left is a model that draws random numbers and shares detached values
        between examples.

    The model is used as it is: its parameters, their `.grad`, its mode and its hooks are left as they were. Dropout
    and noise layers keep working; `random_state` says which generators are wound back when a pass is repeated.

    Raises:
        InvalidInputError: the model has a layer that mixes examples, or `max_grad_norm` is not a positive number.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float) -> None:
        if not (math.isfinite(max_grad_norm) and max_grad_norm >= SMALLEST_NORM):
            # Squares below 2^-126 vanish in single precision, and what is not measured is not clipped: rounding_slack.
            raise InvalidInputError(f"max_grad_norm is {max_grad_norm}: it must be finite and >= {SMALLEST_NORM:g}")
        check_model(model)
        self.model = model
        self.max_grad_norm = float(max_grad_norm)
        self.slow_reason: str | None = None
        """Why the examples are run one by one, or None while the fast path is in use."""
        self._separate: set[str] = set()  # units whose rows were seen to belong to the examples
        self._channels_last = True
        self._scratch: defaultdict[str, Scratch] = defaultdict(Scratch)

    @property
    def sensitivity(self) -> float:
        """The l2 change of `ClippedSum.gradients` that one example can make: max_grad_norm · (1 + slack), rounded up.

        It depends on `max_grad_norm` and on the type of the model's parameters, on nothing else.
        """
        slack = max(rounding_slack(p.dtype) for p in self.model.parameters() if p.requires_grad)
        return math.nextafter(self.max_grad_norm * (1 + slack), math.inf)

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, loss: Loss, copies: int = 1, micro_batch: int | None = None
    ) -> ClippedSum:
        """Return the sum over examples of their clipped gradients, with norms and losses.

        Args:
            inputs: shape [batch, ...]; the batch may be empty.
            targets: shape [batch, ...].
            loss: maps (outputs, targets) to one loss per row, shape [rows].
            copies: how often each example goes through the model. Its gradient is the average over the copies,
                clipped after averaging; a model with noise or dropout draws afresh for each copy.
            micro_batch: how many examples to hold in memory at once; None for all. It changes memory, not the result.

        Raises:
            InvalidInputError: shapes do not fit, the batch has more than 2^18 examples, products are not computed in
                full precision, or the loss of an example depends on other examples.
        """
        self._check_arguments(inputs, targets, copies, micro_batch)
        check_model(self.model)
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        example = next(iter(parameters.values()))
        inputs, targets = inputs.detach().to(example.device), targets.detach().to(example.device)
        total: dict[str, Tensor] = {}
        squares = [torch.zeros(0, dtype=torch.float64, device=example.device)]
        losses = [torch.zeros(0, dtype=example.dtype, device=example.device)]
        step = micro_batch or max(1, len(inputs))
        for start in range(0, len(inputs), step):
            piece = slice(start, start + step)
            sums, square, value = self._piece(parameters, inputs[piece], targets[piece], loss, copies)
            for name, gradient in sums.items():
                total[name] = total[name].double().add_(gradient) if name in total else gradient
            squares.append(square)
            losses.append(value)
        gradients = {name: _like(p, total.get(name)) for name, p in parameters.items()}
        square, value = torch.cat(squares), torch.cat(losses)
        skipped = ~(square.isfinite() & value.isfinite())
        norms = square.sqrt().to(example.dtype).masked_fill(skipped, float("nan"))
        return ClippedSum(gradients, norms, value.masked_fill(skipped, float("nan")), int(skipped.sum()))

    def _check_arguments(self, inputs: Tensor, targets: Tensor, copies: int, micro_batch: int | None) -> None:
        if len(inputs) != len(targets):
            raise InvalidInputError(f"{len(inputs)} inputs but {len(targets)} targets: there must be one per example")
        if len(inputs) > MOST_EXAMPLES:
            raise InvalidInputError(
                f"the batch has {len(inputs)} examples: the bound on rounding holds to {MOST_EXAMPLES}"
            )
        if copies < 1:
            raise InvalidInputError(f"copies is {copies}: it must be at least 1")
        if micro_batch is not None and micro_batch < 1:
            raise InvalidInputError(f"micro_batch is {micro_batch}: it must be at least 1, or None")
        if torch.is_autocast_enabled(inputs.device.type):
            raise InvalidInputError("autocast is on: norms in a shorter type are too inexact; run outside autocast")
        if torch.get_float32_matmul_precision() != "highest":
            raise InvalidInputError(
                f"float32_matmul_precision is {torch.get_float32_matmul_precision()!r}: products in a shorter type are "
                "too inexact to bound a gradient; it must be 'highest'"
            )

    def _clip_factors(self, squares: Tensor, losses: Tensor) -> Tensor:
        """Return min(1, C / norm) for each squared norm, float64; 0 where norm or loss is not finite."""
        factors = (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)
        return torch.where(squares.isfinite() & losses.isfinite(), factors, 0.0)

    def _piece(self, parameters: Parameters, inputs: Tensor, targets: Tensor, loss: Loss, copies: int) -> Sums:
        """Return (clipped sum, squared norms, losses) of one micro-batch."""
        with torch.enable_grad():
            while self.slow_reason is None and len(inputs) > 1:
                before = RandomState.of(self.model)
                try:
                    return self._fast(parameters, inputs, targets, loss, copies, before)
                except Unfit as reason:
                    self.slow_reason = str(reason)
                    warnings.warn(f"clipping runs the examples one by one: {reason}", stacklevel=4)
                except RuntimeError as error:
                    if not self._channels_last or "view size is not compatible" not in str(error):
                        raise
                    self._channels_last = False  # the model calls .view on an image: keep images contiguous
                before.restore()
            return one_by_one(self.model, parameters, inputs, targets, _per_row(loss), copies, self._clip_factors)

    def _fast(
        self,
        parameters: Parameters,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        copies: int,
        before: RandomState,
    ) -> Sums:
        """Return the same as `_piece` from one forward and one backward pass, or raise `Unfit`."""
        units = units_of(self.model)
        rows = inputs.repeat_interleave(copies, dim=0) if copies > 1 else inputs
        wanted = targets.repeat_interleave(copies, dim=0) if copies > 1 else targets
        if self._channels_last and rows.dim() == 4 and any(type(u.module) is nn.Conv2d for u in units):
            rows = torch.empty_like(rows, memory_format=torch.channels_last).copy_(rows)
        if not self._separate and rows.is_floating_point():
            rows = rows.detach().requires_grad_()  # so that the first pass sees examples mixed before any layer
        trainable = {id(p): name for name, p in parameters.items()}
        book = Bookkeeping(units, trainable, len(inputs), copies, self._scratch)
        try:
            return self._booked(book, rows, wanted, loss, before)
        finally:
            book.release()

    def _booked(
        self,
        book: Bookkeeping,
        rows: Tensor,
        wanted: Tensor,
        loss: Loss,
        before: RandomState,
    ) -> Sums:
        """Return the same as `_fast`, with the records in `book`."""
        copies = book.copies
        values = book.forward(self.model, rows, lambda outputs: _per_row(loss)(outputs, wanted))
        losses = values.detach().view(-1, copies).mean(dim=1)
        names = {call.unit.name for call in book.used}
        if not names <= self._separate:
            book.check_separate(values, rows)
            if before.untouched() and losses[0].isfinite():  # with noise, an example alone would draw other numbers
                alone = _per_row(loss)(self.model(rows[:copies].detach()), wanted[:copies]).detach()
                _require_same(alone.mean(), losses[0])
            self._separate |= names
        squares = book.squared_norms(values, rows)
        return book.weighted_sums(self._clip_factors(squares, losses)), squares, losses


def _like(parameter: nn.Parameter, gradient: Tensor | None) -> Tensor:
    """Return `gradient` in float64 and the memory layout of its parameter; zeros if the losses do not depend on it."""
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False, dtype=torch.float64)
    if gradient.dtype == torch.float64 and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False, dtype=torch.float64).copy_(gradient)


def _per_row(loss: Loss) -> Loss:
    """Return `loss` with a check that it gives one value per row."""

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        values = loss(outputs, targets)
        if values.shape != targets.shape[:1]:
            raise InvalidInputError(
                f"loss returned shape {list(values.shape)} for {len(targets)} rows: "
                "it must return one loss per row (reduction='none')"
            )
        return values

    return checked


def _require_same(alone: Tensor, within: Tensor) -> None:
    """Raise `Unfit` unless an example has the same loss alone and within its batch, up to rounding."""
    tolerance = 1e-4 if within.dtype == torch.float32 else 1e-8
    if not torch.isclose(alone, within, rtol=tolerance, atol=tolerance / 10):
        raise Unfit(f"an example's loss is {within.item():.6g} within its batch and {alone.item():.6g} alone")
