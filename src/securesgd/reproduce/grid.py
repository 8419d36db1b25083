"""A grid of measurements that can be stopped at any moment: the rows of each measured cell are on disk at once."""

__all__ = ["Cell", "Experiment", "Measure", "Row", "cell_rows", "fill_grid", "open_cells"]

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, SecureSGDError
from securesgd.runtime.tables import read_rows, write_rows

Cell = dict[str, Any]
Row = dict[str, Any]
Measure = Callable[[Cell, Path], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure or a table: which cells it has, how one is measured, and how the figure is drawn from the rows."""

    cells: Callable[[str], list[Cell]]
    """Returns the grid of a profile; all cells have the same columns."""
    measure: Measure
    """`measure(cell, work)` returns rows that begin with the cell's columns; `work` holds its trained models.

    It is sent to worker processes, so it must be importable: no lambda, no function inside another.
    """
    draw: Callable[[list[Row], Path], None]
    """Draws the figure of some rows to a path, and writes summaries beside it."""
    minutes: Mapping[str, float]
    """An estimate, by profile: minutes of one slow core for one cell."""
    seeded: bool = True
    """Whether the rows come from trained models, with fixed seeds instead of secret keys."""


def fill_grid(
    path: Path,
    cells: Sequence[Cell],
    measure: Measure,
    work: Path,
    *,
    jobs: int = 1,
    on_cell: Callable[[Cell, int, int, float], None] | None = None,
) -> None:
    """Measure the cells that have no rows in `path` yet; the rows of a cell are added all at once, or not at all.

    With `jobs` > 1 cells run in processes of one thread each, which on a CPU is faster than one process of many
    threads. Under torch.distributed cells are shared out to the processes instead, and the first one writes. `on_cell`
    gets each measured cell, how many are done and how many open, and the seconds since the start.
    """
    from securesgd.runtime.processes import Processes, share_out

    processes = Processes()
    todo = processes.on_first(lambda: open_cells(path, cells))
    started = time.perf_counter()
    if processes.count > 1:
        measured = share_out(todo, lambda cell: measure(cell, work), processes)
    else:
        measured = _measure_cells(todo, measure, work, jobs)
    for done, (cell, rows) in enumerate(measured, start=1):
        processes.on_first(lambda cell=cell, rows=rows: _add_rows(path, cell, rows))  # type: ignore[misc]
        if on_cell is not None:
            on_cell(cell, done, len(todo) - done, time.perf_counter() - started)


def _add_rows(path: Path, cell: Cell, rows: list[Row]) -> None:
    """Add the rows of a measured cell to the table."""
    for row in rows:
        if list(row.items())[: len(cell)] != list(cell.items()):
            raise AssertionError(f"rows must begin with their cell {cell}, got {row}")
    existing_rows = _text_rows(path)
    _require_same_columns(path, existing_rows, list(rows[0]))
    write_rows(path, [*existing_rows, *rows])


def open_cells(path: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without rows in `path`."""
    existing_rows = _text_rows(path)
    if cells:
        _require_same_columns(path, existing_rows, list(cells[0]))
    measured = {_key(row, cell) for cell in cells[:1] for row in existing_rows}
    return [cell for cell in cells if _key(cell, cell) not in measured]


def cell_rows(path: Path, cells: Sequence[Cell]) -> list[Row]:
    """Return the rows in `path` that belong to these cells, with numbers as floats."""
    keys = {_key(cell, cell) for cell in cells}
    pairs = zip(_text_rows(path), read_rows(path), strict=True)
    return [row for text_row, row in pairs if _key(text_row, cells[0]) in keys]


def _measure_cells(todo: list[Cell], measure: Measure, work: Path, jobs: int) -> Iterator[tuple[Cell, list[Row]]]:
    """Yield each cell with its rows as soon as it is measured; in order if `jobs` is 1."""
    if jobs == 1:
        for cell in todo:
            yield cell, measure(cell, work)
        return
    context = multiprocessing.get_context("spawn")
    with _single_threaded_workers(), ProcessPoolExecutor(jobs, context, _exit_with_parent, (os.getpid(),)) as pool:
        running: dict[Future[list[Row]], Cell] = {}
        waiting = iter(todo)
        try:
            while True:
                for cell in waiting:
                    running[pool.submit(measure, cell, work)] = cell
                    if len(running) >= jobs:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise SecureSGDError(
                f"one of {jobs} worker processes was killed, as when memory runs out; measured cells are kept: give "
                "the same command again, with --jobs 1 if memory is short"
            ) from None
        finally:
            for future in running:
                future.cancel()


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent is gone: a killed grid must not leave processes that go on training."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _single_threaded_workers() -> Iterator[None]:
    """Set the environment that worker processes start with. Bound threads would all sit on the first core."""
    settings = {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _text_rows(path: Path) -> list[Row]:
    return read_rows(path, as_text=True) if path.exists() else []


def _require_same_columns(path: Path, existing_rows: list[Row], columns: list[str]) -> None:
    """Raise DamagedFileError if there is a table at `path` that does not begin with these columns."""
    if existing_rows and list(existing_rows[0])[: len(columns)] != columns:
        raise DamagedFileError(f"{path} is not a table of {', '.join(columns)}; move it away first")


def _key(row: Row, cell: Cell) -> tuple[str, ...]:
    """Return what identifies a cell's rows: its columns as the file has them."""
    return tuple("" if row[name] is None else str(row[name]) for name in cell)
