"""The harness: it calls an attack and trusts nothing of it. Budget, pixel range and success are measured here.

clean votes → attack what is still right → clip again → fresh votes → certificates at both images → a row each
"""

__all__ = ["AttackedExamples", "Certifier", "attack_examples", "clean_votes", "clip_to_budget"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.attacks.ball import Ball, per_image, sizes
from securesgd.attacks.craft import craft
from securesgd.attacks.objective import evaluation_mode
from securesgd.attacks.projected_gradient import Progress
from securesgd.attacks.settings import AttackSettings
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import vote_counts
from securesgd.runtime.randomness import seeded_generator
from securesgd.validate import validate_count

Certifier = Callable[[Tensor, NDArray[np.int64], str], dict[str, NDArray[Any]]]
"""(images, indices, "clean" or "attacked") to `prediction`, `tight` and `as-published` radii, an entry per image.

Interval certificates have no `as-published`; an empty result is a model that cannot be certified."""
_ROUNDING = 1e-6  # what single precision may add to a change or a pixel


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedExamples:
    """Attacked examples as the harness measured them."""

    images: Tensor
    """After the harness's own clipping; the clean image where the example was not attacked."""
    rows: list[dict[str, Any]]
    """A row per example, with the columns of attacks.csv after `cell`."""
    outside: int
    """Images the attack returned outside the budget or the pixel range, or with values that are not finite."""
    flat: int
    """Attacked examples with a zero gradient at the start."""
    attacked: int
    passes: int


def attack_examples(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    indices: NDArray[np.int64],
    settings: AttackSettings,
    *,
    draws: int = 1000,
    clean: Tensor | None = None,
    certifier: Certifier | None = None,
    on_progress: Progress | None = None,
) -> AttackedExamples:
    """Attack some examples of a data set and measure the result.

    Guarantee: every image is within the budget and in [0, 1]; clean and attacked votes are fresh and independent of the
    draws of the attack. In the sound protocol an example that is wrong without attack stays as it is and counts as
    wrong, so the accuracy under attack is never above the clean one.
    Assumes: `indices` are the examples' places in their data set. They choose the random numbers, so the same examples
    attacked again, in the same parts, give the same rows. `clean`, if given, is `clean_votes` of these very examples.
    """
    part, count = int(indices[0]), _vote_draws(model, draws)
    clean = clean_votes(model, inputs, indices, draws, settings.seed) if clean is None else clean
    images, votes, targets = inputs.clone(), clean.clone(), torch.full_like(labels, -1)
    broken_by, outside, flat, passes = [""] * len(inputs), 0, 0, 0
    with evaluation_mode(model):
        radii = _radii(certifier, inputs, indices, "clean", clean)
        after = radii.copy()
        rows = _attackable(clean, labels, settings).nonzero()[:, 0]
        if len(rows):
            crafted = craft(model, inputs[rows], labels[rows], settings, stream=part, on_progress=on_progress)
            images[rows], outside = clip_to_budget(crafted.images, inputs[rows], settings)
            generator = seeded_generator(settings.seed, "attacked votes", part)
            votes[rows] = vote_counts(model, images[rows], count, generator)
            targets[rows] = crafted.labels if settings.target is not None else -1
            after[rows.numpy()] = _radii(certifier, images[rows], indices[rows.numpy()], "attacked", votes[rows])
            flat, passes = int(crafted.flat.sum()), crafted.passes
            for row, by in zip(rows.tolist(), crafted.broken_by, strict=True):
                broken_by[row] = by
    change = sizes(images - inputs, settings.norm)
    table = [
        {
            **{name: getattr(settings, name) for name in ("attack", "protocol", "norm", "budget")},
            "index": int(indices[i]),
            "label": int(labels[i]),
            "target": int(targets[i]) if targets[i] >= 0 else "",
            "draws": count,
            **_vote_columns("clean_", clean[i], int(labels[i]), radii[i]),
            **_vote_columns("", votes[i], int(labels[i]), after[i]),
            "size": float(change[i]),
            "success": int(_success(votes[i], int(labels[i]), int(targets[i]), settings)),
            "broken_by": broken_by[i],
        }
        for i in range(len(inputs))
    ]
    return AttackedExamples(images=images, rows=table, outside=outside, flat=flat, attacked=len(rows), passes=passes)


def clean_votes(model: nn.Module, inputs: Tensor, indices: NDArray[np.int64], draws: int, seed: int) -> Tensor:
    """Return the votes of images without attack, [examples, classes]; a model without noise votes once."""
    with evaluation_mode(model):
        return vote_counts(
            model, inputs, _vote_draws(model, draws), seeded_generator(seed, "clean votes", int(indices[0]))
        )


def clip_to_budget(claimed: Tensor, inputs: Tensor, settings: AttackSettings) -> tuple[Tensor, int]:
    """Return the images an attack claims, moved into budget and pixel range, and how many were outside.

    An image with a value that is not finite is replaced by the clean one.
    """
    finite = torch.isfinite(claimed.flatten(1)).all(1)
    safe = torch.where(per_image(finite, inputs), claimed, inputs)
    flat = safe.flatten(1)
    short = sizes(safe - inputs, settings.norm) <= settings.budget + _ROUNDING
    inside = finite & short & ((flat >= -_ROUNDING) & (flat <= 1 + _ROUNDING)).all(1)
    return Ball.around(inputs, settings.budget, settings.norm).project(safe), int((~inside).sum())


def _vote_draws(model: nn.Module, draws: int) -> int:
    return validate_count("draws", draws, 1) if isinstance(model, NoisyNetwork) else 1


def _attackable(clean: Tensor, labels: Tensor, settings: AttackSettings) -> Tensor:
    """Return which examples are attacked: those still right, or all of them as published."""
    if settings.protocol == "as-published":
        return torch.ones(len(labels), dtype=torch.bool)
    label = clean.gather(1, labels[:, None])[:, 0]
    right = label > clean.scatter(1, labels[:, None], -1).amax(1)
    if settings.target is not None and settings.target.isdecimal():
        right &= labels != int(settings.target)
    return right


def _vote_columns(prefix: str, votes: Tensor, label: int, radii: NDArray[Any]) -> dict[str, Any]:
    others = votes.clone()
    others[label] = -1
    return {
        f"{prefix}prediction": int(votes.argmax()),
        f"{prefix}label_votes": int(votes[label]),
        f"{prefix}other_votes": int(others.max()),
        f"{prefix}radius": _radius_cell(radii[0]),
        f"{prefix}radius_published": _radius_cell(radii[1]),
    }


def _radius_cell(radius: float) -> float | str:
    return "" if np.isnan(radius) else float(radius)


def _success(votes: Tensor, label: int, target: int, settings: AttackSettings) -> bool:
    """Return whether the attack reached its goal: the target wins, or the label does not."""
    if settings.target is not None:
        return int(votes.argmax()) == target
    return bool(votes.scatter(0, torch.tensor(label), -1).max() >= votes[label])


def _radii(
    certifier: Certifier | None, images: Tensor, indices: NDArray[np.int64], place: str, votes: Tensor
) -> NDArray[Any]:
    """Return the tight and the published radius of each image, [n, 2]; not a number without certificates.

    0 where the certificate is about another class than the votes.
    """
    radii = np.full((len(images), 2), np.nan)
    certificates = {} if certifier is None else certifier(images, indices, place)
    for column, rule in enumerate(("tight", "as-published")):
        if rule in certificates:
            agrees = certificates["prediction"] == votes.argmax(1).numpy()
            radii[:, column] = np.where(agrees, certificates[rule], 0.0)
    return radii
