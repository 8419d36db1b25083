"""The sum over a batch of per-example gradients, each clipped to an l2 norm over all parameters together.

This is lines 4-16 of Algorithm 1 without the noise. The fast path (`fast_path`) costs little more than an ordinary
step; where it cannot prove that it sees the whole gradient, the engine runs one example at a time (`slow_path`).

What is bounded is the sum that comes out, rounding included. In two batches that differ in one example, replaced by a
*null record* that contributes nothing, the rows of all other examples hold the same bits, since no kernel's shape
changes; so do their gradients, norms and clip factors. Only sums over examples differ:

1. The clip factor min(1, C / norm) is computed in float64 and rounded down. The norm is that of the stored numbers that
   are added up, up to a relative error of 4e-6 in float32; a gradient computed again for the sum is scaled down if
   it turns out longer than it was measured.
2. Stored gradients are added in groups of at most 160, groups in float64: `rules.forms.rounding_slack`.
3. An example with a loss or gradient that is not finite contributes nothing, like the null record, and raises no error:
   an error would reveal that the example was there.
"""

__all__ = ["ARITHMETIC", "ClippedSum", "ClippingEngine", "Loss", "per_example"]

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from securesgd.clipping.batch import Batch, require_fitting
from securesgd.clipping.fast_path import FastPath
from securesgd.clipping.losses import Loss, loss_code, per_example, row_losses, runs_model
from securesgd.clipping.micro_batch import FEWEST, examples_at_once
from securesgd.clipping.passes import Passes, needs_contiguous_images, replica
from securesgd.clipping.precision import in_precision, validate_precision
from securesgd.clipping.rules.embedding import embedding_gradients
from securesgd.clipping.rules.forms import FastPathError, Scratch, rounding_slack
from securesgd.clipping.rules.generic import generic_gradients
from securesgd.clipping.separation import Evidence, check_separation, is_due, synthetic_examples
from securesgd.clipping.slow_path import clip_slow
from securesgd.clipping.units import Unit, require_no_hooks, trainable_units
from securesgd.clipping.validate_model import check_model, model_structure, same_structure
from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import Precision
from securesgd.runtime.random_state import BufferState, RandomState

ARITHMETIC = 1  # raised by each change of the last bits of a sum: a run is resumed with that it was started with
SMALLEST_NORM = 1e-10
ERRORS = (
    FastPathError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
LARGEST_NORM = 1e30  # so that no sum of clipped gradients overflows
Sums = tuple[dict[str, Tensor], Tensor, Tensor]
"""Clipped sums by parameter, squared norms and losses by example."""
T = TypeVar("T")


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
        a null record, which only `skipped`, `norms` and `losses` show.

    Assumes: every kernel computes a row of the batch from that row alone, with the same bits whatever the other rows
        hold, and products of matrices are sums of products in IEEE arithmetic (numbers below 2^-126 may be flushed to
        zero). The random numbers of dropout and noise layers are secret and drawn for the null record too: leaving a
        row out instead shifts the draws of all that follow, which changes the sum by up to 2C for each of them. The
        forward pass raises no error that depends on the data, and no example moves the loss or gradient of another, now
        or in a later step. Layers known to do so are refused; others are searched for (`check_separation`): in calls 1,
        8 and 64, when a layer is first used, when the model's layers, hooks or switches have changed, and in one call
        of 1024 by chance. What remains is a model that mixes only now and then, or by less than 1e-5 of a loss.

    The model is used as it is: its parameters, their `.grad`, its mode and its hooks are left as they were. Dropout
    and noise layers keep working; `random_state` says which generators are restored when a pass is repeated. Buffers
    (a counter, the vectors of a spectral norm) move by one pass per call, however many passes the call takes, so that
    they do not reveal the size of the batch.

    Raises:
        InvalidInputError: the model has a layer that mixes examples, or `max_grad_norm` is not from 1e-10 to 1e30.

    `precision` "bfloat16" runs the model under autocast (`precision.py`): other gradients, with the same bound.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, precision: Precision = "float32") -> None:
        if not SMALLEST_NORM <= max_grad_norm <= LARGEST_NORM:
            # Squares below 2^-126 vanish in single precision, and what is not measured is not clipped: rounding_slack.
            raise InvalidInputError(
                f"max_grad_norm is {max_grad_norm}: it must be a number from {SMALLEST_NORM:g} to {LARGEST_NORM:g}"
            )
        check_model(model)
        validate_precision(precision, model)
        self.model, self.precision = model, precision
        self.max_grad_norm = float(max_grad_norm)
        self.slow_reason: str | None = None
        """Why the slow path is in use, or None while the fast path is."""
        self._separate_units: set[str] = set()  # whose rows were seen to belong to the examples
        self._calls = 0
        self._checked_call = 0  # the last call in which the examples were seen to be separate
        self._losses: set[object] = set()  # the code of the losses that were seen
        self._structure = model_structure(model)  # with which they were
        self._fast_path_verified = False  # against a backward pass, on synthetic examples
        self._channels_last = True
        self._row_parameters = True  # a container's own parameters are handed out as one copy for each row
        self._tables: set[str] = set()  # embeddings that were seen to be tables for all rows
        self._scratch: defaultdict[str, Scratch] = defaultdict(Scratch)
        self._fitting: dict[tuple[object, ...], int | None] = {}  # examples at once, by the shape of a row

    @property
    def sensitivity(self) -> float:
        """The l2 change of `ClippedSum.gradients` that one example can make: max_grad_norm · (1 + slack), rounded up.

        It depends on `max_grad_norm` and on the type of the model's parameters, on nothing else.
        """
        slack = max(rounding_slack(p.dtype) for p in self.model.parameters() if p.requires_grad)
        return math.nextafter(self.max_grad_norm * (1 + slack), math.inf)

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        copies: int = 1,
        micro_batch: int | None = None,
        *,
        copies_given: bool = False,
    ) -> ClippedSum:
        """Return the sum over examples of their clipped gradients, with norms and losses.

        Args:
            inputs: shape [batch, ...]; the batch may be empty.
            targets: shape [batch, ...].
            loss: maps (outputs, targets) to one loss per row, shape [rows]; or (model, inputs, targets), when it runs
                the model itself and the examples are run one by one. One with new code is checked as in a first call.
            copies: how often each example goes through the model. Its gradient is the average over the copies,
                clipped after averaging; a model with noise or dropout draws afresh for each copy.
            micro_batch: how many examples to hold in memory at once; None for as many as `micro_batch.py` finds fit. It
                changes memory and time, not the result beyond the order of additions.
            copies_given: inputs have shape [batch, copies, ...]: the copies of an example are inputs of their own. Each
                is a function of that example and of random numbers, of nothing else.

        Raises:
            InvalidInputError: shapes do not fit, the batch has more than 2^18 examples, products are not computed in
                full precision, or the loss of an example depends on other examples.
        """
        require_fitting(inputs, targets, copies if copies_given else None)
        if copies < 1:
            raise InvalidInputError(f"copies is {copies}: it must be at least 1")
        if micro_batch is not None and micro_batch < 1:
            raise InvalidInputError(f"micro_batch is {micro_batch}: it must be at least 1, or None")
        check_model(self.model)
        if self.precision != "float32" and runs_model(loss):
            raise InvalidInputError("the loss runs the model itself; valid with it: precision = 'float32'")
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        example = next(iter(parameters.values()))
        inputs, targets = inputs.detach().to(example.device), targets.detach().to(example.device)
        batch = Batch(parameters, inputs, targets, per_example(loss), copies, copies_given)
        total: dict[str, Tensor] = {}
        squares = [torch.zeros(0, dtype=torch.float64, device=example.device)]
        losses = [torch.zeros(0, dtype=example.dtype, device=example.device)]
        step = micro_batch or self._examples_at_once(batch)
        self._calls += 1 if len(batch) else 0
        if len(batch) and (self._is_new(loss, batch) or is_due(self._calls)):
            self._check_separation(batch.take(slice(0, max(2, step))))  # one alone cannot be compared
        buffers = BufferState.capture(self.model)
        for start in range(0, len(batch), step):
            if start:
                buffers.restore()
            sums, square, value = self._clip(batch.take(slice(start, start + step)), buffers)
            for name, gradient in sums.items():
                total[name] = total[name].double().add_(gradient) if name in total else gradient
            squares.append(square)
            losses.append(value)
        gradients = {name: _like(p, total.get(name)) for name, p in parameters.items()}
        square, value = torch.cat(squares), torch.cat(losses)
        skipped = ~(square.isfinite() & value.isfinite())
        norms = square.sqrt().to(example.dtype).masked_fill(skipped, float("nan"))
        return ClippedSum(gradients, norms, value.masked_fill(skipped, float("nan")), int(skipped.sum()))

    def _is_new(self, loss: Loss, batch: Batch) -> bool:
        """Return whether this loss was not seen before with these layers: nothing found before counts for it."""
        code, structure = loss_code(loss), model_structure(self.model)
        same = same_structure(structure, self._structure)
        if same and code in self._losses:
            return False
        if self._losses:
            self._checked_call, self._fast_path_verified = 0, False
            self._separate_units.clear()
        self._channels_last &= not needs_contiguous_images(self.model, batch.take(slice(0, 1)).rows(False)[0])
        self._losses, self._structure = {code} | (self._losses if same else set()), structure
        if runs_model(loss):
            warnings.warn("clipping runs the examples one by one: the loss runs the model itself", stacklevel=4)
        return True

    def _examples_at_once(self, batch: Batch) -> int:
        """Return into pieces of how many examples a batch is cut: nearly equal ones that fit (`micro_batch.py`)."""
        if (count := len(batch)) <= FEWEST:
            return max(1, count)
        key = (batch.inputs.shape[1:], batch.inputs.dtype, batch.copies, batch.copies_given, self.model.training)
        if key not in self._fitting:
            self._fitting[key] = self._measure_pass(batch)
        fitting = self._fitting[key] or count
        return math.ceil(count / math.ceil(count / fitting))

    def _measure_pass(self, batch: Batch) -> int | None:
        """Return how many examples fit, from a pass over two synthetic ones on a copy; None if it fails."""
        few = batch.take(slice(0, 2))
        inputs, targets = synthetic_examples(few.inputs, few.targets)
        rows, targets = self._rows(replace(few, inputs=inputs, targets=targets))
        model, before = replica(self.model), RandomState.capture(self.model, numpy_and_python=True)
        buffers = BufferState.capture(self.model)
        try:
            forward = in_precision(model, self.precision)
            return examples_at_once(lambda: row_losses(batch.loss, forward, rows, targets), 2, model.parameters())
        except ERRORS:
            return None  # the model does not accept synthetic examples
        finally:
            before.restore()
            buffers.restore()

    def _clip_factors(self, squares: Tensor, losses: Tensor) -> Tensor:
        """Return min(1, C / norm) for each squared norm, float64; 0 where norm or loss is not finite."""
        factors = (self.max_grad_norm / squares.sqrt()).clamp(max=1.0)
        return torch.where(squares.isfinite() & losses.isfinite(), factors, 0.0)

    def _check_separation(self, batch: Batch) -> None:
        """Return if the examples are separate; if only the slow path is sound, take it from now on.

        Raises:
            InvalidInputError: an example depends on others.
        """
        if len(batch) == 1:  # so that a model that remembers examples is seen before the first batch of two
            inputs, targets = batch.inputs, batch.targets
            inputs, targets = torch.cat([inputs, torch.zeros_like(inputs)]), torch.cat([targets, targets])
            batch = replace(batch, inputs=inputs, targets=targets)
        thorough, self._checked_call = self._checked_call == 0, self._calls

        def check(batch: Batch, synthetic: bool) -> Evidence | None:
            rows, targets = self._rows(batch)
            before = RandomState.capture(self.model, numpy_and_python=True)
            of_batch = self.model, batch.parameters, rows, targets, batch.loss, batch.copies
            passes = Passes(*of_batch, before, self.precision)
            return check_separation(passes, thorough=thorough, synthetic=synthetic)

        try:
            self._retry(lambda: check(batch, False))
            inputs, targets = synthetic_examples(batch.inputs, batch.targets)
            synthetic = replace(batch, inputs=inputs, targets=targets)
            try:
                evidence = self._retry(lambda: check(synthetic, True))
            except ERRORS as error:
                if isinstance(error, InvalidInputError | FastPathError):
                    raise
                return  # the model does not accept synthetic examples
            if self.slow_reason is None and evidence is not None and not runs_model(batch.loss):
                self._retry(lambda: self._verify_fast_path(synthetic, evidence), fast_path=True)
        except FastPathError as reason:
            self._take_slow_path(reason)

    def _verify_fast_path(self, batch: Batch, evidence: Evidence) -> None:
        """Return if the fast path gives for these examples what an ordinary backward pass gave. Leaves no trace."""
        twin, before = copy.copy(self), RandomState.capture(self.model, numpy_and_python=True)
        twin.model, twin._separate_units = replica(self.model), set()
        try:
            with torch.enable_grad():
                twin._clip_fast(batch, evidence)
        finally:
            before.restore()
        self._fast_path_verified = True

    def _retry(self, action: Callable[[], T], fast_path: bool = False) -> T:
        """Return what `action` returns; once more, with more care, where an error may come from how it was run."""
        while True:
            try:
                return action()
            except ERRORS as error:
                if not self._takes_more_care(error, fast_path):
                    raise

    def _takes_more_care(self, error: Exception, fast_path: bool) -> bool:
        """Return whether the next try is run in another way: with contiguous images, or without row parameters."""
        if self._channels_last and "view size is not compatible" in str(error):
            self._channels_last = False
            return True
        units = trainable_units(self.model) if fast_path and self._row_parameters else []
        if not any(unit.by_row or unit.rule is embedding_gradients for unit in units):
            return False
        self._row_parameters = self._fast_path_verified = False
        return True

    def _take_slow_path(self, reason: FastPathError) -> None:
        if self.slow_reason is None:
            self.slow_reason = str(reason)
            warnings.warn(f"clipping runs the examples one by one: {reason}", stacklevel=5)

    def _rows(self, batch: Batch, units: list[Unit] | None = None) -> tuple[Tensor, Tensor]:
        """Return the rows of inputs and targets in the layout that runs fastest; `units` are those of the model."""
        if units is None:
            units = trainable_units(self.model, self._row_parameters)
        has_images = any(type(unit.module) is nn.Conv2d for unit in units)
        return batch.rows(channels_last=self._channels_last and has_images)

    def _clip(self, batch: Batch, buffers: BufferState) -> Sums:
        """Return the sums of one micro-batch by the fast path or, where that is not possible, by the slow one.

        `buffers` are those before it.
        """
        with torch.enable_grad():
            while self.slow_reason is None and len(batch) > 1 and not runs_model(batch.loss):
                before = RandomState.capture(self.model, numpy_and_python=self._checked_call == self._calls)
                try:
                    return self._clip_fast(batch)
                except ERRORS as error:
                    if not self._takes_more_care(error, fast_path=True):
                        if not isinstance(error, FastPathError):
                            raise
                        self._take_slow_path(error)
                before.restore()
                buffers.restore()

            def losses_of(x: Tensor, y: Tensor) -> Tensor:
                buffers.restore()
                return row_losses(batch.loss, in_precision(self.model, self.precision), x, y)

            return clip_slow(losses_of, batch, self._clip_factors)

    def _clip_fast(self, batch: Batch, evidence: Evidence | None = None) -> Sums:
        """Return the sums from one forward and one backward pass; compare them with `evidence`, if given.

        Raises:
            FastPathError: the result cannot be proven, or is not that of the evidence.
        """
        units = trainable_units(self.model, self._row_parameters)
        require_no_hooks(units)
        rows, targets = self._rows(batch, units)
        if not self._separate_units and rows.is_floating_point():
            rows = rows.detach().requires_grad_()  # so that the first pass sees examples mixed before any layer
        trainable = {id(p): name for name, p in batch.parameters.items()}
        tables = frozenset(self._tables) if self._row_parameters else None
        path = FastPath(units, trainable, len(batch), batch.copies, self._scratch, evidence is not None, tables)
        try:
            return self._clip_with_hooks(path, batch, rows, targets, evidence)
        finally:
            path.release()

    def _clip_with_hooks(
        self, path: FastPath, batch: Batch, rows: Tensor, targets: Tensor, evidence: Evidence | None
    ) -> Sums:
        """Return the result of `_clip_fast` from the calls that the hooks of `path` record."""
        forward = in_precision(self.model, self.precision)
        values = path.forward(forward, rows, lambda outputs: batch.loss(outputs, targets))
        losses = values.detach().view(-1, batch.copies).mean(dim=1)
        names = path.names(rows)
        by_row = {call.unit.name for call in path.used if call.unit.by_row}
        if not names <= self._separate_units:
            path.check_separate(values, rows)
            if self._checked_call != self._calls:  # a layer that was not used before, or not for such inputs
                self._check_separation(batch)
                if self.slow_reason is not None or (by_row and not self._row_parameters):
                    raise FastPathError(self.slow_reason or f"{by_row} are not used by each row alone")
            self._separate_units |= names
            self._tables |= by_row
        tried = by_row or any(call.unit.rule is generic_gradients for call in path.used)
        if evidence is None and tried and not self._fast_path_verified:
            raise FastPathError("a layer without a rule of its own could not be tried on synthetic examples")
        squares = path.squared_norms(values, rows)
        if evidence is not None:
            path.check_sums(evidence.weights, evidence.gradients, squares, self.precision)
        return path.weighted_sums(self._clip_factors(squares, losses)), squares, losses


def _like(parameter: nn.Parameter, gradient: Tensor | None) -> Tensor:
    """Return `gradient` in float64 and the memory layout of its parameter; zeros if the losses do not depend on it."""
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False, dtype=torch.float64)
    if gradient.dtype == torch.float64 and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False, dtype=torch.float64).copy_(gradient)
