"""Which DP-SGD steps are paid for, stream by stream."""

__all__ = ["PaidSteps"]

from pathlib import Path
from typing import NamedTuple

from securesgd.errors import PrivacyError
from securesgd.privacy.events import SampledGaussianSteps
from securesgd.privacy.ledger_record import Block


class _Span(NamedTuple):
    first: int
    stop: int
    sampling_rate: float
    noise_multiplier: float


class PaidSteps:
    """The steps of every stream that may run; grows only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spans: dict[str, list[_Span]] = {}

    def add(self, steps: SampledGaussianSteps, block: Block) -> None:
        """Count `steps` of the block's stream, from the block's first step on, as paid."""
        span = _Span(block.first_step, block.first_step + steps.steps, steps.sampling_rate, steps.noise_multiplier)
        spans = self._spans.setdefault(block.stream, [])
        if spans and spans[-1].stop == span.first and spans[-1][2:] == span[2:]:
            span = spans.pop()._replace(stop=span.stop)  # the usual case: one span per run, asked at every step
        spans.append(span)

    def stop_of(self, stream: str, first_step: int) -> int:
        """Return the first step >= `first_step` of the stream that is not paid."""
        stop = first_step
        for span in sorted(self._spans.get(stream, ())):
            if span.first <= stop < span.stop:
                stop = span.stop
        return stop

    def first_unpaid(self, steps: SampledGaussianSteps, block: Block) -> int:
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
        return self.stop_of(block.stream, block.first_step)
