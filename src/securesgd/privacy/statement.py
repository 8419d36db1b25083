"""The privacy statement: the figure together with everything it depends on, and in words."""

__all__ = ["PrivacyStatement", "finished_statement", "privacy_statement"]

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from securesgd.privacy.accounting import (
    ADJACENCY,
    accountant_checked,
    accountant_version,
    epsilon_of,
)
from securesgd.privacy.checked import count_checked, delta_checked
from securesgd.privacy.composition import composed
from securesgd.privacy.events import PrivacyEvent

_SEEDED = "the noise has a fixed seed: there is no privacy towards anyone who knows or guesses it"


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """What may be claimed about the privacy of the training data.

    `epsilon` is inf unless `guaranteed`; `reasons` then say why. `accounted_epsilon` is the cost of the
    protected releases alone: equal to `epsilon` if guaranteed, otherwise the figure that an `as-published`
    method would claim, and no guarantee. `cautions` are remarks that weaken a true statement.
    """

    epsilon: float
    delta: float
    adjacency: str
    accountant: str
    accountant_version: str
    guaranteed: bool
    reasons: tuple[str, ...] = ()
    accounted_epsilon: float = math.inf
    cautions: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The statement as one sentence; epsilon is rounded up."""
        method = f"{self.accountant.upper()} accountant of {self.accountant_version}"
        if not self.guaranteed:
            words = f"Differential privacy is not guaranteed: {'; '.join(self.reasons)}."
            if self.accounted_epsilon == 0:  # nothing else was released
                return words
            cost = f"epsilon = {_rounded_up(self.accounted_epsilon)} at delta = {self.delta:g} ({method})"
            return f"{words} The other releases alone cost {cost}."
        words = (
            f"({_rounded_up(self.epsilon)}, {self.delta!r})-differentially private for adding or removing "
            f"one training example ({method})."
        )
        return " ".join([words, *(f"Caution: {caution}." for caution in self.cautions)])

    def json(self) -> dict[str, Any]:
        """Return the statement as a JSON object; an infinite epsilon is the string "inf"."""
        record = asdict(self) | {"in_words": self.in_words}
        for name in ("epsilon", "accounted_epsilon"):
            record[name] = "inf" if math.isinf(record[name]) else record[name]
        for name in ("reasons", "cautions"):
            record[name] = list(record[name])
        return record


def privacy_statement(
    events: Iterable[PrivacyEvent], delta: float, accountant: str = "pld", dataset_size: int | None = None
) -> PrivacyStatement:
    """Return the statement about everything that was released.

    Guarantee: `epsilon` is `epsilon_spent(events, delta, accountant)`.
    Assumes: `events` holds every release that touched the private data; `dataset_size` (only used for a
    remark on delta) is public.
    Raises: InvalidInputError for an invalid event, delta, accountant or size.
    """
    composition = composed(events)
    delta, name = delta_checked(delta), accountant_checked(accountant)
    cautions = []
    if dataset_size is not None and delta * count_checked("dataset_size", dataset_size, at_least=1) > 1:
        cautions.append(f"delta = {delta:g} is above 1/n for n = {dataset_size}")
    if composition.groups and min(group.noise_multiplier for group in composition.groups) < 0.1:
        cautions.append("a noise multiplier below 0.1 protects next to nothing")
    accounted = epsilon_of(composition._replace(unprotected=()), delta, name)
    epsilon = epsilon_of(composition, delta, name)
    reasons = composition.unprotected
    if not reasons and math.isinf(epsilon):
        reasons = ("no finite epsilon could be computed",)
    return PrivacyStatement(
        epsilon=epsilon,
        delta=delta,
        adjacency=ADJACENCY,
        accountant=name,
        accountant_version=accountant_version(),
        guaranteed=not reasons,
        reasons=reasons,
        accounted_epsilon=accounted,
        cautions=tuple(cautions),
    )


def finished_statement(statement: PrivacyStatement, seeded: bool) -> PrivacyStatement:
    """Return the statement with the caution a fixed noise seed calls for."""
    if not seeded:
        return statement
    return replace(statement, cautions=(*statement.cautions, _SEEDED))


def _rounded_up(epsilon: float) -> str:
    return "infinity" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"
