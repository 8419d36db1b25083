"""How the examples of a certification are shared out: parts between two writes, and shares of processes."""

__all__ = ["gather", "in_parts"]

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
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
    *,
    block: int = 1,
) -> None:
    """Certify the examples `todo` part by part, saving after each.

    `certify_part` gets the examples of a part, and a function that it tells the share of the part that is done. All
    parts but the last have as many whole blocks of `block` examples for each process: blocks are the same however long
    the parts take.
    """
    done, size = 0, FIRST_PART * processes.count
    while done < len(todo):
        unit = block * processes.count
        part, started = todo[done : done - (-size // unit) * unit], time.perf_counter()

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
    return [entry for entries in processes.gather(own) for entry in entries]
