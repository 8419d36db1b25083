"""What was released: one frozen record per computation that touched private data.

An event says *what happened*; `securesgd.privacy.accounting` says *what it costs*. The ledger stores events
as plain JSON objects, so an auditor can recompute the cost with another program.

    GaussianRelease        one vector of l2 sensitivity 1, released once with N(0, noise_multiplier²)
    SampledGaussianSteps   DP-SGD: `steps` sums over Poisson-sampled batches, each with Gaussian noise
    UnprotectedRelease     private data was used without any guarantee; epsilon becomes infinite
"""

__all__ = [
    "GaussianRelease",
    "PrivacyEvent",
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


PrivacyEvent = GaussianRelease | SampledGaussianSteps | UnprotectedRelease

_KINDS: dict[str, type[GaussianRelease] | type[SampledGaussianSteps] | type[UnprotectedRelease]] = {
    "gaussian-release": GaussianRelease,
    "sampled-gaussian-steps": SampledGaussianSteps,
    "unprotected-release": UnprotectedRelease,
}


def event_json(event: PrivacyEvent) -> dict[str, Any]:
    """Return the event as a JSON object; `event_from_json` gives back an equal event.

    Raises: InvalidInputError if `event` is not one of the three event types.
    """
    for kind, cls in _KINDS.items():
        if type(event) is cls:
            return {"kind": kind, **asdict(event)}
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
    return cls(**given)


def dp_event(event: PrivacyEvent) -> "dp_accounting.DpEvent":
    """Return the event in the vocabulary of Google's dp-accounting, for use with its accountants.

    Raises: InvalidInputError if `event` is not one of the three event types.
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
    raise InvalidInputError(f"event is {event!r}; valid: {', '.join(c.__name__ for c in _KINDS.values())}")


def _set(record: object, name: str, value: Any) -> None:
    object.__setattr__(record, name, value)  # frozen for users; validation stores the plain Python number
