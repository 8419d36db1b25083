"""The examples of one step, as a loop of the user's own gets them, and calls that use a batch once."""

__all__ = ["Batch", "OneAtATime"]

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replaced

from torch import Tensor

from securesgd.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The Poisson sample of one step. **Private**: who is in it is secret, and so is their number; it may be empty.

    Under torchrun it is this process's share.
    """

    step: int
    """From 0."""
    inputs: Tensor
    targets: Tensor
    _owner: object = field(repr=False)

    def __len__(self) -> int:
        return len(self.inputs)

    def replace(self, *, inputs: Tensor | None = None, targets: Tensor | None = None) -> "Batch":
        """Return the batch with other inputs or targets in its rows: for augmentations.

        Assumes: each new row is a function of the old row at its place, of random numbers and of what is public, never
        of another row (no mixup): clipping bounds what an example does through its own row. Random numbers come from
        torch's generator, which is seeded for the step, so that a resumed run draws the same.
        Raises: InvalidInputError if the number of rows is another.
        """
        changed = replaced(
            self,
            inputs=self.inputs if inputs is None else inputs,
            targets=self.targets if targets is None else targets,
        )
        changed.require_rows(len(self))
        return changed

    def require_rows(self, count: int) -> None:
        """Return if there are `count` inputs and targets. Raises: InvalidInputError."""
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            rows = len(value) if isinstance(value, Tensor) and value.dim() else type(value).__name__
            if rows != count:
                raise InvalidInputError(
                    f"the {name} of the batch of step {self.step + 1} have {rows} rows; valid: {count}, one for each "
                    "example of the sample"
                )

    def belongs_to(self, owner: object) -> bool:
        """Return whether this batch is of that training."""
        return self._owner is owner


class OneAtATime:
    """Lets one call in at a time: of several threads, and of a loss that calls what it is called by.

    Another one is refused: a step on the sample of another would be no Poisson-sampled one, with noise of its own.
    """

    def __init__(self) -> None:
        self._lock, self._in_step = threading.RLock(), False

    @contextmanager
    def call(self, what: str, *, wait: bool = False, is_step: bool = False) -> Iterator[None]:
        """Keep all others out within the context; with `wait`, another thread's call is waited for first.

        Raises: InvalidInputError if another thread's call lasts, or a step of this thread.
        """
        if not self._lock.acquire(blocking=wait):
            raise InvalidInputError(f"{what} was called while another thread takes a step; valid: one after the other")
        try:
            if self._in_step:
                raise InvalidInputError(f"{what} was called within a step; valid: after it")
            self._in_step = is_step
            try:
                yield
            finally:
                self._in_step = False
        finally:
            self._lock.release()
