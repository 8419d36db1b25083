"""Interval certificates: what bounds of a network without noise prove about each prediction, for certain.

The bounds themselves are in `certificates.interval`. This file turns them into `Certificates`, answers the question
"is this radius proven?", and proves radii anew that a file states.
"""

__all__ = ["BLOCK", "certify_by_intervals", "has_interval_bounds", "is_proven", "plain_outputs"]

from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.certificates.box import SMALLEST_SHARE, half_widths
from securesgd.certificates.interval.radius import interval_radii, proven_at
from securesgd.certificates.parts import gather
from securesgd.certificates.record import Certificates, CertifySettings
from securesgd.certificates.validate import require_eval_mode, require_finite_weights, require_inputs
from securesgd.errors import InvalidInputError
from securesgd.models.layer_graph import layer_graph
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork
from securesgd.runtime.processes import Processes
from securesgd.validate import Array

TOLERANCE = 1e-4
"""How far below the largest provable radius a radius may be, if the settings do not say."""
LARGEST = 10.0
"""The largest radius that is tried for inputs without a range; else it is the width of the range, or the whole box."""
BLOCK = 128
"""Examples that are bounded together. Where the search for a radius starts depends on those beside an example, and with
it the last digits of what is proven; so blocks are the same for any number of processes."""
_BATCH = 500

_Bounds = Literal["best", "interval"]
_Columns = tuple[NDArray[np.int64], Array, Array, NDArray[Any]]


def has_interval_bounds(model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether every layer of the model has a sound bound, so that intervals can certify it."""
    try:
        layer_graph(model, input_shape)
    except InvalidInputError:
        return False
    return True


def certify_by_intervals(
    model: nn.Module,
    inputs: Tensor,
    settings: CertifySettings,
    indices: NDArray[np.int64],
    on_progress: Callable[[int], None] | None = None,
) -> Certificates:
    """Return an interval certificate for every input.

    Guarantee: that of `Certificates` for its family interval; for any inputs, whoever chose them.
    Assumes: that of `certificates.interval`: IEEE arithmetic, every product computed as a sum of products.
    Raises: InvalidInputError if a layer has no sound bound, by its name; for a model in training mode or with weights
    that are not finite; for inputs of the wrong shape, not finite or out of range.

    With settings.radius only that radius is tried: it is the radius where it is proven, and 0 elsewhere.
    """
    require_eval_mode(model)
    require_finite_weights(model)
    require_inputs(inputs, tuple(inputs.shape[1:]), settings.input_range)
    processes = Processes()
    starts = range(0, len(inputs), BLOCK) if len(inputs) else (0,)  # of none there are columns, too, which are empty
    own = np.array_split(np.array(starts), processes.count)[processes.rank]

    def bound_own_blocks() -> list[_Columns]:
        return [_columns(model, inputs[at : at + BLOCK], settings, _after(i * BLOCK)) for i, at in enumerate(own)]

    def _after(before: int) -> Callable[[int], None] | None:
        return None if on_progress is None else lambda done: on_progress(before + done)

    parts = gather(processes.together(bound_own_blocks), processes)
    prediction, by_boxes, by_lines, answer = (np.concatenate([part[i] for part in parts]) for i in range(4))
    if settings.box_in_units is not None:  # a smaller share of the box is less than what scaling the columns may round
        by_boxes, by_lines = (np.where(radii < SMALLEST_SHARE, 0.0, radii) for radii in (by_boxes, by_lines))
    tight, count = np.maximum(by_boxes, by_lines), len(inputs)
    return Certificates(
        settings=settings,
        index=indices,
        prediction=prediction,
        abstained=np.zeros(count, dtype=np.bool_),
        answer=answer,
        draws=np.zeros(count, dtype=np.int64),
        votes=np.zeros((count, 0)),
        p_lower=np.ones(count),
        q_upper=np.zeros(count),
        rounding=np.zeros(count),
        radius={"tight": tight, "interval": by_boxes, "linear": by_lines},
    )


def is_proven(
    model: nn.Module,
    inputs: Tensor,
    prediction: NDArray[np.int64],
    radius: Array | float,
    settings: CertifySettings,
    bounds: str,
) -> NDArray[np.bool_]:
    """Return where the bounds prove that no change within `radius` makes the class another than `prediction`."""
    if not len(inputs):
        return np.zeros(0, dtype=np.bool_)
    box = None if settings.box is None else half_widths(settings.box, inputs)
    return proven_at(
        model, inputs, prediction, radius, input_range=settings.input_range, box=box, bounds=cast(_Bounds, bounds)
    )


@torch.inference_mode()
def plain_outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of the network without noise, in eval mode."""
    network = SplitNetwork(model) if isinstance(model, NoisyNetwork) else None
    like = next(model.parameters(), inputs)
    outputs = []
    for batch in torch.split(inputs.to(like), _BATCH):
        outputs.append(model(batch) if network is None else network.outputs(network.clean(batch)))
    return torch.cat(outputs).cpu()


def _columns(
    model: nn.Module, inputs: Tensor, settings: CertifySettings, on_progress: Callable[[int], None] | None
) -> _Columns:
    """Return the predictions, the radii by boxes and by linear bounds, and the answers."""
    if settings.radius is not None:
        return _answers(model, inputs, settings, settings.radius)
    low, high = settings.input_range or (0.0, LARGEST)
    radii = interval_radii(
        model,
        inputs,
        input_range=settings.input_range,
        box=None if settings.box is None else half_widths(settings.box, inputs),
        largest=1.0 if settings.box is not None else high - low,
        tolerance=settings.tolerance or TOLERANCE,
        bounds=cast(_Bounds, settings.bounds),
        on_progress=on_progress,
    )
    return radii.prediction, radii.interval, radii.linear, np.full(len(inputs), "")


def _answers(model: nn.Module, inputs: Tensor, settings: CertifySettings, radius: float) -> _Columns:
    prediction = plain_outputs(model, inputs).argmax(1).numpy()
    by_boxes = is_proven(model, inputs, prediction, radius, settings, "interval")
    proven = by_boxes.copy()
    rest = np.flatnonzero(~by_boxes)
    if settings.bounds == "best" and len(rest):  # the slower bounds only where the faster ones are not enough
        proven[rest] = is_proven(model, inputs[rest], prediction[rest], radius, settings, "best")
    by_lines = proven & ~by_boxes
    radii = np.where(by_boxes, radius, 0.0), np.where(by_lines, radius, 0.0)
    return prediction, *radii, np.where(proven, "yes", "no")
