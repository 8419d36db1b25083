"""Boxes that hold what the deployed network computes, layer by layer, and what they prove about its scores.

Theorem. Let B be a box of inputs. For every x' in B, rounded to the network's type, every value that the network
computes on the way, in whatever order it adds, lies in the box of its operation; a NaN in a box says that nothing is
known, as where a sum may overflow.

Proof, by induction over the operations. Let h in m ± ρ be the computed input of a layer. In real numbers W h + b is in
(W m + b) ± |W|ρ. The computed one is off by at most γ(n+2)(|W||h| + |b|) plus underflow (`arithmetic.py`), and
|h| <= |m| + ρ. The float64 numbers W m + b and |W|ρ of the bound are themselves off by γ₆₄ of the same absolute values,
so ρ' = |W|ρ + (γ + γ₆₄)(|W|(|m| + ρ) + |b|) + underflow will do. Averages, sums and affine maps are layers with few
terms. An activation f does not decrease, so f(h) lies between f at the ends; one that rounds is widened by
16u·max(1, |f|). Activations and pools that only choose among numbers are applied to the ends in the network's own type.
Rounding to nearest does not decrease, so the input's ends are rounded themselves.

Assumes: IEEE arithmetic (denormals may count as zero); layers computed as sums of products in any order, so no
Winograd or FFT convolutions (oneDNN as torch calls it has none; NNPACK and cuDNN can have them) and no TF32; torch's
activations within 16 units of rounding, relative to max(1, |value|). Where denormals count as zero, a value may also
be off by the smallest normal number, which the sums that follow allow for.
"""

__all__ = ["Box", "Step", "activation_boxes", "input_box", "margin_bounds"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from securesgd.certificates.interval.arithmetic import UNIT64, Arithmetic, gamma
from securesgd.certificates.interval.prepared import Prepared, PreparedGraph
from securesgd.models.layer_graph import Operation

_ACTIVATION_ULPS = 16
_SOFTPLUS = 2e-10  # softplus is the identity above 20, where it drops by exp(-20), one part in 10^10


class Box:
    """All numbers between two ends, elementwise, kept as ends or as centre and radius; NaN where nothing is known.

    Going from one form to the other rounds. Each operation with sums adds a slack to its radius, relative to what it
    gets and to what it gives, that covers this; operations that only choose among ends keep them.
    """

    __slots__ = ("_centre", "_ends", "_radius")

    def __init__(self, centre: Tensor, radius: Tensor) -> None:
        self._centre: Tensor | None = centre
        self._radius: Tensor | None = radius
        self._ends: tuple[Tensor, Tensor] | None = None

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor) -> "Box":
        """Return the box with these ends."""
        box = cls.__new__(cls)
        box._centre, box._radius, box._ends = None, None, (lower, upper)
        return box

    @property
    def centre(self) -> Tensor:
        """The middle."""
        if self._centre is None:
            lower, upper = self.ends()
            self._centre = (lower + upper).mul_(0.5)
        return self._centre

    @property
    def radius(self) -> Tensor:
        """Half the width."""
        if self._radius is None:
            lower, upper = self.ends()
            self._radius = (upper - lower).mul_(0.5)
        return self._radius

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        if self._ends is not None:
            return torch.maximum(self._ends[1], -self._ends[0])
        return self.centre.abs().add_(self.radius)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends."""
        if self._ends is None:
            self._ends = (self.centre - self.radius, self.centre + self.radius)
        return self._ends

    def select(self, examples: Tensor) -> "Box":
        """Return the box of these examples, in the forms that it has."""
        box = Box.__new__(Box)
        box._centre, box._radius = (None if part is None else part[examples] for part in (self._centre, self._radius))
        box._ends = None if self._ends is None else (self._ends[0][examples], self._ends[1][examples])
        return box


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The box of an operation's output, and how far the operation may round, None unless it was wanted."""

    box: Box
    error: Tensor | None = None

    def select(self, examples: Tensor) -> "Step":
        """Return the step of these examples."""
        return Step(self.box.select(examples), None if self.error is None else self.error[examples])


def input_box(net: PreparedGraph, x: Tensor, reach: Tensor, input_range: tuple[float, float] | None) -> Box:
    """Return the box of x ± reach, inside the range, after rounding to the network's type."""
    x, reach = x.double(), reach.double()
    outward = 4 * UNIT64 * (x.abs() + reach)
    lower, upper = x - reach - outward, x + reach + outward
    if input_range is not None:
        lower, upper = lower.clamp(min=input_range[0]), upper.clamp(max=input_range[1])
    own, tiny = net.arithmetic.dtype, net.arithmetic.tiny
    return Box.between((lower.to(own) - tiny).to(net.dtype), (upper.to(own) + tiny).to(net.dtype))


def activation_boxes(net: PreparedGraph, start: Box, *, errors: bool = False) -> list[Step]:
    """Return the box of every operation, up to the last one's input if that is a linear layer; see `margin_bounds`.

    With `errors`, the boxes of all operations, with how far each may round.
    """
    operations = net.graph.operations
    steps = [Step(start, torch.zeros_like(start.centre) if errors else None)]
    stop = len(operations) - (operations[-1].kind == "linear" and not errors)
    for place in range(1, stop):
        operation = operations[place]
        boxes = [steps[i].box for i in operation.inputs]
        if operation.module is not None:
            steps.append(_through_layer(net, net.layers[place], boxes[0], errors))
        else:
            steps.append(_through(net, operation, boxes, errors))
    return steps


def margin_bounds(net: PreparedGraph, steps: list[Step], prediction: Tensor) -> Tensor:
    """Return lower bounds of z_y − z_j, as the network computes both, [examples, classes]; infinity for j = y.

    The last layer, if linear, is not given a box: the bound goes through the difference of its rows, W_y − W_j.
    """
    last = len(net.graph.operations) - 1
    if last not in net.layers or net.graph.operations[last].kind != "linear":
        lower, upper = steps[-1].box.ends()
        margins = lower.gather(1, prediction[:, None]) - upper - 2 * net.arithmetic.tiny
    else:
        layer, box = net.layers[last], steps[net.graph.operations[last].inputs[0]].box
        margins = torch.empty(len(prediction), net.classes, dtype=net.dtype, device=net.device)
        rounding = layer.error * (box.magnitude @ layer.absolute.T + layer.bias.abs())
        rounding = _known(net, rounding + layer.underflow, rounding, layer.error)
        for y in sorted(set(prediction.tolist())):
            own = prediction == y
            rows, shift = layer.weight[y] - layer.weight, layer.bias[y] - layer.bias
            worst = box.centre[own] @ rows.T + shift - box.radius[own] @ rows.abs().T
            margins[own] = worst - (rounding[own] + rounding[own, y, None])
    return margins.scatter(1, prediction[:, None], math.inf)


def _through_layer(net: PreparedGraph, layer: Prepared, box: Box, errors: bool) -> Step:
    centre, error = layer.apply(box.centre, layer.weight, layer.bias), None
    if errors:
        error = layer.apply(box.magnitude, layer.absolute, layer.bias.abs()).mul_(layer.error).add_(layer.underflow)
        radius = layer.apply(box.radius, layer.absolute, None) + error
        error = _known(net, error, radius, layer.error)
    else:  # one product instead of two: |W|ρ + e(|W|(|m| + ρ) + |b|) = |W|(ρ + e(|m| + ρ)) + e|b|
        widened = torch.add(box.radius, box.magnitude, alpha=layer.error)
        radius = layer.apply(widened, layer.absolute, layer.error * layer.bias.abs() + layer.underflow)
    return Step(Box(_known(net, centre, radius, layer.error), radius), error)


def _known(net: PreparedGraph, value: Tensor, radius: Tensor, error: float) -> Tensor:
    """Return the value, or NaN where a sum may have overflowed: radius >= error·(the absolute values summed)."""
    limit = error * net.arithmetic.largest / 2
    return value if bool(radius.amax() <= limit) else torch.where(radius <= limit, value, math.nan)


def _through(net: PreparedGraph, operation: Operation, boxes: list[Box], errors: bool) -> Step:
    box, kind, unit, tiny = boxes[0], operation.kind, net.arithmetic.unit, net.arithmetic.tiny
    function = operation.function
    if kind == "activation":
        return _through_activation(net, operation, box, errors)
    if kind in ("reshape", "max-pool"):
        assert function is not None
        lower, upper = box.ends()
        out = Box.between(function(lower), function(upper))
        return Step(out, torch.full_like(out.radius, tiny) if errors else None)
    if kind == "sum":
        absolute, error_unit = boxes[0].magnitude + boxes[1].magnitude, gamma(4, unit) + net.slack
        error = error_unit * absolute + 4 * tiny
        centre, radius = box.centre + boxes[1].centre, box.radius + boxes[1].radius + error
    elif kind == "affine":
        scale, shift = net.constants(operation)
        absolute, error_unit = scale.abs() * box.magnitude + shift.abs(), gamma(8, unit) + net.slack
        error = error_unit * absolute + 8 * tiny * (1 + scale.abs() + box.magnitude)
        centre, radius = box.centre * scale + shift, scale.abs() * box.radius + error
        centre = torch.where(scale.abs() <= 1 / tiny, centre, math.nan)  # 1/denormal is not what was meant
    else:  # an average: its weights are of one sign, and a window has at most as many elements as there are
        assert function is not None
        terms = math.prod(net.graph.operations[operation.inputs[0]].shape[-2:])
        error_unit = gamma(terms + 4, unit) + net.slack
        error = error_unit * function(box.magnitude).abs() + 8 * terms * tiny
        centre, radius = function(box.centre), function(box.radius).abs() + error
        absolute = (terms * box.magnitude.flatten(1).amax(1)).reshape(-1, 1, 1, 1)
    known = absolute <= net.arithmetic.largest / 2
    centre, error = torch.where(known, centre, math.nan), torch.where(known, error, math.nan)
    return Step(Box(centre, radius), error if errors else None)


def _through_activation(net: PreparedGraph, operation: Operation, box: Box, errors: bool) -> Step:
    assert operation.function is not None
    lower, upper = box.ends()
    if operation.exact:
        # Limits given as Python numbers are rounded to the network's type; those of relu and relu6 are whole.
        own = net.dtype if operation.curve in ("relu", "relu6") else net.arithmetic.dtype
        out = Box.between(*(operation.function(end.to(own)).to(net.dtype) for end in (lower, upper)))
        return Step(out, torch.full_like(lower, net.arithmetic.tiny) if errors else None)
    low, high = operation.function(lower), operation.function(upper)
    low_error, high_error = (_activation_error(net.arithmetic, operation.curve, value) for value in (low, high))
    out = Box.between(low - low_error, high + high_error)
    return Step(out, torch.maximum(low_error, high_error) if errors else None)


def _activation_error(arithmetic: Arithmetic, curve: str, value: Tensor) -> Tensor:
    """Return how far the computed activation may be from this value, with that of computing it here."""
    relative = _ACTIVATION_ULPS * (arithmetic.unit + UNIT64)
    if curve == "leaky_relu":  # one product; a slope up to 2^20 of a denormal that counts as zero
        return relative * value.abs() + 2**20 * arithmetic.tiny
    if curve == "softplus":
        relative = max(relative, _SOFTPLUS)
    return relative * value.abs().clamp(min=1)
