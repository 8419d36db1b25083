"""The radius within which no change of an input can change the deployed network's prediction, proven by its bounds."""

__all__ = ["IntervalRadii", "interval_radii", "proven_at"]

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securesgd.certificates.interval.boxes import activation_boxes, input_box, margin_bounds
from securesgd.certificates.interval.linear_bounds import has_linear_bound, linear_margin_bounds
from securesgd.certificates.interval.prepared import PreparedGraph, prepare
from securesgd.certificates.interval.search import proven_steps, secant_steps
from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import Array, finite_array, nonnegative_array, validate_positive

Bounds = Literal["interval", "best"]
Way = Literal["interval", "linear", "best"]
_BLOCK = 1000  # examples between two reports of progress
_TOGETHER = 2**19  # numbers of one intermediate value
_GUARD = 1 + 1e-6  # a radius is proven a little beyond itself, so that other sums' bits do not undo it


@dataclass(frozen=True, kw_only=True)
class IntervalRadii:
    """What the bounds prove for each example: its class, and the radius by boxes and by linear bounds.

    A radius of 0 says that nothing is proven; `linear` is 0 where the network has no linear bound.
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
    prediction, parts = question.predictions(), []
    for start in range(0, len(inputs), _BLOCK):
        part = np.arange(start, min(start + _BLOCK, len(inputs)))
        grid = _Grid(question, prediction, part, largest, tolerance)
        interval = grid.interval()
        linear = np.zeros_like(interval)
        if bounds == "best" and has_linear_bound(question.proof.graph):
            linear = grid.linear(interval)
        parts.append((interval, linear))
        if on_progress is not None:
            on_progress(int(part[-1]) + 1)
    interval, linear = (np.concatenate([np.zeros(0), *(pair[i] for pair in parts)]) for i in (0, 1))
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
    way: Way = "best" if bounds == "best" and has_linear_bound(question.proof.graph) else "interval"
    everything = np.arange(len(inputs))
    return question.margins(question.proof, way, everything, y, np.broadcast_to(radii, y.shape)) > 0


class _Grid:
    """Radii that are multiples of the tolerance, for some of the examples."""

    def __init__(
        self, question: "_Question", prediction: NDArray[np.int64], part: NDArray[np.intp], largest: float, step: float
    ) -> None:
        self._question, self._y, self._part = question, prediction, part
        self._most, self._step, self._largest = int(largest / step * (1 + 1e-12)), step, largest

    def _radius(self, steps: NDArray[np.int64]) -> Array:
        return np.minimum(steps * self._step, self._largest)

    def _margins(self, net: PreparedGraph, way: Way, examples: NDArray[np.intp], radii: Array) -> Array:
        chosen = self._part[examples]
        return self._question.margins(net, way, chosen, self._y[chosen], radii)

    def _proof(self, way: Way, examples: NDArray[np.intp], steps: NDArray[np.int64]) -> Array:
        return self._margins(self._question.proof, way, examples, self._radius(steps) * _GUARD)

    def interval(self) -> Array:
        """Return the largest radii that boxes prove: guessed in float32, which is faster, then proven."""

        def guess(examples: NDArray[np.intp], steps: NDArray[np.int64]) -> Array:
            return self._margins(self._question.guess, "interval", examples, self._radius(steps))

        guesses = secant_steps(guess, self._at_zero(), self._near(None), self._most)
        return self._verified(
            "interval", proven_steps(lambda *asked: self._proof("interval", *asked) > 0, guesses, self._most)
        )

    def linear(self, interval: Array) -> Array:
        """Return radii that linear bounds prove, looked for from those of the boxes on."""
        proof = partial(self._proof, "linear")
        return self._verified("linear", secant_steps(proof, self._at_zero(), self._near(interval), self._most))

    def _at_zero(self) -> Array:
        everything = np.arange(len(self._part))
        return self._margins(self._question.guess, "interval", everything, np.zeros(len(everything)))

    def _near(self, radii: Array | None) -> NDArray[np.int64]:
        """Return the steps to look at first."""
        first = np.full(len(self._part), self._largest / 500) if radii is None else radii
        return np.rint(first / self._step).astype(np.int64)

    def _verified(self, way: Way, steps: NDArray[np.int64]) -> Array:
        """Return the radii of the steps, lowered where `proven_at`, which takes all examples together, fails."""
        everything = np.arange(len(self._part))
        while True:
            margins = self._margins(self._question.proof, way, everything, self._radius(steps))
            fails = ~(margins > 0) & (steps > 0)
            if not fails.any():
                return self._radius(steps)
            steps = np.where(fails, steps - 1, steps)


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
    def predictions(self) -> NDArray[np.int64]:
        """Return the class with the highest score at each input, as the network computes it."""
        net = self.proof
        scores = [
            net.graph.evaluate(part.to(net.device, net.arithmetic.dtype)).argmax(1).cpu()
            for part in torch.split(self._inputs, _BLOCK)
        ]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *scores]).numpy()

    @torch.no_grad()
    def margins(
        self, net: PreparedGraph, way: Way, examples: NDArray[np.intp], prediction: NDArray[np.int64], radii: Array
    ) -> Array:
        """Return the smallest bound of z_y − z_j over the rivals j, per example; NaN where nothing is known."""
        numbers = net.width * (1 if way == "interval" else net.classes)
        together = max(1, _TOGETHER // numbers)
        out = [np.zeros(0)]
        for start in range(0, len(examples), together):
            part = slice(start, start + together)
            chosen = torch.from_numpy(examples[part])
            x = self._inputs[chosen.to(self._inputs.device)].to(net.device).double()
            widths = self._box if self._box.dim() < x.dim() else self._box[chosen.to(self._box.device)]
            reach = torch.from_numpy(np.array(radii[part])).to(net.device).reshape(-1, *(1,) * (x.dim() - 1))
            y = torch.from_numpy(np.array(prediction[part])).to(net.device)
            start_box = input_box(net, x, reach * widths.to(net.device).double(), self._range)
            steps = activation_boxes(net, start_box, errors=way != "interval")
            if way == "linear":
                margins = linear_margin_bounds(net, steps, y)
            elif way == "interval":
                margins = margin_bounds(net, steps, y)
            else:
                margins = torch.maximum(margin_bounds(net, steps, y), linear_margin_bounds(net, steps, y))
            out.append(margins.amin(1).cpu().double().numpy())  # NaN where one is
        return np.concatenate(out)


def _require_bounds(bounds: str) -> None:
    if bounds not in ("interval", "best"):
        raise InvalidInputError(f"unknown bounds {bounds!r}: {nearest(str(bounds), ('interval', 'best'))}")
