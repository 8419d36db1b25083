"""Linear bounds of the margins z_y − z_j over a box, from the output back to the input (CROWN with the boxes' ends).

Theorem. For every x' in the input's box, every margin as the network computes it is at least the bound.

Proof. By `boxes`, each operation's computed value is op(computed inputs) + δ with |δ| <= error, and is in its box. Say
the margin is at least <Λ, v> + c for a value v of the network, with numbers Λ and c. If v = W h + b + δ, then
<Λ, v> >= <ΛW, h> + <Λ, b> − <|Λ|, error>. If v = f(h) + δ, the lines of `relaxations`, below if Λ > 0 and above if
Λ < 0, give the same. A maximum is at least its element with the highest lower end, and at most the highest upper end. A
value with several uses adds up its Λ. At the input, <Λ, x'> >= <Λ, m> − <|Λ|, ρ>. Computing ΛW, <Λ, b> and the running
sum in float64 loses at most `slack` times the absolute values, <|Λ|, |W||h| + |b|>, which is taken off with the errors.
The proof holds for any lines, so the larger of two bounds is one too: for relu, with the line below as steep as the
longer side, which leaves the smallest area, or flat, which stays inside the box.
Reference: Zhang et al. 2018 (CROWN), Zhang et al. 2020 (CROWN-IBP).
"""

__all__ = ["best_margin_bounds", "has_linear_bound", "linear_margin_bounds"]

import math

import torch
from torch import Tensor

from securesgd.certificates.interval.boxes import Box, Step, margin_bounds
from securesgd.certificates.interval.prepared import PreparedGraph
from securesgd.certificates.interval.relaxations import KINKED, LINES, leak, lines_of
from securesgd.models.layer_graph import LayerGraph, Operation


def has_linear_bound(graph: LayerGraph) -> bool:
    """Return whether every activation of the network has lines; max-pools, sums and all layers have."""
    curves = [operation for operation in graph.operations if operation.kind == "activation"]
    return all(curve.curve in LINES and (curve.curve != "leaky_relu" or leak(curve) <= 1) for curve in curves)


def best_margin_bounds(net: PreparedGraph, steps: list[Step], prediction: Tensor, together: int) -> Tensor:
    """Return per example a lower bound of z_y − z_j over the rivals j that boxes leave open, or all if there are none.

    It is positive only if each rival is excluded by its box or by its linear bound, and NaN where nothing is known. At
    most `together` rows, one for each example and rival, are computed at once.
    """
    margins = margin_bounds(net, steps, prediction)
    left = ~(margins > 0)
    counts = left.sum(1)
    # Both choices always, not one where the other fails: a search needs margins that fall steadily with the radius.
    choices = (False, True) if any(operation.curve in KINKED for operation in net.graph.operations) else (False,)
    for count in sorted(set(counts.tolist()) - {0}):
        for part in (counts == count).nonzero()[:, 0].split(max(1, together // count)):
            whole = len(part) == len(prediction)
            rivals = left[part].nonzero()[:, 1].reshape(len(part), count)
            own_steps = steps if whole else [step.select(part) for step in steps]
            rows = part[:, None].expand_as(rivals)
            for flat_below in choices:
                linear = linear_margin_bounds(net, own_steps, prediction[part], rivals, flat_below=flat_below)
                margins[rows, rivals] = torch.maximum(margins[rows, rivals], linear)
    return torch.where(left | (counts == 0)[:, None], margins, math.inf).amin(1)


def linear_margin_bounds(
    net: PreparedGraph, steps: list[Step], prediction: Tensor, rivals: Tensor, *, flat_below: bool = False
) -> Tensor:
    """Return lower bounds of z_y − z_j, as the network computes both, for these rivals j, [examples, rivals].

    `steps` are the boxes of all operations with their errors; `flat_below` is for `lines_of`.
    """
    operations = net.graph.operations
    identity = torch.eye(net.classes, dtype=net.dtype, device=net.device)
    rows: dict[int, Tensor] = {len(operations) - 1: identity[prediction][:, None] - identity[rivals]}
    bound = torch.zeros(rivals.shape, dtype=net.dtype, device=net.device)
    for place in range(len(operations) - 1, 0, -1):
        if place not in rows:
            continue
        operation, here = operations[place], rows.pop(place)
        inputs = [steps[i].box for i in operation.inputs]
        back, gain = _backward(net, place, operation, inputs, steps[place], here, flat_below=flat_below)
        bound = bound + gain
        for source, row in zip(operation.inputs, back, strict=True):
            if source in rows:
                rows[source] = rows[source] + row
                bound = bound - net.slack * _dot(rows[source].abs(), steps[source].box.magnitude)
            else:
                rows[source] = row
    first, box = rows[0], steps[0].box
    worst = torch.add(box.radius, box.magnitude, alpha=net.slack)
    return bound + _dot(first, box.centre) - _dot(first.abs_(), worst)


def _dot(rows: Tensor, values: Tensor) -> Tensor:
    """Return <rows, values> of each example and class."""
    return torch.bmm(rows.flatten(2), values.flatten(1)[:, :, None])[:, :, 0]


def _backward(
    net: PreparedGraph,
    place: int,
    operation: Operation,
    inputs: list[Box],
    step: Step,
    rows: Tensor,
    *,
    flat_below: bool,
) -> tuple[list[Tensor], Tensor]:
    """Return the rows for each input of an operation, and what the bound gains, which is mostly negative."""
    kind, flat, shape = operation.kind, rows.flatten(0, 1), net.graph.operations[operation.inputs[0]].shape
    error, outer = step.error, rows.shape[:2]
    assert error is not None
    if kind == "reshape":
        return [rows.reshape(*outer, *shape)], rows.new_zeros(outer)
    absolute = rows.abs()
    if kind == "activation":
        lines = lines_of(operation, *inputs[0].ends(), flat_below=flat_below)
        loss = error + net.slack * (inputs[0].magnitude + lines.low.abs() + lines.high.abs())
        # Λ⁺·low + Λ⁻·high = Λ·(low + high)/2 + |Λ|·(low − high)/2, of heights and of slopes
        gain = _dot(rows, (lines.low + lines.high) / 2) + _dot(absolute, (lines.low - lines.high) / 2 - loss)
        mean, half = (lines.low_slope + lines.high_slope) / 2, (lines.low_slope - lines.high_slope) / 2
        return [(rows * mean[:, None]).addcmul_(absolute, half[:, None])], gain
    loss = _dot(absolute, error + net.slack * step.box.magnitude)
    if kind == "max-pool":
        positive, negative = rows.clamp(min=0), rows.clamp(max=0)
        return [_pulled_back(operation, inputs[0].ends()[0], positive)], _dot(negative, step.box.ends()[1]) - loss
    if operation.module is not None:
        layer = net.layers[place]
        back = layer.adjoint(flat, layer.weight, shape)
        per_channel = rows.flatten(3).sum(3) if kind == "convolution" else rows
        return [back.reshape(*outer, *shape)], (per_channel @ layer.bias).reshape(*outer, -1).sum(2) - loss
    if kind == "sum":
        return [rows, rows.clone()], -loss
    if kind == "affine":
        scale, shift = net.constants(operation)
        return [rows * scale], _dot(rows, shift.expand(len(rows), *operation.shape)) - loss
    assert kind == "average-pool"
    return [_pulled_back(operation, inputs[0].centre, rows)], -loss


def _pulled_back(operation: Operation, at: Tensor, rows: Tensor) -> Tensor:
    """Return the rows times a pool's derivative at this point: the matrix of an average, the choice of a maximum."""
    assert operation.function is not None
    with torch.enable_grad():
        point = at.detach()[:, None].expand(*rows.shape[:2], *at.shape[1:]).flatten(0, 1).requires_grad_()
        (back,) = torch.autograd.grad(operation.function(point), point, rows.flatten(0, 1))
    return back.reshape(*rows.shape[:2], *at.shape[1:])
