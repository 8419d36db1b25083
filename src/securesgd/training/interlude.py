"""Something done once between two steps that may look at the private data, such as computing r; paid like a step."""

__all__ = ["Interlude"]

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from securesgd.privacy import GaussianRelease, PrivacyEvent, UnprotectedRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.training.examples import Examples


@dataclass(frozen=True, kw_only=True)
class Interlude:
    """`action` runs before step `step`, after `event` has been written to the ledger (None: it reads no private data).

    Assumes: the action looks at the examples only through what `event` describes, with all its noise drawn from the
    stream it is given; then running it again after a crash is the same release.
    """

    step: int
    event: GaussianRelease | UnprotectedRelease | None
    action: Callable[[nn.Module, Examples, KeyStream], None]

    @property
    def cost(self) -> tuple[PrivacyEvent, ...]:
        """What the calibration of the steps' noise must leave room for."""
        return (self.event,) if isinstance(self.event, GaussianRelease) else ()
