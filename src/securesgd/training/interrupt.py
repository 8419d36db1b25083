"""Ctrl-C during training: the run stops after a whole step, with a checkpoint there; a second one ends it at once."""

__all__ = ["StopSignals", "TrainingInterrupted"]

import contextlib
import math
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

from securesgd.theory.rounding import round_up

_WORDS = b"\nstopping after this step; once more to stop at once\n"


class TrainingInterrupted(KeyboardInterrupt):
    """A run was stopped after a whole step; its checkpoint is that of the step, so that nothing is lost.

    `epsilon` is what the ledger counts: all steps that were reserved, up to a block more than ran. `resume=True`
    continues the run; `finish=True` ends it with the weights of this step.
    """

    def __init__(self, folder: Path, step: int, steps: int, epsilon: float) -> None:
        self.folder, self.step, self.steps, self.epsilon = folder, step, steps, epsilon
        paid = f"epsilon {round_up(epsilon, digits=4):.4g} is paid" if math.isfinite(epsilon) else "it is not private"
        super().__init__(f"training stopped after step {step} of {steps}; {paid}; its checkpoint is in {folder}")
        self.add_note("The same call with resume=True continues the run; with finish=True it ends the run here.")


class StopSignals:
    """Within the context, the first signal that would raise KeyboardInterrupt sets `requested`; the second raises it.

    A signal counts if Python's own handler has it: Ctrl-C, and SIGTERM if a program says `signal.signal(SIGTERM,
    signal.default_int_handler)`, as the command line does. A program's own handlers are left as they are, and so are
    all of them outside of the main thread, where Python allows no others. Contexts of one object may be nested.
    """

    def __init__(self) -> None:
        self.requested = False
        self._former: dict[int, Any] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._former[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._former.items():
                signal.signal(number, handler)
            self._former.clear()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        with contextlib.suppress(OSError):  # past Python's buffers, in which the signal may have come
            os.write(2, _WORDS)
