"""The privacy ledger: every release that touched private data, on disk before its result can be used.

    with Ledger.create("run/ledger.jsonl", delta=1e-5, target_epsilon=3.0) as ledger:
        ledger.record(GaussianRelease(noise_multiplier=20.0, label="redistribution r"))
        ledger.reserve(SampledGaussianSteps(sampling_rate=q, noise_multiplier=c, steps=100), first_step=0, stream=s)
        ...                                              # step t: ledger.require_step(t, stream=s)
        print(ledger.statement().in_words)
    contents = read_ledger("run/ledger.jsonl")           # header, records and statement, of a ledger in use too

Reserve, then run. DP-SGD steps are paid for in blocks before they run, so that one sync covers many steps. A
reserved block counts in full, whether its steps were run or the process died after the first.

What makes two steps the same release. A step is identified by (stream, step number). The caller chooses the
stream: a text that determines, together with the step number, everything random in the step — e.g. a
fingerprint of configuration, seed and the generator state at the block's start. Resuming from a saved
generator state and running step t again draws the same batch and the same noise: the same release, already
paid. Under another stream it is a second look at the data and is charged again.
"""

__all__ = ["Ledger", "LedgerContents", "Reservation", "read_ledger", "replayed_statement"]

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from securesgd import __version__
from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy.accounting import Adjacency, accountant_version, epsilon_spent
from securesgd.privacy.calibration import affordable_steps
from securesgd.privacy.events import PrivacyEvent, SampledGaussianSteps, event_json
from securesgd.privacy.ledger_record import Block, Header, PaidSteps, Record, parse_ledger
from securesgd.privacy.statement import NoiseScheme, PrivacyStatement, privacy_statement
from securesgd.runtime.append_only_file import AppendOnlyFile
from securesgd.runtime.hash_chain import Chain, seal_line, verify_chain
from securesgd.runtime.storage import read_bytes
from securesgd.validate import validate_count, validate_text

SAME_EPSILON = 1e-6  # relative; other processors round the FFT differently


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """DP-SGD steps [first_step, stop) of `stream` that may run; `charged` of them were not paid before."""

    stream: str
    first_step: int
    stop: int
    charged: int


class Ledger:
    """An append-only file of releases; build it with `create` or `open`.

    Guarantee: when `record` or `reserve` returns, the release is on disk. The epsilon of the file's events is
    the epsilon of `statement`, and never exceeds the target given at creation. One process at a time can hold
    a ledger.
    Assumes: the caller records every release before its result is used or saved, and runs a step only after
    `require_step`. Re-running a paid step repeats it bit for bit (same data, sample, noise and arithmetic).
    """

    def __init__(self, file: AppendOnlyFile, chain: Chain, header: Header, records: Sequence[Record]) -> None:
        self._file = file
        self.header = header
        self._records = list(records)
        self._digests = list(chain.digests)
        self._size = chain.size
        self._has_final_newline = chain.has_final_newline
        self._paid = _paid_steps(records, file.path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        delta: float,
        target_epsilon: float | None = None,
        accountant: str = "pld",
        dataset_size: int | None = None,
        adjacency: Adjacency = "zero-out",
        noise: NoiseScheme | None = None,
    ) -> Self:
        """Return a new, empty ledger.

        Assumes: `dataset_size`, if given, is public; it is written to the file. `noise` is how the noise of its steps
        is made, if they are made here.
        Raises: InvalidInputError for invalid values, or if the path exists.
        """
        header = Header(
            delta=delta,
            target_epsilon=target_epsilon,
            accountant=accountant,
            accountant_version=accountant_version(),
            dataset_size=dataset_size,
            securesgd_version=__version__,
            adjacency=adjacency,
            noise=noise,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        line, digest = seal_line(0, header.body(), "")
        file = AppendOnlyFile.create(Path(path).absolute(), line)
        return cls(file, Chain((header.body(),), (digest,), len(line), True, False), header, ())

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return an existing ledger after checking every line and the last epsilon. Writes nothing.

        A torn end is ignored now and overwritten by the next record; see `hash_chain`.
        Raises: DamagedFileError with line number and reason; PrivacyError if another process holds the file.
        """
        file, content = AppendOnlyFile.open(Path(path).absolute())
        try:
            return cls(file, *_parse(content, file.path))
        except BaseException:
            file.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """All releases, in the order of the file."""
        return tuple(record.event for record in self._records)

    @property
    def records(self) -> tuple[Record, ...]:
        """All releases with the epsilon up to each, in the order of the file."""
        return tuple(self._records)

    @property
    def epsilon(self) -> float:
        """The epsilon spent so far: that of the last line."""
        return self._records[-1].epsilon if self._records else 0.0

    @property
    def head(self) -> tuple[int, str]:
        """Index and digest of the last line, to keep in a checkpoint and give to `require_head`."""
        return len(self._digests) - 1, self._digests[-1]

    @property
    def steps_charged(self) -> int:
        """All DP-SGD steps in the ledger, over all streams."""
        return sum(event.steps for event in self.events if isinstance(event, SampledGaussianSteps))

    def statement(self) -> PrivacyStatement:
        """Return the privacy statement about all releases so far."""
        return _header_statement(self.header, self.events)

    def record(self, event: PrivacyEvent) -> int:
        """Write one release and return its index. It is on disk, and paid for, when this returns.

        Raises: PrivacyError, with nothing written, if it would exceed the target; InvalidInputError if it is
        no event.
        """
        event_json(event)
        return self._append(event, None)

    def reserve(self, steps: SampledGaussianSteps, *, first_step: int, stream: str) -> Reservation:
        """Pay for steps first_step … first_step + steps.steps - 1 of `stream` ahead of running them.

        Steps of the same stream that were paid before are free: reserving a block again writes nothing, and a
        block that extends a paid one is charged for the extension only. Under another stream all steps are
        charged.
        Raises: PrivacyError, with nothing written, if the target would be exceeded (the message says how many
        steps are affordable) or if paid steps of this stream had other parameters: the same noise on another
        scale would cancel out. InvalidInputError for invalid values.
        """
        block = _block(steps, first_step, stream)
        stop = block.first_step + steps.steps
        unpaid = self._paid.first_unpaid_step(steps, block)
        charged = max(0, stop - unpaid)
        if charged:
            new = SampledGaussianSteps(
                sampling_rate=steps.sampling_rate, noise_multiplier=steps.noise_multiplier, steps=charged
            )
            self._append(new, Block(stream=block.stream, first_step=unpaid))
        return Reservation(stream=block.stream, first_step=block.first_step, stop=stop, charged=charged)

    def affordable(self, steps: SampledGaussianSteps, *, first_step: int, stream: str) -> int:
        """Return how many of these steps a `reserve` call can still have; steps.steps if all.

        Steps paid before under this stream count as affordable. Raises: as `reserve`, except for the target.
        """
        block = _block(steps, first_step, stream)
        free = min(self._paid.first_unpaid_step(steps, block) - block.first_step, steps.steps)
        return free + self._affordable_new(steps, steps.steps - free)

    def steps_reserved(self, stream: str, *, first_step: int = 0) -> int:
        """Return the first step of `stream`, from `first_step` on, that is not paid for."""
        stream, first_step = validate_text("stream", stream), validate_count("step", first_step, at_least=0)
        return self._paid.next_unpaid_step(stream, first_step)

    def require_step(self, step: int, *, stream: str) -> None:
        """Raise PrivacyError unless step `step` of `stream` is paid for."""
        if self.steps_reserved(stream, first_step=step) <= step:
            raise PrivacyError(f"step {step} of stream {stream!r} is not reserved in {self.path}; reserve it first")

    def require_head(self, index: int, digest: str) -> None:
        """Raise DamagedFileError unless line `index` has this digest: lines were cut off or changed."""
        if not 0 <= index < len(self._digests) or self._digests[index] != digest:
            raise DamagedFileError(
                f"{self.path}, line {index + 1}: is not the line it was; lines were cut off or the ledger is "
                "another one"
            )

    def close(self) -> None:
        """Close the file and release the lock; closing it twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, event: PrivacyEvent, block: Block | None) -> int:
        epsilon = epsilon_spent((*self.events, event), self.header.delta, self.header.accountant)
        target = self.header.target_epsilon
        if target is not None and epsilon > target:
            raise PrivacyError(self._refusal(event, epsilon, target))
        record = Record(event=event, epsilon=epsilon, block=block)
        index = len(self._digests)
        line, digest = seal_line(index, record.body(), self._digests[-1])
        # A last line that lost its newline gets it back together with the next record.
        self._file.append(line if self._has_final_newline else b"\n" + line, at=self._size)
        self._size += len(line) + (not self._has_final_newline)
        self._has_final_newline = True
        self._records.append(record)
        self._digests.append(digest)
        if block is not None and isinstance(event, SampledGaussianSteps):
            self._paid.add(event, block)
        return index

    def _refusal(self, event: PrivacyEvent, epsilon: float, target: float) -> str:
        spent = "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
        reason = f"epsilon would be {spent}, above the target {target:g}; {self.epsilon:.6g} is spent"
        if isinstance(event, SampledGaussianSteps):
            left = self._affordable_new(event, event.steps)
            reason += f"; {left} of these {event.steps} steps are still affordable"
        return f"{reason}; nothing was written to {self.path}"

    def _affordable_new(self, steps: SampledGaussianSteps, wanted: int) -> int:
        if self.header.target_epsilon is None or wanted == 0:
            return wanted
        return affordable_steps(
            self.header.target_epsilon,
            self.header.delta,
            steps.sampling_rate,
            steps.noise_multiplier,
            spent=self.events,
            accountant=self.header.accountant,
            at_most=wanted,
        )


@dataclass(frozen=True, kw_only=True)
class LedgerContents:
    """What a ledger file holds, verified, and the statement recomputed from it."""

    header: Header
    records: tuple[Record, ...]
    statement: PrivacyStatement
    digests: tuple[str, ...]
    """Of each line; the header's first."""
    torn_end: bool
    """Whether the file ends in the middle of a line: the process that wrote it was stopped there."""

    @property
    def head(self) -> tuple[int, str]:
        """Index and digest of the last line."""
        return len(self.digests) - 1, self.digests[-1]

    def has_line(self, index: int, digest: str) -> bool:
        """Return whether line `index` has this digest: whether this is the ledger that a checkpoint refers to."""
        return 0 <= index < len(self.digests) and self.digests[index] == digest


def read_ledger(path: str | Path) -> LedgerContents:
    """Return what a ledger file holds; needs no lock, so the ledger of a running process can be audited.

    Guarantee: every line was checked against the chain, and the epsilon of the last line against its events. Only
    reads.
    Raises: DamagedFileError with line number and reason.
    """
    path = Path(path)
    chain, header, records = _parse(read_bytes(path), path)
    return LedgerContents(
        header=header,
        records=tuple(records),
        statement=_header_statement(header, [record.event for record in records]),
        digests=chain.digests,
        torn_end=chain.torn_end,
    )


def replayed_statement(path: str | Path) -> PrivacyStatement:
    """Return the statement recomputed from the file alone; see `read_ledger`.

    Guarantee: equal to `Ledger.statement()` of the ledger that wrote the file (bit for bit on the same
    machine and with the same dp-accounting). Only reads.
    Raises: DamagedFileError with line number and reason.
    """
    return read_ledger(path).statement


def _parse(content: bytes, path: Path) -> tuple[Chain, Header, Sequence[Record]]:
    chain = verify_chain(content, path)
    header, records = parse_ledger(chain, path)
    if records and header.accountant_version == accountant_version():
        # The chain has no secret, so the figure is checked too (by the same release of the accountant).
        stated = records[-1].epsilon
        true = epsilon_spent([record.event for record in records], header.delta, header.accountant)
        if stated != true and not abs(stated - true) <= SAME_EPSILON * max(1.0, true):
            raise DamagedFileError(
                f"{path}, line {len(records) + 1}: states epsilon {stated:.6g}, but the events cost {true:.6g}; "
                "the file was left untouched"
            )
    return chain, header, records


def _header_statement(header: Header, events: Sequence[PrivacyEvent]) -> PrivacyStatement:
    return privacy_statement(
        events,
        header.delta,
        header.accountant,
        header.dataset_size,
        adjacency=header.adjacency,
        noise=header.noise,
    )


def _block(steps: object, first_step: int, stream: str) -> Block:
    if not isinstance(steps, SampledGaussianSteps):
        raise InvalidInputError(f"steps is {steps!r}; valid: SampledGaussianSteps")
    return Block(stream=stream, first_step=first_step)


def _paid_steps(records: Sequence[Record], path: Path) -> PaidSteps:
    paid = PaidSteps(path)
    for record in records:
        if record.block is not None and isinstance(record.event, SampledGaussianSteps):
            paid.add(record.event, record.block)
    return paid
