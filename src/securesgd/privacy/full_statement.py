"""The full privacy statement: what a reader needs to judge epsilon, or to compare it with somebody else's.

`PrivacyStatement` is the claim. This adds what it rests on (releases, sampling, clipping, generator, versions) and what
it means: mu of Gaussian DP, the success of membership attacks, and epsilon for people with several examples.
docs/reference/statement.md explains each line; `statement_schema.json` is the schema of the JSON form. No torch.
"""

__all__ = ["FullStatement", "GroupEpsilon", "full_statement", "statement_schema"]

import importlib.resources
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from securesgd.errors import InvalidInputError
from securesgd.privacy.composition import compose
from securesgd.privacy.events import PrivacyEvent, RepeatAndSelect, SampledGaussianSteps, event_json
from securesgd.privacy.group import GROUP_SIZES, KNOWN_EVENTS, group_epsilon
from securesgd.privacy.ledger import LedgerContents
from securesgd.privacy.membership import MembershipBounds, membership_bounds, no_bounds
from securesgd.privacy.mixture_loss import LARGEST_GROUP
from securesgd.privacy.statement import PrivacyStatement
from securesgd.privacy.statement_rows import UNIT, assumptions, not_covered, released, statement_in_words
from securesgd.validate import validate_count

FORMAT, FORMAT_VERSION = "securesgd-privacy-statement", 1
_Figure = TypeVar("_Figure")


@dataclass(frozen=True, kw_only=True)
class GroupEpsilon:
    """Epsilon, at the delta of the statement, for a person with so many examples; None if it is not available."""

    examples: int
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class FullStatement:
    """A privacy statement with everything it depends on and what it means.

    `membership` and `groups` are about the protected releases alone, as `accounted_epsilon` is; what may be claimed is
    `claimed_membership` and `claimed_groups`: nothing without a guarantee. `not_available` says why a figure is None.
    """

    statement: PrivacyStatement
    dataset_size: int | None
    target_epsilon: float | None
    releases: tuple[PrivacyEvent, ...]
    """What the ledger charges; steps with equal parameters are one entry."""
    membership: MembershipBounds | None
    groups: tuple[GroupEpsilon, ...]
    not_available: tuple[str, ...]
    versions: Mapping[str, str | None]
    finished: bool | None
    """Whether the run has ended; None if that is not known."""

    @property
    def charged_steps(self) -> int:
        """The DP-SGD steps that are paid for, of each trial if there are trials; a stopped run may have taken fewer."""
        return sum(
            event.steps
            for release in self.releases
            for event in (release.trial if isinstance(release, RepeatAndSelect) else (release,))
            if isinstance(event, SampledGaussianSteps)
        )

    @property
    def tuning_runs(self) -> float:
        """How many training runs the ledger charges for the choice of settings, on average: 0 without a search."""
        return sum(event.mean for event in self.releases if isinstance(event, RepeatAndSelect))

    @property
    def claimed_membership(self) -> MembershipBounds | None:
        """What may be claimed about membership attacks: without a guarantee they may always be right."""
        return self.membership if self.statement.guaranteed or self.membership is None else no_bounds()

    @property
    def claimed_groups(self) -> tuple[GroupEpsilon, ...]:
        """What may be claimed about people with several examples: without a guarantee nothing."""
        if self.statement.guaranteed:
            return self.groups
        return tuple(GroupEpsilon(examples=group.examples, epsilon=math.inf) for group in self.groups)

    def json(self) -> dict[str, Any]:
        """Return the statement as a JSON object of the schema that `statement_schema` returns; inf is "inf"."""
        claim = self.statement.json()
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **{name: claim[name] for name in ("guaranteed", "reasons", "cautions", "epsilon", "delta", "adjacency")},
            **{name: claim[name] for name in ("accounted_epsilon", "accountant", "accountant_version", "noise")},
            "unit": UNIT,
            "sampling": "poisson",
            "dataset_size": self.dataset_size,
            "target_epsilon": self.target_epsilon,
            "finished": self.finished,
            "charged_steps": self.charged_steps,
            "releases": [_release_json(event) for event in self.releases],
            **_figures_json(self.claimed_membership, self.claimed_groups),
            "accounted": _figures_json(self.membership, self.groups),
            "not_available": list(self.not_available),
            "tuning_runs": self.tuning_runs,
            "released": list(released(self)),
            "not_covered": list(not_covered(self)),
            "assumptions": list(assumptions(self)),
            "versions": dict(self.versions),
            "in_words": statement_in_words(self),
        }


def full_statement(
    ledger: LedgerContents,
    *,
    groups: Iterable[int] = GROUP_SIZES,
    versions: Mapping[str, str | None] | None = None,
    finished: bool | None = None,
) -> FullStatement:
    """Return the full statement about everything in a ledger, for people with 1 and with `groups` examples.

    Guarantee: the claim is that of the ledger. Further figures are upper bounds, by privacy loss distributions even if
    the run used the RDP accountant; a figure that cannot be computed is None with a reason, never left out silently.
    Takes about 0.5 s per entry of `groups` for 5,000 steps; a second call about the same releases is free.
    Raises: InvalidInputError if a number of examples is outside 2 to 100.
    """
    sizes = sorted({validate_count("group", size, at_least=2, at_most=LARGEST_GROUP) for size in groups})
    events = [record.event for record in ledger.records]
    protected = [event for event in events if not _is_unprotected(event)]
    delta, reasons = ledger.header.delta, list[str]()
    membership = _or_reason(
        lambda: membership_bounds(protected, delta), "mu and the true positive rates of attacks", reasons
    )
    found = [
        GroupEpsilon(
            examples=size,
            epsilon=_or_reason(
                lambda size=size: group_epsilon(protected, delta, size),  # type: ignore[misc]
                f"epsilon for a person with {size} examples",
                reasons,
            ),
        )
        for size in sizes
    ]
    return FullStatement(
        statement=ledger.statement,
        dataset_size=ledger.header.dataset_size,
        target_epsilon=ledger.header.target_epsilon,
        releases=_merged(events),
        membership=membership,
        groups=tuple(found),
        not_available=tuple(reasons),
        versions=dict(versions) if versions is not None else {"securesgd": ledger.header.securesgd_version},
        finished=finished,
    )


def statement_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the JSON form of a full statement."""
    text = importlib.resources.files("securesgd.privacy").joinpath("statement_schema.json").read_text("utf-8")
    return dict(json.loads(text))


def _is_unprotected(event: PrivacyEvent) -> bool:
    """Return whether an event is left out of the accounted figures, as `accounted_epsilon` does."""
    return type(event) in KNOWN_EVENTS and bool(compose([event]).unprotected)


def _or_reason(compute: Callable[[], _Figure], what: str, reasons: list[str]) -> _Figure | None:
    try:
        return compute()
    except InvalidInputError as error:
        reasons.append(f"{what}: {error}")
        return None


def _merged(events: Iterable[PrivacyEvent]) -> tuple[PrivacyEvent, ...]:
    """Return the events in their order, with steps of equal parameters as one entry."""
    steps: dict[tuple[float, float], int] = {}
    merged: list[PrivacyEvent | tuple[float, float]] = []
    for event in events:
        if not isinstance(event, SampledGaussianSteps):
            merged.append(event)
            continue
        key = (event.sampling_rate, event.noise_multiplier)
        if key not in steps:
            merged.append(key)
        steps[key] = steps.get(key, 0) + event.steps
    return tuple(
        SampledGaussianSteps(sampling_rate=entry[0], noise_multiplier=entry[1], steps=steps[entry])
        if isinstance(entry, tuple)
        else entry
        for entry in merged
    )


def _release_json(event: PrivacyEvent) -> dict[str, Any]:
    try:
        return event_json(event)
    except InvalidInputError:
        return {"kind": type(event).__name__}


def _figures_json(membership: MembershipBounds | None, groups: Iterable[GroupEpsilon]) -> dict[str, Any]:
    gaussian, attacks = None, None
    if membership is not None:
        gaussian = {"mu": _number(membership.mu), "slack": membership.slack, "regret": membership.regret}
        attacks = [
            {"false_positive_rate": false, "true_positive_rate": true} for false, true in membership.true_positive_rates
        ]
    people = [{"examples": group.examples, "epsilon": _number(group.epsilon)} for group in groups]
    return {"gaussian_dp": gaussian, "membership_attacks": attacks, "groups": people}


def _number(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
