"""Epsilon for a person who has several training examples: computed, not k times the epsilon of one.

The rule "k examples cost k·epsilon" holds only together with a delta that grows to k·e^((k-1)·epsilon)·delta. At the
delta of the statement the epsilon of k examples is *larger* than k·epsilon: in DP-SGD steps several of the person's
examples may enter the same batch. `mixture_loss` computes the mixture of those cases.
"""

__all__ = ["GROUP_SIZES", "KNOWN_EVENTS", "group_epsilon", "protected_groups"]

import math
from collections.abc import Iterable

from securesgd.errors import InvalidInputError
from securesgd.privacy.composition import Composition, compose
from securesgd.privacy.events import GaussianRelease, PrivacyEvent, SampledGaussianSteps, UnprotectedRelease
from securesgd.privacy.mixture_loss import LARGEST_GROUP, loss_curves
from securesgd.validate import validate_count, validate_delta

GROUP_SIZES = (2, 5, 10)
"""Numbers of examples of one person that a statement is about."""
KNOWN_EVENTS: tuple[type, ...] = (GaussianRelease, SampledGaussianSteps, UnprotectedRelease)
"""Kinds of events whose privacy loss is known for any number of examples; unprotected ones lose all."""


def protected_groups(events: Iterable[PrivacyEvent]) -> Composition:
    """Return the composition of events whose privacy loss is known for any number of examples.

    Raises: InvalidInputError if there is another kind of event: a figure without it would be too small.
    """
    events = tuple(events)
    for event in events:
        if type(event) not in KNOWN_EVENTS:
            names = ", ".join(kind.__name__ for kind in KNOWN_EVENTS)
            raise InvalidInputError(f"the trade-off curve of {type(event).__name__} is not known here; valid: {names}")
    return compose(events)


def group_epsilon(events: Iterable[PrivacyEvent], delta: float, examples: int) -> float:
    """Return the epsilon at `delta` for a person who has `examples` of the training examples.

    Guarantee: publishing all the events' results is (epsilon, delta)-differentially private when all of the person's
    examples are added, removed or zeroed out at once. An upper bound, by privacy loss distributions in both directions
    whatever the accountant of the run; inf if an event has no noise or no guarantee, 0 without events. One example
    costs what `epsilon_spent` says by PLD, up to the grids of both.
    Assumes: each example enters each step by its own coin, whichever others do.
    Raises: InvalidInputError for an event of another kind, a delta below what floating point resolves, a number of
    examples outside 1 to 100, or a loss beyond what the grid can hold.
    """
    composition, delta = protected_groups(events), validate_delta(delta)
    examples = validate_count("examples", examples, at_least=1, at_most=LARGEST_GROUP)
    if composition.unprotected:
        return math.inf
    if not composition.groups:
        return 0.0
    curves = loss_curves(composition.groups, examples)
    least = max(float(curve.deltas[-1]) for curve in curves)
    if delta < 2 * least:
        raise InvalidInputError(f"delta is {delta!r}; valid: from {2 * least:.2g} on, for what floating point resolves")
    return max(curve.epsilon(delta) for curve in curves)
