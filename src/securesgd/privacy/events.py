"""What was released: one frozen record per computation that touched private data.

An event says *what happened*; `securesgd.privacy.accounting` says *what it costs*. The ledger stores events
as plain JSON objects, so an auditor can recompute the cost with another program.

    GaussianRelease        one vector of l2 sensitivity 1, released once with N(0, noise_multiplier²)
    SampledGaussianSteps   DP-SGD: `steps` sums over Poisson-sampled batches, each with Gaussian noise
    UnprotectedRelease     private data was used without any guarantee; epsilon becomes infinite
    RepeatAndSelect        the best of a random number of trials, each of which is some of the first two
"""

__all__ = [
    "GaussianRelease",
    "PrivacyEvent",
    "RepeatAndSelect",
    "SampledGaussianSteps",
    "UnprotectedRelease",
    "dp_event",
    "event_from_json",
    "event_json",
]

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import (
    validate_count,
    validate_noise_multiplier,
    validate_positive,
    validate_sampling_rate,
    validate_text,
)

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """One Gaussian mechanism on the whole data set, e.g. the redistribution vector r.

    Assumes: adding or removing one example changes the released vector by at most 1/noise_multiplier standard
    deviations in l2. A noise multiplier of 0 is a release without protection and costs an infinite epsilon.
    """

    noise_multiplier: float
    label: str

    def __post_init__(self) -> None:
        _set(self, "noise_multiplier", validate_noise_multiplier(self.noise_multiplier))
        _set(self, "label", validate_text("label", self.label))


@dataclass(frozen=True, kw_only=True)
class SampledGaussianSteps:
    """DP-SGD steps: Poisson sampling, per-example clipping to C, noise N(0, (noise_multiplier·C)²).

    Assumes: every example enters every step independently with probability `sampling_rate`, whatever was
    released before; the sum (not the mean over the realised batch) is what the noise is added to.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        _set(self, "sampling_rate", validate_sampling_rate(self.sampling_rate))
        _set(self, "noise_multiplier", validate_noise_multiplier(self.noise_multiplier))
        _set(self, "steps", validate_count("steps", self.steps, at_least=1))


@dataclass(frozen=True, kw_only=True)
class UnprotectedRelease:
    """Something computed from private data without a guarantee, e.g. r `as-published`; `reason` says why."""

    label: str
    reason: str

    def __post_init__(self) -> None:
        _set(self, "label", validate_text("label", self.label))
        _set(self, "reason", validate_text("reason", self.reason))


MOST_TRIALS, MOST_SHAPE = 10_000.0, 100.0


@dataclass(frozen=True, kw_only=True)
class RepeatAndSelect:
    """The best of K independent trials, K being random: what choosing hyper-parameters by trying them releases.

    `trial` are the events of one trial, composed. K has the truncated negative binomial law of `shape` (0: logarithmic,
    1: geometric) with mean at most `mean`; it is at least 1. `securesgd.privacy.repeat_and_select` draws it. The
    Poisson law, dp-accounting's infinite shape, is not one of them: its K may be 0, and then nothing is the best.

    Assumes: trials are independent and alike (each draws its hyper-parameters itself, from a law that the data have no
    part in), none costs more than `trial`, the best is chosen by what the trials release, ties aside from which came
    first by nothing else, and neither K nor anything of the other trials is published.
    Reference: Papernot and Steinke 2022 (arXiv:2110.03620v2), Theorem 2.
    """

    trial: tuple[GaussianRelease | SampledGaussianSteps, ...]
    mean: float
    shape: float

    def __post_init__(self) -> None:
        _set(self, "trial", tuple(self.trial))
        if not self.trial:
            raise InvalidInputError("trial is empty; valid: the events of one trial")
        for event in self.trial:
            if not isinstance(event, GaussianRelease | SampledGaussianSteps):
                raise InvalidInputError(f"trial has {event!r}; valid: GaussianRelease, SampledGaussianSteps")
        _set(self, "mean", validate_positive("mean", self.mean))
        if not 1 <= self.mean <= MOST_TRIALS:
            raise InvalidInputError(f"mean is {self.mean!r}; valid: a number of trials from 1 to {MOST_TRIALS:,.0f}")
        is_zero = not isinstance(self.shape, bool) and self.shape == 0
        _set(self, "shape", 0.0 if is_zero else validate_positive("shape", self.shape))
        if self.shape > MOST_SHAPE:
            raise InvalidInputError(f"shape is {self.shape!r}; valid: a number from 0 to {MOST_SHAPE:g}")

    @property
    def label(self) -> str:
        """What was released, in words."""
        return "the best of a random number of trials"


PrivacyEvent = GaussianRelease | SampledGaussianSteps | UnprotectedRelease | RepeatAndSelect

_KINDS: dict[str, Any] = {
    "gaussian-release": GaussianRelease,
    "sampled-gaussian-steps": SampledGaussianSteps,
    "unprotected-release": UnprotectedRelease,
    "repeat-and-select": RepeatAndSelect,
}


def event_json(event: PrivacyEvent) -> dict[str, Any]:
    """Return the event as a JSON object; `event_from_json` gives back an equal event.

    Raises: InvalidInputError if `event` is not one of the four event types.
    """
    for kind, cls in _KINDS.items():
        if type(event) is cls:
            nested = {"trial": [event_json(part) for part in event.trial]} if isinstance(event, RepeatAndSelect) else {}
            return {"kind": kind, **asdict(event), **nested}
    raise InvalidInputError(f"event is {event!r}; valid: {', '.join(c.__name__ for c in _KINDS.values())}")


def event_from_json(value: Any) -> PrivacyEvent:
    """Return the event that `event_json` wrote.

    Raises: InvalidInputError if a key is missing, unknown or holds an invalid value.
    """
    if not isinstance(value, dict):
        raise InvalidInputError(f"event is {value!r}; valid: a JSON object with the key 'kind'")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInputError(f"event kind is {kind!r}; {nearest(str(kind), _KINDS)}")
    cls = _KINDS[kind]
    names = [field.name for field in fields(cls)]
    given = {key: item for key, item in value.items() if key != "kind"}
    for key in given:
        if key not in names:
            raise InvalidInputError(f"event {kind!r} has the unknown key {key!r}; {nearest(key, names)}")
    for name in names:
        if name not in given:
            raise InvalidInputError(f"event {kind!r} lacks the key {name!r}; valid: all of {', '.join(names)}")
    if cls is RepeatAndSelect:
        if not isinstance(given["trial"], list):
            raise InvalidInputError(f"trial is {given['trial']!r}; valid: a list of events")
        for part in given["trial"]:  # before it is read: lists in lists would be read without end
            if isinstance(part, dict) and part.get("kind") == kind:
                raise InvalidInputError("trial has a repeat-and-select in it; valid: releases and steps")
        given["trial"] = tuple(event_from_json(part) for part in given["trial"])
    event: PrivacyEvent = cls(**given)
    return event


def dp_event(event: PrivacyEvent) -> "dp_accounting.DpEvent":
    """Return the event in the vocabulary of Google's dp-accounting, for use with its accountants.

    Raises: InvalidInputError if `event` is not one of the four event types.
    """
    import dp_accounting

    match event:
        case GaussianRelease():
            return dp_accounting.GaussianDpEvent(event.noise_multiplier)
        case SampledGaussianSteps():
            step = dp_accounting.GaussianDpEvent(event.noise_multiplier)
            sampled = dp_accounting.PoissonSampledDpEvent(event.sampling_rate, step)
            return dp_accounting.SelfComposedDpEvent(sampled, event.steps)
        case UnprotectedRelease():
            return dp_accounting.NonPrivateDpEvent()
        case RepeatAndSelect():
            trial = dp_accounting.ComposedDpEvent([dp_event(part) for part in event.trial])
            return dp_accounting.dp_event.RepeatAndSelectDpEvent(trial, event.mean, event.shape)
    raise InvalidInputError(f"event is {event!r}; valid: {', '.join(c.__name__ for c in _KINDS.values())}")


def _set(record: object, name: str, value: Any) -> None:
    object.__setattr__(record, name, value)  # frozen for users; validation stores the plain Python number
