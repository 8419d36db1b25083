"""Events added up: the few numbers that the cost of any list of events depends on.

Composition does not care about order, so equal steps merge into one entry with a count, and releases without
sampling merge exactly into one Gaussian. A training run of thousands of blocks costs as much as one event.
"""

__all__ = ["Composition", "Group", "Selection", "compose"]

import math
from collections.abc import Iterable
from typing import NamedTuple

from securesgd.errors import InvalidInputError
from securesgd.privacy.events import (
    GaussianRelease,
    PrivacyEvent,
    RepeatAndSelect,
    SampledGaussianSteps,
    UnprotectedRelease,
)

# Below this multiplier epsilon exceeds 1e11 and dp-accounting's formulas overflow (its RDP even returns 0 at
# 1e-160): such noise is counted as none.
LEAST_NOISE = 1e-6
# Above this one epsilon is 0 for any delta of use, and squares overflow: such noise is counted as this much.
MOST_NOISE = 1e9


class Group(NamedTuple):
    """`steps` Poisson-sampled Gaussian releases with equal parameters; sampling_rate 1 means no sampling."""

    sampling_rate: float
    noise_multiplier: float
    steps: int


class Selection(NamedTuple):
    """The best of a random number of trials (`RepeatAndSelect`), each of which is the composition of `groups`."""

    groups: tuple[Group, ...]
    mean: float
    shape: float


class Composition(NamedTuple):
    """The sum of a list of events: hashable, independent of their order.

    `groups` are the protected releases; `unprotected` the reasons why there is no guarantee (empty if there
    is one); `selections` the best of several trials, which RDP alone accounts for.
    """

    groups: tuple[Group, ...]
    unprotected: tuple[str, ...]
    selections: tuple[Selection, ...] = ()


def compose(events: Iterable[PrivacyEvent]) -> Composition:
    """Return the composition of the events.

    Guarantee: any accountant gives the same epsilon for the result as for the events one by one (adaptive
    composition; k Gaussians with multipliers c_i equal one with multiplier (sum c_i^-2)^-1/2).
    Raises: InvalidInputError if something in `events` is not an event.
    """
    counts: dict[tuple[float, float], int] = {}
    reasons: list[str] = []
    selections: list[Selection] = []
    for event in events:
        match event:
            case GaussianRelease():
                name, rate, steps = event.label, 1.0, 1
            case SampledGaussianSteps():
                name, rate, steps = "DP-SGD steps", event.sampling_rate, event.steps
            case UnprotectedRelease():
                reasons.append(f"{event.label}: {event.reason}")
                continue
            case RepeatAndSelect():
                trial = compose(event.trial)
                reasons.extend(trial.unprotected)
                selections.append(Selection(trial.groups, event.mean, event.shape))
                continue
            case _:
                raise InvalidInputError(f"event is {event!r}; valid: a securesgd.privacy event")
        if event.noise_multiplier < LEAST_NOISE:
            reasons.append(f"{name}: noise multiplier {event.noise_multiplier:g} is no protection")
            continue
        key = (rate, min(event.noise_multiplier, MOST_NOISE))
        counts[key] = counts.get(key, 0) + steps
    unsampled = [(noise, steps) for (rate, noise), steps in counts.items() if rate == 1]
    groups = [Group(rate, noise, steps) for (rate, noise), steps in counts.items() if rate < 1]
    if unsampled:
        # sorted, so that the last bit of the sum does not depend on the order of the events
        merged = 1 / math.sqrt(math.fsum(sorted(steps / noise**2 for noise, steps in unsampled)))
        groups.append(Group(1.0, merged, 1))
    return Composition(tuple(sorted(groups)), tuple(dict.fromkeys(reasons)), tuple(sorted(selections)))
