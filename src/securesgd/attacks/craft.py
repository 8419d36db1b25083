"""One call for every attack: images, labels and settings in, attacked images out.

What comes back is what the attack claims. `harness.py` measures it.
"""

__all__ = ["CraftedImages", "attack_labels", "craft"]

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from securesgd.attacks.ball import Ball
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.projected_gradient import BestPoints, Progress, projected_gradient
from securesgd.attacks.settings import ATTACKS, AttackFunction, AttackSettings
from securesgd.attacks.square import square_search
from securesgd.certificates.sensitivity import fingerprint
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.randomness import seeded_generator

_PARTS_OF_AUTO = ("apgd-ce", "apgd-dlr", "square")


@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedImages:
    """The attacked images and what the attack reports about them."""

    images: Tensor
    labels: Tensor
    """The classes the attack moved away from, or towards if targeted."""
    flat: Tensor
    """Where the gradient at the start was exactly zero."""
    broken_by: list[str]
    """Per example the part of the attack after which it believed to have won; "" if none did or it does not say."""
    passes: int
    """Images times draws evaluated; 0 for an attack from outside, which is not counted."""


def craft(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    settings: AttackSettings,
    *,
    stream: int = 0,
    on_progress: Progress | None = None,
) -> CraftedImages:
    """Return attacked images within the budget, pixels in [0, 1]. The same arguments give the same images.

    An attack from outside (`settings.function`) is called instead of the built-in ones; its images are returned as they
    are, wherever they lie.
    Assumes: inputs in [0, 1]; a model that treats images one by one. Its only noise is that of a `NoisyNetwork`.
    Raises: InvalidInputError if inputs and labels do not fit together or pixels are outside [0, 1], or if an attack
    from outside fails, returns something else than images of the same shape, or changes the model's weights.

    `stream` separates the random numbers of parts of a data set that are attacked one after the other.
    """
    _require_images_and_labels(inputs, labels)
    device = next(model.parameters(), inputs).device
    generator = seeded_generator(settings.seed, "attack", stream)
    with evaluation_mode(model):
        x = inputs.to(device)
        chosen = attack_labels(model, x, labels.to(device), settings, generator)
        if settings.function is not None:
            own = copy.deepcopy(model)  # hooks, modes or noise that the attack leaves behind are not measured
            with _own_noise(own, seeded_generator(settings.seed, "attack noise", stream).initial_seed()):
                images = _call(settings.function, own, x, chosen, settings, generator)
            return _without_report(images, chosen.cpu())
        ball = Ball.around(x, settings.budget, settings.norm)
        best_points, broken_by, passes = BestPoints.start(x), [""] * len(x), 0
        parts = _PARTS_OF_AUTO if settings.attack == "auto" else (settings.attack,)
        for number, name in enumerate(parts):
            part = _part_of(settings, name)
            objective = _objective(model, part, generator)

            def watch(share: float, number: int = number) -> None:
                if on_progress is not None:
                    on_progress((number + share) / len(parts))

            if name == "square":
                best_points = square_search(
                    objective, ball, chosen, part.steps, generator, best_points=best_points, on_progress=watch
                )
            else:
                best_points = projected_gradient(
                    objective, ball, chosen, part, generator, best_points=best_points, on_progress=watch
                )
            won = (best_points.settled | (best_points.margin > 0)).tolist()
            broken_by = [by or (name if now else "") for by, now in zip(broken_by, won, strict=True)]
            passes += objective.passes
    return CraftedImages(
        images=best_points.points.cpu(),
        labels=chosen.cpu(),
        flat=best_points.flat.cpu(),
        broken_by=broken_by,
        passes=passes,
    )


def attack_labels(
    model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings, generator: torch.Generator
) -> Tensor:
    """Return the class each example is moved away from, or towards if the attack is targeted."""
    if settings.target is None and settings.labels == "true":
        return labels
    objective = _objective(model, replace(settings, target=None), generator)
    values = objective.evaluate(x, labels, gradient=False)
    predicted = values.votes.argmax(1)
    if settings.target is None:
        return predicted
    away = labels if settings.labels == "true" else predicted
    classes = values.votes.shape[1]
    if settings.target.isdecimal():
        settings.require_target_below(classes)
        return torch.full_like(labels, int(settings.target))
    mean = values.probabilities.scatter(1, away[:, None], torch.nan)
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


def _call(
    function: AttackFunction,
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    settings: AttackSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return the images of an attack from outside. Raises: InvalidInputError, in one line, if they cannot be used."""
    name, weights = settings.attack, fingerprint(model)
    try:
        with torch.enable_grad():
            images = function(model, x.clone(), labels.clone(), settings, generator)
    except InvalidInputError:
        raise
    except Exception as error:  # whatever the user's function raises, the command ends with one line
        reason = str(error).splitlines()[0] if str(error) else "no message"
        raise InvalidInputError(f"attack {name!r} failed with {type(error).__name__}: {reason}") from error
    if not isinstance(images, Tensor) or images.shape != x.shape:
        kind = f"shape {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InvalidInputError(f"attack {name!r} returned {kind}; valid: a tensor of shape {list(x.shape)}")
    if fingerprint(model) != weights:
        raise InvalidInputError(f"attack {name!r} changed the model's weights or buffers; it may only read them")
    return images.detach().to("cpu", x.dtype)


def _without_report(images: Tensor, labels: Tensor) -> CraftedImages:
    none = torch.zeros(len(images), dtype=torch.bool)
    return CraftedImages(images=images, labels=labels, flat=none, broken_by=[""] * len(images), passes=0)


@contextmanager
def _own_noise(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed torch's own generators within the context: for the model's noise, and for an attack that uses them."""
    noise = model.noisy.noise if isinstance(model, NoisyNetwork) else None
    generator = None if noise is None else noise.generator
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            if noise is not None:
                noise.generator = None
            yield
        finally:
            if noise is not None:
                noise.generator = generator


def _require_images_and_labels(inputs: Tensor, labels: Tensor) -> None:
    if len(inputs) != len(labels) or not len(inputs):
        raise InvalidInputError(f"{len(inputs)} images and {len(labels)} labels; there must be as many, and at least 1")
    if not bool(((inputs >= 0) & (inputs <= 1)).all()):
        raise InvalidInputError("pixels must be in [0, 1]; put a normalisation into the first layer's weights")
