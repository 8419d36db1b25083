"""The share of the next step, read from disk while the current step is computed."""

__all__ = ["ReadAhead"]

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """What `read` returns of a step, begun in a thread of its own when the step before it was taken.

    Guarantee: `take(step)` returns, or raises, what `read(step)` does; one step at most is held ahead, in memory only.
    Assumes: `read` is a function of the step alone: no global generator, nothing that the steps in between change.
    """

    def __init__(self, read: Callable[[int], T], steps: int) -> None:
        self._read, self._steps = read, steps
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[T]] | None = None

    def take(self, step: int) -> T:
        """Return what belongs to `step`, and begin with the step after it, if the run has one."""
        begun, self._next = self._next, None
        result = begun[1].result() if begun is not None and begun[0] == step else self._read(step)
        if step + 1 < self._steps:
            self._thread = self._thread or ThreadPoolExecutor(1, "securesgd-read-ahead")
            self._next = step + 1, self._thread.submit(self._read, step + 1)
        return result

    def close(self) -> None:
        """Forget what was read ahead; a read that has begun is waited for."""
        self._next = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
