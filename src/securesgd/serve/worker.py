"""One thread for the model, and a bounded queue in front of it.

The network is computed by one thread, however many clients there are: memory is that of one batch, and answers do not
slow each other down. Predictions that wait are taken together, since what a certificate costs before its first draw is
then paid once. Clients who got their answers together ask again one after the other: the thread waits a moment until it
has as many as the last time.
"""

__all__ = ["Busy", "ModelWorker"]

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
_LINGER = 0.05
"""The seconds of that moment; a client that is alone never waits for others."""


class Busy(Exception):  # noqa: N818 - it is no error, but an answer: later
    """As many tasks wait as may."""


@dataclass(frozen=True, eq=False)
class _Job(Generic[Task, Result]):
    task: Task
    future: "Future[Result]" = field(default_factory=Future)


class ModelWorker(Generic[Task, Result]):
    """Computes the results of tasks in a thread of its own, in their order, up to `together` at once.

    `compute` gets tasks and returns for each its result, or the exception that its caller shall get. At most `waiting`
    tasks wait. A task whose future was cancelled before its turn is left out.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Task]], Sequence[Result | Exception]],
        *,
        waiting: int,
        together: int = 16,
    ) -> None:
        self._compute, self._together = compute, together
        self._jobs: queue.Queue[_Job[Task, Result] | None] = queue.Queue(waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="securesgd model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether tasks are taken and computed."""
        return not self._closed and self._thread.is_alive()

    def submit(self, task: Task) -> "Future[Result]":
        """Return the future result of a task. Raises: Busy if no more may wait, or the worker was closed."""
        if not self.alive:
            raise Busy
        job: _Job[Task, Result] = _Job(task)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Busy from None
        return job.future

    def close(self, seconds: float) -> None:
        """Take no more tasks, finish those that wait, and return when that is done or `seconds` have passed."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        jobs: list[_Job[Task, Result] | None] = []
        while not jobs or jobs[-1] is not None:
            jobs = self._next_jobs(as_many_as=len(jobs))
            wanted = [job for job in jobs if job is not None and job.future.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _next_jobs(self, *, as_many_as: int) -> "list[_Job[Task, Result] | None]":
        """Return the jobs that wait, at least one; None is the last of them if the worker was closed."""
        jobs = [self._jobs.get()]
        end = time.monotonic() + _LINGER
        while len(jobs) < self._together and jobs[-1] is not None:
            wait = end - time.monotonic() if len(jobs) < as_many_as else 0.0
            try:
                jobs.append(self._jobs.get(wait > 0, max(wait, 0.0)))
            except queue.Empty:
                break
        return jobs

    def _answer(self, jobs: list[_Job[Task, Result]]) -> None:
        try:
            results = self._compute([job.task for job in jobs])
        except Exception as error:  # the thread must outlive whatever happens to one batch
            results = [error] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
