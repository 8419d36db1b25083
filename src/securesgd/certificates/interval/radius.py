"""The radius within which no change of an input can change the deployed network's prediction, proven by its bounds."""

__all__ = ["IntervalRadii", "interval_radii", "proven_at"]

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securesgd.certificates.interval.boxes import activation_boxes, input_box, margin_bounds
from securesgd.certificates.interval.linear_bounds import best_margin_bounds, has_linear_bound
from securesgd.certificates.interval.prepared import PreparedGraph, prepare
from securesgd.certificates.interval.search import guessed_crossing, proven_steps
from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import Array, finite_array, nonnegative_array, validate_positive

Bounds = Literal["interval", "best"]
_FIRST = 50  # examples from which the guesses of the others start
_BLOCK = 1000  # examples between two reports of progress
_TOGETHER = 2**19  # numbers of one intermediate value
_GUARD = 1 + 1e-6  # a radius is proven a little beyond itself, so that other sums' bits do not undo it


@dataclass(frozen=True, kw_only=True)
class IntervalRadii:
    """What the bounds prove for each example: its class, and the radius by boxes and by linear bounds.

    A radius of 0 says that nothing is proven. `linear` leaves rival classes that boxes exclude to them, so it is at
    least `interval`; it is 0 if linear bounds were not asked for, or the network has none.
    """

    prediction: NDArray[np.int64]
    interval: Array
    linear: Array


def interval_radii(
    network: nn.Module,
    inputs: Tensor,
    *,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    box: Tensor | None = None,
    largest: float = 1.0,
    tolerance: float = 1e-4,
    bounds: Bounds = "best",
    on_progress: Callable[[int], None] | None = None,
) -> IntervalRadii:
    """Return the network's prediction at each input and radii within which it is proven not to change.

    Guarantee: for every x' with |x' − x| <= radius·box in each element, inside `input_range`, the network, with x'
        rounded to its type and its sums in any order, gives the predicted class the strictly highest score.
        `proven_at` holds at each radius returned, if it is not 0.
    Assumes: what `boxes` and `layer_graph` assume.
    Raises: InvalidInputError for a layer without a sound bound, and for inputs that are not finite or out of range.

    `box` holds the half-widths at radius 1, of one input or of each (None: ones). Radii are multiples of `tolerance`,
    at most `largest`. `bounds` "interval" leaves the linear bounds out, which take most of the time. `on_progress` is
    told the number of examples done.
    """
    question = _Question(network, inputs, input_range, box)
    largest, tolerance = validate_positive("largest", largest), validate_positive("tolerance", tolerance)
    if tolerance > largest:
        raise InvalidInputError(f"tolerance is {tolerance:g}; valid: at most largest, {largest:g}")
    _require_bounds(bounds)
    lines = bounds == "best" and has_linear_bound(question.proof.graph)
    prediction, ahead = question.predictions()
    grid = _Grid(question, prediction, ahead, largest, tolerance)
    interval, linear = np.zeros(len(inputs)), np.zeros(len(inputs))
    cuts = {0, min(_FIRST, len(inputs)), *range(_BLOCK, len(inputs), _BLOCK), len(inputs)}
    for start, stop in pairwise(sorted(cuts)):
        part = np.arange(start, stop)
        steps = grid.by_boxes(part)
        interval[part] = grid.radius(steps)
        if lines:
            linear[part] = grid.radius(grid.by_lines(part, steps))
        if on_progress is not None:
            on_progress(stop)
    return IntervalRadii(prediction=prediction, interval=interval, linear=linear)


def proven_at(
    network: nn.Module,
    inputs: Tensor,
    prediction: ArrayLike,
    radius: ArrayLike,
    *,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    box: Tensor | None = None,
    bounds: Bounds = "best",
) -> NDArray[np.bool_]:
    """Return for each input whether its class is proven to be `prediction` within this radius, one or one of each.

    Guarantee, Assumes and Raises as in `interval_radii`. False says that the bounds do not prove it, not that it is
    wrong. With `bounds` "best" each rival class may be excluded by either bound.
    """
    question = _Question(network, inputs, input_range, box)
    _require_bounds(bounds)
    y = np.asarray(prediction)
    if (
        y.shape != (len(inputs),)
        or y.dtype.kind not in "iu"
        or (len(y) and not 0 <= y.min() <= y.max() < question.classes)
    ):
        raise InvalidInputError(
            f"prediction has shape {list(y.shape)}; valid: a class 0 … {question.classes - 1} for each input"
        )
    radii = nonnegative_array("radius", radius)
    if radii.shape not in ((), (len(inputs),)):
        raise InvalidInputError(f"radius has shape {list(radii.shape)}; valid: one number, or one for each input")
    lines = bounds == "best" and has_linear_bound(question.proof.graph)
    everything = np.arange(len(inputs))
    return question.margins(question.proof, lines, everything, y, np.broadcast_to(radii, y.shape)) > 0


class _Grid:
    """Radii that are multiples of the tolerance."""

    def __init__(
        self, question: "_Question", prediction: NDArray[np.int64], ahead: Array, largest: float, step: float
    ) -> None:
        self._question, self._y, self._ahead = question, prediction, ahead
        self._most, self._step, self._largest = int(largest / step * (1 + 1e-12)), step, largest
        # Medians of the examples before: steps per score that the class is ahead, steps by lines per step by boxes.
        self._per_score, self._per_box = 0.0, 1.1

    def radius(self, steps: NDArray[Any]) -> Array:
        """Return the radii of these steps."""
        return np.minimum(steps * self._step, self._largest)

    def by_boxes(self, part: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the largest steps that boxes prove."""
        start = self._per_score * self._ahead[part] if self._per_score else np.full(len(part), self._most / 500)
        steps = self._searched(part, start, np.zeros(len(part), dtype=np.int64), lines=False)
        found = steps > 0
        if found.any():
            self._per_score = float(np.median(steps[found] / self._ahead[part[found]]))
        return steps

    def by_lines(self, part: NDArray[np.intp], boxes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the largest steps that boxes and linear bounds prove together, from those of boxes alone."""
        steps = self._searched(part, self._per_box * np.maximum(boxes, 1), boxes, lines=True)
        found = boxes > 0
        if found.any():
            self._per_box = max(1.01, float(np.median(steps[found] / boxes[found])))
        return steps

    def _searched(
        self, part: NDArray[np.intp], start: Array, known: NDArray[np.int64], *, lines: bool
    ) -> NDArray[np.int64]:
        """Return proven steps. Guesses are in float32, which is faster, and may fail; only proofs count."""

        def guess(examples: NDArray[np.intp], steps: Array) -> Array:
            return self._margins(self._question.guess, lines, part[examples], self.radius(steps))

        def proof(examples: NDArray[np.intp], steps: NDArray[np.int64]) -> Array:
            return self._margins(self._question.proof, lines, part[examples], self.radius(steps) * _GUARD)

        crossing, fall = guessed_crossing(guess, self._ahead[part], start, self._most)
        return proven_steps(proof, crossing, fall, known, self._most)

    def _margins(self, net: PreparedGraph, lines: bool, examples: NDArray[np.intp], radii: Array) -> Array:
        return self._question.margins(net, lines, examples, self._y[examples], radii)


class _Question:
    """A network, inputs and the shape of the boxes around them, checked."""

    def __init__(
        self, network: nn.Module, inputs: Tensor, input_range: tuple[float, float] | None, box: Tensor | None
    ) -> None:
        if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.dtype.is_floating_point:
            raise InvalidInputError("inputs must be a tensor of floating-point numbers, one example per row")
        shape = tuple(inputs.shape[1:])
        self.proof, self.guess = prepare(network, shape)
        self.classes, self._inputs, self._range = self.proof.classes, inputs.detach(), input_range
        if input_range is not None:
            low, high = (float(end) for end in finite_array("input_range", np.asarray(input_range)))
            self._range = (low, high)
            if not low < high:
                raise InvalidInputError(f"input_range is {input_range}; valid: two numbers, the smaller first")
        if not bool(torch.isfinite(inputs).all()):
            raise InvalidInputError("inputs hold a number that is not finite; valid: finite numbers")
        if self._range is not None and not bool(((inputs >= self._range[0]) & (inputs <= self._range[1])).all()):
            raise InvalidInputError(f"inputs leave the range {self._range}; valid: inputs inside input_range")
        self._box = torch.ones(shape) if box is None else torch.as_tensor(box).detach()
        if self._box.shape not in (inputs.shape, inputs.shape[1:]):
            raise InvalidInputError(
                f"box has shape {list(self._box.shape)}; valid: {list(shape)} or that of all inputs"
            )
        if not bool((torch.isfinite(self._box) & (self._box >= 0)).all()):
            raise InvalidInputError("box holds a number that is negative or not finite; valid: finite half-widths >= 0")

    @torch.no_grad()
    def predictions(self) -> tuple[NDArray[np.int64], Array]:
        """Return the class with the highest score at each input, as the network computes it, and its lead."""
        net, parts = self.proof, [torch.zeros(0, self.proof.classes)]
        for part in torch.split(self._inputs, _BLOCK):
            parts.append(net.graph.evaluate(part.to(net.device, net.arithmetic.dtype)).cpu())
        scores = torch.cat(parts).double()
        best = scores.topk(2, dim=1).values
        return scores.argmax(1).numpy(), (best[:, 0] - best[:, 1]).numpy()

    @torch.no_grad()
    def margins(
        self, net: PreparedGraph, lines: bool, examples: NDArray[np.intp], prediction: NDArray[np.int64], radii: Array
    ) -> Array:
        """Return a number per example that is positive only if z_y − z_j > 0 is proven for all rivals j.

        It is a bound of the smallest of them, with `lines` over those only that boxes leave open, if there are any. NaN
        says that nothing is known.
        """
        together = max(1, _TOGETHER // net.width)
        out = [np.zeros(0)]
        for start in range(0, len(examples), together):
            part = slice(start, start + together)
            chosen = torch.from_numpy(examples[part])
            x = self._inputs[chosen.to(self._inputs.device)].to(net.device).double()
            widths = self._box if self._box.dim() < x.dim() else self._box[chosen.to(self._box.device)]
            reach = torch.from_numpy(np.array(radii[part])).to(net.device).reshape(-1, *(1,) * (x.dim() - 1))
            y = torch.from_numpy(np.array(prediction[part])).to(net.device)
            start_box = input_box(net, x, reach * widths.to(net.device).double(), self._range)
            steps = activation_boxes(net, start_box, errors=lines)
            smallest = best_margin_bounds(net, steps, y, together) if lines else margin_bounds(net, steps, y).amin(1)
            out.append(smallest.cpu().double().numpy())  # NaN where one is
        return np.concatenate(out)


def _require_bounds(bounds: str) -> None:
    if bounds not in ("interval", "best"):
        raise InvalidInputError(f"unknown bounds {bounds!r}: {nearest(str(bounds), ('interval', 'best'))}")
