"""What a ledger file holds: a header, then one record per release; and which DP-SGD steps the records pay for.

`Header` and `Record` turn into the JSON bodies of the file's lines and back; everything that comes from a file is
validated. Readers of a ledger use `securesgd.privacy.ledger.read_ledger`, which gives these types.
"""

__all__ = ["Block", "Header", "PaidSteps", "Record", "parse_ledger"]

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy.accounting import ADJACENCIES, Adjacency, validate_accountant
from securesgd.privacy.events import PrivacyEvent, RepeatAndSelect, SampledGaussianSteps, event_from_json, event_json
from securesgd.privacy.statement import NoiseScheme
from securesgd.runtime.hash_chain import Chain
from securesgd.validate import validate_count, validate_delta, validate_positive, validate_text

FORMAT = "securesgd-ledger"
FORMAT_VERSION = 2  # 1: noise that is not safe in floating point, without adjacency


@dataclass(frozen=True, kw_only=True)
class Header:
    """What holds for all records: how epsilon is computed and how far it may go (None: no limit)."""

    delta: float
    target_epsilon: float | None
    accountant: str
    accountant_version: str
    dataset_size: int | None
    securesgd_version: str
    created: str
    adjacency: Adjacency
    noise: NoiseScheme | None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "delta": validate_delta(self.delta),
            "accountant": validate_accountant(self.accountant),
        }
        if self.target_epsilon is not None:
            checked["target_epsilon"] = validate_positive("target_epsilon", self.target_epsilon)
        if self.dataset_size is not None:
            checked["dataset_size"] = validate_count("dataset_size", self.dataset_size, at_least=1)
        for name in ("accountant_version", "securesgd_version", "created"):
            checked[name] = validate_text(name, getattr(self, name))
        if self.adjacency not in ADJACENCIES:
            raise InvalidInputError(f"adjacency is {self.adjacency!r}; valid: {', '.join(ADJACENCIES)}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # numpy numbers become plain ones

    def body(self) -> dict[str, Any]:
        """Return the header as the content of line 0."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        """Return the header in line 0. Raises: InvalidInputError if it is foreign or of another version."""
        if body.get("format") != FORMAT:
            raise InvalidInputError(f"format is {body.get('format')!r}; valid: {FORMAT}")
        if body.get("format_version") != FORMAT_VERSION:
            version = body.get("format_version")
            raise InvalidInputError(f"format_version is {version!r}; this release of securesgd reads {FORMAT_VERSION}")
        given = {key: value for key, value in body.items() if key not in ("format", "format_version")}
        _require_keys(given, {field.name for field in fields(cls)})
        if given["noise"] is not None:
            if not isinstance(given["noise"], dict):
                raise InvalidInputError(f"noise is {given['noise']!r}; valid: an object or null")
            _require_keys(given["noise"], {field.name for field in fields(NoiseScheme)})
            given["noise"] = NoiseScheme(**given["noise"])
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where reserved DP-SGD steps belong: steps `first_step`, `first_step` + 1, … of the stream `stream`."""

    stream: str
    first_step: int

    def __post_init__(self) -> None:
        validate_text("stream", self.stream)
        object.__setattr__(self, "first_step", validate_count("first_step", self.first_step, at_least=0))


@dataclass(frozen=True, kw_only=True)
class Record:
    """One release, and the epsilon spent by all releases up to and with it; `block` if it reserves steps."""

    event: PrivacyEvent
    epsilon: float
    block: Block | None = None

    def body(self) -> dict[str, Any]:
        """Return the record as the content of a line."""
        body: dict[str, Any] = {"event": event_json(self.event)}
        if self.block is not None:
            body["block"] = asdict(self.block)
        return body | {"epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon}

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        """Return the record in a line. Raises: InvalidInputError if it is not one."""
        _require_keys(body, {"event", "epsilon"} | ({"block"} & body.keys()))
        event, block = event_from_json(body["event"]), None
        if "block" in body:
            value = body["block"]
            if not isinstance(value, dict) or not isinstance(event, SampledGaussianSteps):
                raise InvalidInputError(f"block is {value!r}; valid: an object, on DP-SGD steps only")
            _require_keys(value, {"stream", "first_step"})
            block = Block(**value)
        epsilon = body["epsilon"]
        if epsilon == "inf":
            epsilon = math.inf
        elif isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon >= 0:
            raise InvalidInputError(f"epsilon is {epsilon!r}; valid: a number >= 0 or 'inf'")
        return cls(event=event, epsilon=float(epsilon), block=block)


def parse_ledger(chain: Chain, path: Path) -> tuple[Header, Sequence[Record]]:
    """Return the header and the records in a verified chain; `path` is for the messages.

    Raises: DamagedFileError with the line number if a line is foreign, of a newer format or holds invalid
    values.
    """
    if not chain.bodies:
        raise DamagedFileError(f"{path}, line 1: has no ledger header; the file was left untouched")
    records = []
    line = 1
    try:
        header = Header.from_body(chain.bodies[0])
        for body in chain.bodies[1:]:
            line += 1
            records.append(Record.from_body(body))
            if isinstance(records[-1].event, RepeatAndSelect) and header.accountant != "rdp":
                raise InvalidInputError(f"accountant is {header.accountant!r}; valid for a repeat-and-select: rdp")
    except InvalidInputError as error:
        raise DamagedFileError(f"{path}, line {line}: {error}; the file was left untouched") from None
    return header, records


def _require_keys(given: dict[str, Any], expected: set[str]) -> None:
    if given.keys() != expected:
        raise InvalidInputError(f"missing or unknown keys: {', '.join(sorted(given.keys() ^ expected))}")


class _Span(NamedTuple):
    """Paid steps `first` to `stop` - 1 of one stream, with equal parameters."""

    first: int
    stop: int
    sampling_rate: float
    noise_multiplier: float


class PaidSteps:
    """The DP-SGD steps of every stream that are paid for and may run; steps are added, never taken away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spans: dict[str, list[_Span]] = {}

    def add(self, steps: SampledGaussianSteps, block: Block) -> None:
        """Count `steps` of the block's stream, from the block's first step on, as paid."""
        span = _Span(block.first_step, block.first_step + steps.steps, steps.sampling_rate, steps.noise_multiplier)
        spans = self._spans.setdefault(block.stream, [])
        if spans and spans[-1].stop == span.first and spans[-1][2:] == span[2:]:
            span = spans.pop()._replace(stop=span.stop)  # the usual case: one span per run
        spans.append(span)

    def next_unpaid_step(self, stream: str, first_step: int) -> int:
        """Return the first step >= `first_step` of the stream that is not paid."""
        stop = first_step
        for span in sorted(self._spans.get(stream, ())):
            if span.first <= stop < span.stop:
                stop = span.stop
        return stop

    def first_unpaid_step(self, steps: SampledGaussianSteps, block: Block) -> int:
        """Return the first step from the block's first on that must be charged to run `steps` there.

        Raises: PrivacyError if some of these steps are paid with another sampling rate or noise multiplier:
        the same random draws would be used twice on different scales, and their difference has no noise left.
        """
        stop = block.first_step + steps.steps
        for span in self._spans.get(block.stream, ()):
            same = (span.sampling_rate, span.noise_multiplier) == (
                steps.sampling_rate,
                steps.noise_multiplier,
            )
            if span.first < stop and block.first_step < span.stop and not same:
                raise PrivacyError(
                    f"steps {span.first} to {span.stop - 1} of stream {block.stream!r} are in {self._path} "
                    f"with sampling rate {span.sampling_rate:g} and noise multiplier "
                    f"{span.noise_multiplier:g}, now {steps.sampling_rate:g} and {steps.noise_multiplier:g}; "
                    "valid: the same, or a new stream"
                )
        return self.next_unpaid_step(block.stream, block.first_step)
