"""Calls of a training object one after the other: of several threads, and of a loss that calls what it is called by."""

__all__ = ["OneAtATime"]

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from securesgd.errors import InvalidInputError


class OneAtATime:
    """Lets one call in at a time. A second one is refused, since what it was given is about the state before the first.

    A step on the sample of another one would be no Poisson-sampled step, and noise belongs to one step only.
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
