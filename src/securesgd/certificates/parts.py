"""How the examples of a certification are shared out: parts between two writes, and shares of processes."""

__all__ = ["gather", "in_parts"]

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from securesgd.runtime.processes import Processes

FIRST_PART, LARGEST_PART, SECONDS = 32, 512, 20
"""Examples between two writes, per process, and how far apart the writes should be."""

T = TypeVar("T")


def in_parts(
    todo: NDArray[np.int64],
    processes: Processes,
    certify_part: Callable[[NDArray[np.int64], Callable[[float], None]], None],
    save: Callable[[], object],
    on_progress: Callable[[float, int], None] | None,
) -> None:
    """Certify the examples `todo` part by part, saving after each.

    `certify_part` gets the examples of a part, and a function that it tells the share of the part that is done.
    """
    done, size = 0, FIRST_PART * processes.count
    while done < len(todo):
        part, started = todo[done : done + size], time.perf_counter()

        def report(share: float, before: int = done, count: int = len(part)) -> None:
            if on_progress is not None:
                on_progress(before + count * share, len(todo))

        certify_part(part, report)
        processes.on_first(save)
        done += len(part)
        # Whatever this clock says: all processes go by the first one's.
        seconds = processes.on_first(lambda started=started: time.perf_counter() - started)  # type: ignore[misc]
        size = int(np.clip(SECONDS * len(part) / seconds, size, LARGEST_PART * processes.count))


def gather(own: list[T], processes: Processes) -> list[T]:
    """Return the entries of all processes, in the order of the processes."""
    if processes.count == 1:
        return own
    gathered: list[Any] = [None] * processes.count
    dist.all_gather_object(gathered, own)
    return [entry for entries in gathered for entry in entries]
