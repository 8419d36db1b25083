"""The privacy statement: the figure together with everything it depends on, and in words."""

__all__ = ["NoiseScheme", "PrivacyStatement", "privacy_statement"]

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from securesgd.errors import InvalidInputError
from securesgd.privacy.accounting import (
    ADJACENCIES,
    Adjacency,
    accountant_version,
    composition_epsilon,
    validate_accountant,
)
from securesgd.privacy.composition import compose
from securesgd.privacy.events import PrivacyEvent
from securesgd.theory.rounding import round_up
from securesgd.validate import validate_count, validate_delta, validate_positive

SEEDED = "the noise has a fixed seed, so it can be computed and subtracted by anyone who knows or guesses it"
_ADJACENT = {
    "zero-out": "replacing one training example by one that contributes nothing, the number of examples being public",
    "add-or-remove-one": "adding or removing one training example",
}


@dataclass(frozen=True, kw_only=True)
class NoiseScheme:
    """How the noise of DP-SGD steps is made: integers on a public grid, an exact rounded Gaussian.

    docs/reference/noise.md has the proof. `bound` is the l2 change by one example that the noise is calibrated to: the
    clipping norm, what floating point may add to a sum of clipped gradients (`sensitivity`), and the rounding.
    """

    clipping_norm: float
    sensitivity: float
    grid: float
    bound: float
    coordinates: int
    seeded: bool
    """Whether the key comes from a number the user gave, instead of the operating system's secret randomness."""
    generator: str = "AES-128-CTR"

    def __post_init__(self) -> None:
        for name in ("clipping_norm", "sensitivity", "grid", "bound"):
            object.__setattr__(self, name, validate_positive(name, getattr(self, name)))
        object.__setattr__(self, "coordinates", validate_count("coordinates", self.coordinates, at_least=1))
        if not self.clipping_norm <= self.sensitivity <= self.bound:
            raise InvalidInputError(
                f"clipping_norm {self.clipping_norm!r}, sensitivity {self.sensitivity!r} and bound {self.bound!r} must "
                "not decrease"
            )

    @property
    def in_words(self) -> str:
        """What the scheme guarantees and costs, as a sentence."""
        more = math.ceil((self.bound / self.clipping_norm - 1) * 1e4) / 1e2
        return (
            f"The noise is exact in floating point ({self.generator}, integers on a grid of {self.grid:g}): this adds "
            f"0 to epsilon, 0 to delta and {more:.2f} % to the noise."
        )


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """What may be claimed about the privacy of the training data.

    `epsilon` is inf unless `guaranteed`; `reasons` then say why. `accounted_epsilon` is the cost of the
    protected releases alone: equal to `epsilon` if guaranteed, otherwise the figure that an `as-published`
    method or a run with a fixed seed would claim, and no guarantee. `cautions` are remarks that weaken a true
    statement.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    accountant_version: str
    guaranteed: bool
    reasons: tuple[str, ...] = ()
    accounted_epsilon: float = math.inf
    cautions: tuple[str, ...] = ()
    noise: NoiseScheme | None = None

    @property
    def guaranteed_but_for_seed(self) -> bool:
        """Whether the same run with a secret key would be guaranteed."""
        return all(reason == SEEDED for reason in self.reasons)

    @property
    def in_short(self) -> str:
        """The statement as one sentence, which `in_words` explains; epsilon is rounded up."""
        if self.guaranteed:
            return (
                f"({_epsilon_text(self.epsilon)}, {self.delta!r})-differentially private for any one training example."
            )
        return f"Differential privacy is not guaranteed: {'; '.join(self.reasons)}."

    @property
    def in_words(self) -> str:
        """The statement as a sentence or two; epsilon is rounded up."""
        method = f"{self.accountant.upper()} accountant of {self.accountant_version}"
        claim = (
            f"({_epsilon_text(self.accounted_epsilon)}, {self.delta!r})-differentially private for "
            f"{_ADJACENT[self.adjacency]} ({method})."
        )
        if self.guaranteed:
            noise = [] if self.noise is None else [self.noise.in_words]
            return " ".join([claim, *noise, *(f"Caution: {caution}." for caution in self.cautions)])
        words = self.in_short
        if self.accounted_epsilon == 0:  # nothing else was released
            return words
        if self.guaranteed_but_for_seed:
            return f"{words} With a secret key the same training is {claim}"
        cost = f"epsilon = {_epsilon_text(self.accounted_epsilon)} at delta = {self.delta:g} ({method})"
        return f"{words} The other releases alone cost {cost}."

    def __str__(self) -> str:
        return self.in_words

    def json(self) -> dict[str, Any]:
        """Return the statement as a JSON object; an infinite epsilon is the string "inf"."""
        record = asdict(self) | {"in_words": self.in_words}
        for name in ("epsilon", "accounted_epsilon"):
            record[name] = "inf" if math.isinf(record[name]) else record[name]
        for name in ("reasons", "cautions"):
            record[name] = list(record[name])
        return record


def privacy_statement(
    events: Iterable[PrivacyEvent],
    delta: float,
    accountant: str = "pld",
    dataset_size: int | None = None,
    *,
    adjacency: Adjacency = "zero-out",
    noise: NoiseScheme | None = None,
) -> PrivacyStatement:
    """Return the statement about everything that was released.

    Guarantee: `epsilon` is `epsilon_spent(events, delta, accountant)`, and inf if the noise had a fixed seed.
    Assumes: `events` holds every release that touched the private data; `dataset_size` (only used for a
    remark on delta) is public; under "add-or-remove-one" the sampling rates do not depend on the number of examples.
    Raises: InvalidInputError for an invalid event, delta, accountant, size or adjacency.
    """
    composition = compose(events)
    delta, name = validate_delta(delta), validate_accountant(accountant)
    if adjacency not in ADJACENCIES:
        raise InvalidInputError(f"adjacency is {adjacency!r}; valid: {', '.join(ADJACENCIES)}")
    cautions = []
    if dataset_size is not None and delta * validate_count("dataset_size", dataset_size, at_least=1) > 1:
        cautions.append(f"delta = {delta:g} is above 1/n for n = {dataset_size}")
    groups = [*composition.groups, *(group for trial in composition.selections for group in trial.groups)]
    if groups and min(group.noise_multiplier for group in groups) < 0.1:
        cautions.append("a noise multiplier below 0.1 protects next to nothing")
    accounted = composition_epsilon(composition._replace(unprotected=()), delta, name)
    reasons = composition.unprotected
    if not reasons and math.isinf(accounted):
        reasons = ("no finite epsilon could be computed",)
    if noise is not None and noise.seeded and groups:
        reasons = (*reasons, SEEDED)
    return PrivacyStatement(
        epsilon=math.inf if reasons else accounted,
        delta=delta,
        adjacency=adjacency,
        accountant=name,
        accountant_version=accountant_version(),
        guaranteed=not reasons,
        reasons=reasons,
        accounted_epsilon=accounted,
        cautions=tuple(cautions),
        noise=noise,
    )


def _epsilon_text(epsilon: float) -> str:
    return "infinity" if math.isinf(epsilon) else f"{round_up(epsilon, decimals=4):.4f}"
