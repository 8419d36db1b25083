"""What the released events cost together: epsilon at a given delta, by PLD (default) or RDP."""

__all__ = ["ACCOUNTANTS", "ADJACENCIES", "Accountant", "Adjacency", "accountant_version", "epsilon_spent"]

import importlib.metadata
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, get_args

from securesgd.errors import InvalidInputError, nearest
from securesgd.privacy.composition import Composition, compose
from securesgd.privacy.events import PrivacyEvent
from securesgd.privacy.pld import pld_epsilon
from securesgd.privacy.rdp import rdp_epsilon
from securesgd.validate import validate_delta

Adjacency = Literal["zero-out", "add-or-remove-one"]
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
"""zero-out: one example is replaced by one that contributes nothing, the number of examples is public.
add-or-remove-one: the number itself differs; the sampling rate must then not depend on it. Same epsilon either way."""
Accountant = Literal["pld", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = ("pld", "rdp")


def epsilon_spent(events: Iterable[PrivacyEvent], delta: float, accountant: str = "pld") -> float:
    """Return the epsilon that all events together cost at `delta`.

    Guarantee: publishing all the events' results is (epsilon, delta)-differentially private when one example
    is added or removed (each event's sampling rate being fixed), or zeroed out. The figure errs upwards (see
    `pld` and `rdp`), is never negative or NaN, does not depend on the order of the events or on how
    steps are split into blocks, and is inf if an event has no noise or no guarantee. No events cost 0.
    Assumes: each event's own premises; results are cached, so asking again at every logging step is free.
    Raises: InvalidInputError for an invalid event, delta or accountant.
    """
    return composition_epsilon(compose(events), validate_delta(delta), validate_accountant(accountant))


@lru_cache(maxsize=4096)
def composition_epsilon(composition: Composition, delta: float, accountant: Accountant) -> float:
    """Return the epsilon of a composition; `epsilon_spent` without the checks."""
    if composition.unprotected:
        return math.inf
    if composition.selections and accountant != "rdp":
        raise InvalidInputError(f"the best of several trials is accounted for by rdp only, got accountant {accountant}")
    if not composition.groups and not composition.selections:
        return 0.0
    if accountant == "rdp":
        return rdp_epsilon(composition.groups, delta, selections=composition.selections)
    return pld_epsilon(composition.groups, delta)


def validate_accountant(value: Any) -> Accountant:
    """Return the accountant's name. Raises: InvalidInputError unless it is "pld" or "rdp"."""
    for name in ACCOUNTANTS:
        if value == name:
            return name
    raise InvalidInputError(f"accountant is {value!r}; {nearest(str(value), ACCOUNTANTS)}")


def accountant_version() -> str:
    """Return the name and version of the library that computes epsilon, e.g. "dp-accounting 0.6.0"."""
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}"
