"""One process or many: what differs under `torchrun`, in one place.

Rank 0 alone writes files; all ranks take the same decisions, so that none waits for a rank that stopped.
"""

__all__ = ["Processes", "first_to_say", "process_group", "share_out", "working_alone"]

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from securesgd.errors import PeerStoppedError, SecureSGDError

J = TypeVar("J")
T = TypeVar("T")
_PATIENCE = timedelta(days=7)
"""How long a process waits for one that is alive: the first may write, or another measure, for hours."""
_GROUPS = itertools.count()
"""Groups that this process has started; the same number on all, since they are started together."""
_alone = 0
"""Contexts of `working_alone` that this process is in."""


@cache
def _meeting_place() -> tuple[Any, int, int]:
    """Return the store by which processes find each other, this process's rank and their number; kept to the end."""
    store, rank, count = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps its store when it restarts a job
    return dist.PrefixStore(f"attempt {attempt}", store), rank, count  # type: ignore[attr-defined]


@contextmanager
def _talking() -> Iterator[None]:
    """Turn the many lines of a failed message between processes into one.

    Raises: SecureSGDError if another process has ended or cannot be reached.
    """
    try:
        yield
    except (RuntimeError, ConnectionError) as error:  # gloo and nccl: a peer was killed, or its machine is gone
        raise SecureSGDError(
            "another process of this job has ended or cannot be reached, so this one ends, too; nothing on disk is "
            "lost: start the job again (a training: with --resume, or resume=True)"
        ) from error


@contextmanager
def process_group() -> Iterator["Processes"]:
    """Within the context this is one of several processes that work together, if torchrun started it as one.

    Yields the processes. A group that exists already is used as it is; within `working_alone` none is started.
    """
    starts = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized() and not _alone
    if starts:
        with _talking():
            store, rank, count = _meeting_place()
            # A later group must not find the addresses of an earlier one.
            own = dist.PrefixStore(f"securesgd {next(_GROUPS)}", store)  # type: ignore[attr-defined]
            _wait_for_all(own, count)
            dist.init_process_group("gloo", store=own, rank=rank, world_size=count, timeout=_PATIENCE)
    try:
        yield Processes()
    finally:
        if starts:
            dist.destroy_process_group()


def _wait_for_all(store: Any, count: int) -> None:
    """Return when all processes have come. Torch would wait for them, too, but deaf to signals if one never comes."""
    store.add("here", 1)
    while store.add("here", 0) < count:
        time.sleep(0.02)


@contextmanager
def working_alone() -> Iterator[None]:
    """Within the context this process is the only one: what shares its work elsewhere does all of it by itself."""
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def first_to_say(words: str) -> bool:
    """Return whether this process is the one of the job to print `words`; the others are to be silent."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return True
    launcher_has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not launcher_has_store and not _meeting_place.cache_info().currsize:
        # Whoever failed before the processes met would wait for them; they fail alike, and the first speaks for all.
        return os.environ.get("RANK", "0") == "0"
    try:
        store, _, _ = _meeting_place()
        return bool(store.add(f"securesgd said {hashlib.sha256(words.encode()).hexdigest()}", 1) == 1)
    except (RuntimeError, ConnectionError):  # whoever kept the store is gone: better twice than never
        return True


def share_out(jobs: Sequence[J], do: Callable[[J], T], processes: "Processes") -> Iterator[tuple[J, T]]:
    """Yield each job with what `do` returns of it, in the order of the jobs, on every process.

    Jobs are done in rounds, one by each process, which is alone with it (`working_alone`): the result of a job is what
    a single process gets. If `do` raises on one process, all stop. Results are sent between processes, so they must be
    picklable if there are several.
    """
    for start in range(0, len(jobs), processes.count):
        round_ = jobs[start : start + processes.count]

        def do_own(round_: Sequence[J] = round_) -> T | None:
            if processes.rank >= len(round_):
                return None
            with working_alone():
                return do(round_[processes.rank])

        results = processes.gather(processes.together(do_own))
        yield from zip(round_, results, strict=False)


class Processes:
    """The processes that work together; a single one if torch.distributed is not initialised, or `working_alone`."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and not _alone
        self.rank: int = dist.get_rank() if together else 0
        self.count: int = dist.get_world_size() if together else 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def on_first(self, action: Callable[[], T]) -> T:
        """Return on all ranks what `action` returns on rank 0, which works alone; if it raises, raise everywhere."""
        if self.count == 1:
            return action()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                with working_alone():
                    answer = [action(), None]
            except Exception as error:
                answer = [None, error]
        with _talking():
            dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def together(self, action: Callable[[], T]) -> T:
        """Return this rank's result of `action`; if it raises on any rank, raise on all."""
        if self.count == 1:
            return action()
        failure: Exception | None = None
        result: T | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        failed = self.any(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise PeerStoppedError("another process of this job stopped with an error; see its message")
        return result  # type: ignore[return-value]

    def any(self, value: bool) -> bool:
        """Return whether `value` is true on at least one process; the same answer on all of them."""
        if self.count == 1:
            return value
        total = torch.tensor(float(value), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        with _talking():
            dist.all_reduce(total)
        return bool(total.item())

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks, on each of them."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _talking():
            dist.all_gather_object(values, value)
        return values

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, as one message."""
        if self.count == 1:
            return
        listed = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in listed])
        with _talking():
            dist.all_reduce(flat)
        start = 0
        for tensor in listed:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by rank 0's."""
        if self.count > 1:
            with _talking():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)
