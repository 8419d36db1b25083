"""Progress of every command on standard error: a bar on a terminal, otherwise a plain line now and then."""

__all__ = ["duration_in_words", "is_first_process", "progress_bar"]

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

FIRST, BETWEEN = 2.0, 30.0
"""Seconds before the first line, and between lines."""
_LEAST_SECONDS, _LEAST_SHARE, _ENOUGH_SECONDS = 5.0, 5.0, 60.0
"""The time that remains is shown after these seconds and per cent, or after enough seconds: before, it is a guess."""


@contextmanager
def progress_bar(
    *columns: str | ProgressColumn, description: str = "", total: float | None = None, transient: bool = False
) -> Iterator[tuple[Progress, TaskID]]:
    """Yield a progress display and its one task; move it with `progress.update(task, completed=…, description=…)`.

    On a terminal it is a bar: the first of `columns`, the bar, the other columns, the time that remains. Elsewhere (a
    file, a pipe, a batch system) the columns are printed as a line after 2 s, or once the time that remains is known,
    and then every 30 s. The time that remains is shown when it is more than a guess: after 5 s and 5 % of the work, or
    after a minute. Of several processes under torchrun only the first shows anything.
    """
    texts = [TextColumn(column) if isinstance(column, str) else column for column in columns]
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        lines = _Lines(*texts, console=console, disable=True)
        yield lines, lines.add_task(description, total=total)
        return
    bar = (*texts[:1], BarColumn(), *texts[1:], _TimeLeft())
    with Progress(*bar, console=console, transient=transient, disable=not is_first_process()) as progress:
        yield progress, progress.add_task(description, total=total)


def _time_left(task: Task) -> float | None:
    """Return the seconds that remain, None while they would be a guess."""
    elapsed = task.elapsed or 0.0
    is_known = elapsed >= _ENOUGH_SECONDS or (elapsed >= _LEAST_SECONDS and task.percentage >= _LEAST_SHARE)
    return task.time_remaining if is_known else None


class _TimeLeft(TimeRemainingColumn):
    """The time that remains, once it is known."""

    def render(self, task: Task) -> Text:
        """Return it as text, dashes before."""
        return super().render(task) if task.finished or _time_left(task) is not None else Text("-:--:--")


class _Lines(Progress):
    """A display that is never drawn (`disable`), but prints a line after an update if one is due."""

    _last_time = 0.0

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change the task, and print a line about it if one is due."""
        super().update(task_id, **changes)
        task = self.tasks[0]
        elapsed = task.elapsed or 0.0
        is_foreseen = task.time_remaining is not None or not task.total
        wait = FIRST if is_foreseen and not self._last_time else BETWEEN
        if elapsed - self._last_time >= wait and is_first_process():
            self._last_time = elapsed
            self.console.print(self._line(task), markup=False, soft_wrap=True)

    def _line(self, task: Task) -> str:
        words = [str(column(task)) for column in self.columns if isinstance(column, ProgressColumn)]
        if task.total:
            left = _time_left(task)
            words.append(f"({task.percentage:.0f} %{f', about {duration_in_words(left)} left' if left else ''})")
        return " ".join(word for word in words if word).strip()


def is_first_process() -> bool:
    """Return whether this process is the one to speak: the first of those that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def duration_in_words(seconds: float) -> str:
    """Return a time for people to read: seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
