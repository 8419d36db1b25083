"""One call for every attack: images, labels and settings in, attacked images out.

What comes back is the attack's word. `harness.py` is what measures it.
"""

__all__ = ["Crafted", "aims", "craft"]

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from securesgd.attacks.ball import Ball
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.projected_gradient import Climb, Progress, projected_gradient
from securesgd.attacks.settings import ATTACKS, AttackSettings
from securesgd.attacks.square import square_search
from securesgd.attacks.streams import stream as random_stream
from securesgd.errors import InvalidInputError

_PARTS_OF_AUTO = ("apgd-ce", "apgd-dlr", "square")


@dataclass(frozen=True, kw_only=True, eq=False)
class Crafted:
    """The attacked images and what the attack saw on its way."""

    images: Tensor
    aims: Tensor
    """The classes the attack moved away from, or towards if targeted."""
    believes: Tensor
    """Where the attack believes to have won."""
    flat: Tensor
    """Where the gradient at the start was exactly zero."""
    broken_by: list[str]
    """Per example the part of the attack after which it believed to have won, "" if none did."""
    passes: int
    """Images times draws looked at."""


def craft(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    settings: AttackSettings,
    *,
    stream: int = 0,
    on_progress: Progress | None = None,
) -> Crafted:
    """Return attacked images within the budget, pixels in [0, 1]. The same arguments give the same images.

    Assumes: inputs in [0, 1]; a model that treats images one by one. Its only noise is that of a `NoisyNetwork`.
    Raises: InvalidInputError if inputs and labels do not fit together or pixels are outside [0, 1].

    `stream` separates the random numbers of parts of a data set that are attacked one after the other.
    """
    _require_fit(inputs, labels)
    device = next(model.parameters(), inputs).device
    generator = random_stream(settings.seed, "attack", stream)
    with evaluation_mode(model):
        x = inputs.to(device)
        chosen = aims(model, x, labels.to(device), settings, generator)
        ball = Ball.of(x, settings.budget, settings.norm)
        climb, broken_by, passes = Climb.begin(x), [""] * len(x), 0
        parts = _PARTS_OF_AUTO if settings.attack == "auto" else (settings.attack,)
        for number, name in enumerate(parts):
            part = _part_of(settings, name)
            objective = _objective(model, part, generator)

            def watch(share: float, number: int = number) -> None:
                if on_progress is not None:
                    on_progress((number + share) / len(parts))

            if name == "square":
                climb = square_search(objective, ball, chosen, part.steps, generator, climb=climb, on_progress=watch)
            else:
                climb = projected_gradient(objective, ball, chosen, part, generator, climb=climb, on_progress=watch)
            won = (climb.settled | (climb.margin > 0)).tolist()
            broken_by = [by or (name if now else "") for by, now in zip(broken_by, won, strict=True)]
            passes += objective.passes
    return Crafted(
        images=climb.points.cpu(),
        aims=chosen.cpu(),
        believes=(climb.margin > 0).cpu(),
        flat=climb.flat.cpu(),
        broken_by=broken_by,
        passes=passes,
    )


def aims(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings, generator: torch.Generator) -> Tensor:
    """Return the class each example is moved away from, or towards if the attack is targeted."""
    if settings.target is None and settings.labels == "true":
        return labels
    objective = _objective(model, replace(settings, target=None), generator)
    seen = objective.look(x, labels, gradient=False)
    predicted = seen.votes.argmax(1)
    if settings.target is None:
        return predicted
    away = labels if settings.labels == "true" else predicted
    classes = seen.votes.shape[1]
    if settings.target.isdecimal():
        if int(settings.target) >= classes:
            raise InvalidInputError(f"target class {settings.target} does not exist; valid: 0 to {classes - 1}")
        return torch.full_like(labels, int(settings.target))
    mean = seen.probabilities.scatter(1, away[:, None], torch.nan)
    if settings.target == "runner-up":
        return mean.nan_to_num(nan=-1).argmax(1)
    return mean.nan_to_num(nan=2).argmin(1)


def _objective(model: nn.Module, settings: AttackSettings, generator: torch.Generator) -> Objective:
    targeted = settings.target is not None
    return Objective(model, settings.loss, settings.eot, generator, targeted=targeted, rows=settings.rows)


def _part_of(settings: AttackSettings, name: str) -> AttackSettings:
    """Return the settings of one part of `auto`; other attacks are their own only part."""
    if name == settings.attack:
        return settings
    changes = dict(ATTACKS[name]) | {"steps": settings.queries if name == "square" else settings.steps}
    return replace(settings, attack=name, **changes)


def _require_fit(inputs: Tensor, labels: Tensor) -> None:
    if len(inputs) != len(labels) or not len(inputs):
        raise InvalidInputError(f"{len(inputs)} images and {len(labels)} labels; there must be as many, and at least 1")
    if not bool(((inputs >= 0) & (inputs <= 1)).all()):
        raise InvalidInputError("pixels must be in [0, 1]; put a normalisation into the first layer's weights")
