"""The progress bar of every command: on standard error, and only if that is a terminal."""

__all__ = ["progress_bar"]

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(
    *columns: str | ProgressColumn, description: str = "", total: float | None = None, transient: bool = False
) -> Iterator[tuple[Progress, TaskID]]:
    """Yield a bar and its one task: the first of `columns`, the bar, the other columns, the time that remains."""
    texts = [TextColumn(column) if isinstance(column, str) else column for column in columns]
    shown = (*texts[:1], BarColumn(), *texts[1:], TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*shown, console=console, transient=transient, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(description, total=total)
