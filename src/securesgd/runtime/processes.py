"""One process or many: what differs under `torchrun`, in one place.

Rank 0 alone writes files; all ranks take the same decisions, so that none waits for a rank that stopped.
"""

__all__ = ["Processes", "process_group"]

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from securesgd.errors import SecureSGDError

T = TypeVar("T")
_GROUPS = itertools.count()
"""Groups that this process has started; the same number on all, since they are started together."""


@cache
def _meeting_place() -> tuple[Any, int, int]:
    """Return the store by which processes find each other, this process's rank and their number; kept to the end."""
    return next(rendezvous("env://"))


@contextmanager
def _talking() -> Iterator[None]:
    """Turn the many lines of a failed message between processes into one.

    Raises: SecureSGDError if another process has ended or cannot be reached.
    """
    try:
        yield
    except (RuntimeError, ConnectionError) as error:  # gloo and nccl: a peer was killed, or its machine is gone
        raise SecureSGDError(
            "another process of this job has ended or cannot be reached, so this one ends, too; "
            "start the job again (a training: with --resume, or resume=True)"
        ) from error


@contextmanager
def process_group() -> Iterator["Processes"]:
    """Within the context this is one of several processes that work together, if torchrun started it as one.

    Yields the processes. A group that exists already is used as it is.
    """
    starts = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if starts:
        with _talking():
            store, rank, count = _meeting_place()
            # A later group must not find the addresses of an earlier one.
            own = dist.PrefixStore(f"securesgd {next(_GROUPS)}", store)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=own, rank=rank, world_size=count)
    try:
        yield Processes()
    finally:
        if starts:
            dist.destroy_process_group()


class Processes:
    """The processes that train together; a single one if torch.distributed is not initialised."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if together else 0
        self.count: int = dist.get_world_size() if together else 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def on_first(self, action: Callable[[], T]) -> T:
        """Return what `action` returns on rank 0, on all ranks; if it raises there, raise everywhere."""
        if self.count == 1:
            return action()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
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
            raise SecureSGDError("another process of this training stopped with an error; see its message")
        return result  # type: ignore[return-value]

    def any(self, value: bool) -> bool:
        """Return whether `value` is true on at least one process; the same answer on all of them."""
        if self.count == 1:
            return value
        total = torch.tensor(float(value), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        with _talking():
            dist.all_reduce(total)
        return bool(total.item())

    def gather(self, value: str) -> list[str]:
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
