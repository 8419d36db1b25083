"""Falsification of interval certificates: a search for a point inside a certified box where another class wins.

The network is deterministic, so one output at a point decides: a flip means that the certificate is wrong.
"""

__all__ = ["falsify_intervals", "falsify_run_intervals"]

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from securesgd.attacks.ball import Ball, per_image
from securesgd.attacks.falsify import Falsification, climb_from_starts, shrunk
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.projected_gradient import Progress
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.box import half_widths
from securesgd.certificates.intervals import plain_outputs
from securesgd.certificates.rules import INTERVAL
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.randomness import seeded_generator
from securesgd.runtime.run_folder import CERTIFICATE_RECORD, FALSIFIED
from securesgd.runtime.storage import write_json
from securesgd.validate import nonnegative_array, validate_count


def falsify_intervals(
    model: nn.Module,
    inputs: Tensor,
    predicted: ArrayLike,
    radii: ArrayLike,
    *,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    box: tuple[str, ...] | None = None,
    restarts: int = 2,
    steps: int = 20,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Falsification:
    """Return the result of searching each certified box for a point that the network gives another class.

    Guarantee: an entry that is `flipped` has its point inside the box and the input range, and the network without its
    noise predicts another class there: the certificate is wrong. No failure probability is involved.
    Raises: InvalidInputError if shapes, radii or numbers do not fit.

    `input_range` and `box` are those of the certificates. Each box is climbed from its centre and from `restarts`
    random points.
    """
    validate_count("steps", steps, 1)
    validate_count("restarts", restarts, 0)
    radius = nonnegative_array("radii", radii)
    labels = torch.as_tensor(np.asarray(predicted), dtype=torch.long)
    if not len(inputs) or radius.shape != (len(inputs),) or labels.shape != (len(inputs),):
        raise InvalidInputError(f"{len(inputs)} inputs need as many predictions and radii, at least one")
    widths = None if box is None else half_widths(box, inputs)
    searched, points = radius > 0, inputs.clone()
    rows = searched.nonzero()[0]
    if len(rows):
        ball = Ball(
            centre=inputs[rows],
            radius=shrunk(radius[rows], "linf", inputs[0].numel()).to(inputs),
            box=input_range,
            widths=None if widths is None else widths[rows].to(inputs),
        )
        settings = AttackSettings(attack="apgd-ce", budget=1.0, steps=steps, restarts=1, adaptive=True, eot=0)
        with evaluation_mode(model):
            objective = Objective(model, "smoothed", 0, seeded_generator(seed, "box search"))
            found = climb_from_starts(objective, ball, labels[rows], settings, restarts, seed, None, on_progress)
        points[rows] = found.points.cpu()
    reach = per_image(torch.from_numpy(radius), inputs).expand(inputs.shape) * (1.0 if widths is None else widths)
    # Rounding may have carried a number out of a narrow box: back to the one before it.
    points = torch.where(_change(points, inputs) > reach, torch.nextafter(points, inputs), points)
    change = _change(points, inputs)
    inside = (change <= reach).flatten(1).all(1).numpy()
    with evaluation_mode(model):
        outputs = plain_outputs(model, points)
    others = outputs.scatter(1, labels[:, None], -torch.inf)
    own = outputs.gather(1, labels[:, None])[:, 0]
    tested = searched & inside
    flipped = tested & (others.amax(1) >= own).numpy()
    share = torch.where(reach > 0, change / reach.clamp_min(1e-300), 0.0).flatten(1).amax(1).numpy()
    return Falsification(
        points=points,
        searched=searched,
        tested=tested,
        flipped=flipped,
        winner=others.argmax(1).numpy(),
        votes=np.stack([tested & ~flipped, flipped], axis=1).astype(np.int64),
        share=np.where(searched, share, 0.0),
        failure_prob=0.0,
    )


def _change(points: Tensor, inputs: Tensor) -> Tensor:
    return (points.double() - inputs.double()).abs()


def falsify_run_intervals(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    rows: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    *,
    restarts: int = 2,
    steps: int = 20,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Search the certified boxes of `rows` of the interval family; write and return the result.

    Guarantee: if the certificates are what they claim, `sound` is True, for certain: not one failure is allowed.
    """
    if not rows:
        raise InvalidInputError(f"{folder} has no interval certificates to search; run securesgd certify first")
    try:
        ends, box = settings["input_range"], settings["box"]
        input_range = None if ends is None else (float(ends[0]), float(ends[1]))
        columns = None if box is None else tuple(str(text) for text in box)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DamagedFileError(f"{folder / CERTIFICATE_RECORD} has no settings of intervals ({error})") from None
    places = [int(row["index"]) for row in rows]
    falsification = falsify_intervals(
        model, inputs[places], [int(row["prediction"]) for row in rows], [float(row["radius_tight"]) for row in rows],
        input_range=input_range, box=columns, restarts=restarts, steps=steps, seed=seed,
        on_progress=None if on_progress is None else lambda share: on_progress("tight", share),
    )  # fmt: skip
    broken = [place for place, wrong in zip(places, falsification.flipped, strict=True) if wrong]
    search = {
        "searched": int(falsification.searched.sum()),
        "near": int(falsification.tested.sum()),
        "violations": len(broken),
        "broken": broken,
        "in_words": _in_words(falsification, places),
    }
    result = {
        "family": INTERVAL, "norm": str(rows[0]["norm"]), "examples": len(rows), "restarts": restarts, "steps": steps,
        "seed": seed, "rules": {"tight": search}, "allowed": 0, "sound": not broken,
    }  # fmt: skip
    write_json(folder / FALSIFIED.format(norm=INTERVAL), result)
    return result


def _in_words(falsification: Falsification, places: Sequence[int]) -> str:
    count, of = int(falsification.flipped.sum()), int(falsification.searched.sum())
    if not count:
        return f"searched {of} certified boxes of the network without noise and found no counter-example"
    first = int(falsification.flipped.nonzero()[0][0])
    return (
        f"{count} of {of} interval certificates are WRONG: the network gives example {places[first]} class "
        f"{falsification.winner[first]} within {falsification.share[first]:.3f} of the radius"
    )
