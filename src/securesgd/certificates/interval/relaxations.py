"""Straight lines below and above an activation between two ends, for linear bounds.

Whatever slope a line is given, its height comes from the largest distance to the curve, known in closed form at the
ends and at the point of that slope, and is then moved outward by more than float64 can have lost. A slope chosen badly
gives a loose line, never a wrong one.
"""

__all__ = ["KINKED", "LINES", "Lines", "lines_of"]

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from securesgd.certificates.interval.arithmetic import UNIT64
from securesgd.models.layer_graph import Operation

KINKED = ("leaky_relu", "relu")
"""Curves with two pieces, for which `lines_of` has a second choice below."""
_BISECTIONS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """low_slope·z + low <= f(z) <= high_slope·z + high between the ends, with slopes in [0, 1]."""

    low_slope: Tensor
    low: Tensor
    high_slope: Tensor
    high: Tensor


def lines_of(operation: Operation, lower: Tensor, upper: Tensor, *, flat_below: bool = False) -> Lines:
    """Return lines for an activation in `LINES`.

    With `flat_below`, the line below a kinked curve between ends of both signs is the flatter of its two pieces,
    leak·z, whichever side is longer: never above max(z, leak·z).
    """
    lines = LINES[operation.curve](operation, lower, upper)
    if not flat_below or operation.curve not in KINKED:
        return lines
    return replace(lines, low_slope=torch.where(lower >= 0, lines.low_slope, leak(operation)))


def leak(operation: Operation) -> float:
    """Return the slope of relu or leaky_relu below zero."""
    assert operation.function is not None
    return -float(operation.function(torch.tensor([-1.0], dtype=torch.float64)))


def _outward(lower: Tensor, upper: Tensor) -> Tensor:
    return 64 * UNIT64 * (1 + torch.maximum(upper.abs(), lower.abs()))


def _relu(operation: Operation, lower: Tensor, upper: Tensor) -> Lines:
    """Return lines of max(z, s z), 0 <= s <= 1: the chord above; below, one through zero, as steep as the long side."""
    s = leak(operation)
    f_lower, f_upper = torch.maximum(lower, s * lower), torch.maximum(upper, s * upper)
    active, idle = lower >= 0, upper <= 0
    chord = ((f_upper - f_lower) / (upper - lower)).clamp(s, 1)
    slope = torch.where(active, 1.0, torch.where(idle, s, chord))
    height = torch.maximum(f_lower - slope * lower, f_upper - slope * upper)  # convex: farthest at an end
    # Relative to the ends, as the curve is: a network of tiny numbers keeps its bounds.
    outward = 64 * UNIT64 * torch.maximum(upper.abs(), lower.abs())
    below = torch.where(active | (upper > -lower), 1.0, s).where(~idle, torch.full_like(lower, s))
    return Lines(below, torch.zeros_like(lower), slope, torch.where(active | idle, 0.0, height + outward))


def _tanh(operation: Operation, lower: Tensor, upper: Tensor) -> Lines:
    low_slope, low = _above_tanh(-upper, -lower)  # tanh is odd
    high_slope, high = _above_tanh(lower, upper)
    return Lines(low_slope, -low, high_slope, high)


def _sigmoid(operation: Operation, lower: Tensor, upper: Tensor) -> Lines:
    """Lines from those of tanh: sigmoid(z) = (1 + tanh(z/2))/2."""
    half = _tanh(operation, lower / 2, upper / 2)
    shift = 8 * UNIT64
    return Lines(half.low_slope / 4, (1 + half.low) / 2 - shift, half.high_slope / 4, (1 + half.high) / 2 + shift)


def _above_tanh(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return slope and height of a line above tanh.

    tanh − a z is convex for z < 0, so largest at an end or at 0. For z > 0 it is concave with its top where the slope
    is a: at d for a = tanh'(d). With a <= tanh'(upper) it does not fall before the upper end, so that an end is largest
    again; for upper <= 0 an end is in any case.
    """
    t_lower, t_upper = torch.tanh(lower), torch.tanh(upper)
    end_slope = 1 - t_upper * t_upper
    chord = torch.nan_to_num((t_upper - t_lower) / (upper - lower), nan=0.0).clamp(0, 1) + 0 * (lower + upper)
    # The tangent at d in (0, upper) that passes over the lower end, by bisection; any d is sound.
    near, far = lower.clamp(min=0), upper.clamp(min=0)
    touch = (near + far) / 2
    for _ in range(_BISECTIONS):
        t = torch.tanh(touch)
        over = t + (1 - t * t) * (lower - touch) >= t_lower
        near, far = torch.where(over, near, touch), torch.where(over, touch, far)
        touch = (near + far) / 2
    touch = torch.where(lower >= 0, (lower + upper) / 2, far)
    t = torch.tanh(touch)
    tangent = 1 - t * t
    straight = (upper <= 0) | (end_slope >= chord)
    slope = torch.where(upper <= 0, chord, torch.where(straight, torch.minimum(chord, end_slope), tangent))
    height = torch.maximum(t_lower - slope * lower, t_upper - slope * upper)
    height = torch.where(straight, height, torch.maximum(height, t - slope * touch))
    return slope, height + _outward(lower, upper)


LINES: dict[str, Callable[[Operation, Tensor, Tensor], Lines]] = {
    "leaky_relu": _relu,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
}
