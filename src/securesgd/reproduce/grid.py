"""A grid of measurements that can be stopped at any moment: each cell's rows are on disk as soon as it is done."""

__all__ = ["Cell", "fill", "open_cells", "rows_of"]

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError
from securesgd.runtime.tables import read_rows, write_rows

Cell = dict[str, Any]
Measure = Callable[[Cell, Path], list[dict[str, Any]]]


def fill(
    path: Path,
    cells: Sequence[Cell],
    measure: Measure,
    work: Path,
    *,
    jobs: int = 1,
    on_cell: Callable[[Cell, int, int, float], None] | None = None,
) -> None:
    """Measure the cells that have no rows in `path` yet; what one cell measured is added whole, or not at all.

    `measure(cell, work)` returns rows that begin with the cell's own columns; `work` is for what it wants to keep
    between tries (half-trained models, say). With `jobs` > 1 cells run in processes of one thread each, which on a CPU
    beats one process of many threads. `on_cell` gets each finished cell, how many are done and open, and the seconds.
    """
    todo = open_cells(path, cells)
    started = time.perf_counter()
    for done, (cell, rows) in enumerate(_measured(todo, measure, work, jobs), start=1):
        for row in rows:
            if list(row.items())[: len(cell)] != list(cell.items()):
                raise AssertionError(f"rows must begin with their cell {cell}, got {row}")
        there = _raw_rows(path)
        _require_same_columns(path, there, list(rows[0]))
        write_rows(path, [*there, *rows])
        if on_cell is not None:
            on_cell(cell, done, len(todo) - done, time.perf_counter() - started)


def open_cells(path: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without rows in `path`."""
    there = _raw_rows(path)
    if cells:
        _require_same_columns(path, there, list(cells[0]))
    known = {_key(row, cell) for cell in cells[:1] for row in there}
    return [cell for cell in cells if _key(cell, cell) not in known]


def rows_of(path: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the rows that belong to these cells, numbers as numbers."""
    wanted = {_key(cell, cell) for cell in cells}
    pairs = zip(_raw_rows(path), read_rows(path), strict=True)
    return [row for raw, row in pairs if _key(raw, cells[0]) in wanted]


def _measured(todo: list[Cell], measure: Measure, work: Path, jobs: int) -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    if jobs == 1:
        for cell in todo:
            yield cell, measure(cell, work)
        return
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(jobs, context, _end_with, (os.getpid(),)) as pool:
        running: dict[Future[list[dict[str, Any]]], Cell] = {}
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
        finally:
            for future in running:
                future.cancel()


def _end_with(parent: int) -> None:
    """End this worker when its parent is gone: a killed grid must not leave processes that go on training."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set the environment that worker processes start with. Bound threads would all sit on the first core."""
    wanted = {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _raw_rows(path: Path) -> list[dict[str, Any]]:
    return read_rows(path, as_text=True) if path.exists() else []


def _require_same_columns(path: Path, there: list[dict[str, Any]], columns: list[str]) -> None:
    """Pass if the table on disk, if there is one, begins with these columns: other tables are not ours to add to."""
    if there and list(there[0])[: len(columns)] != columns:
        raise DamagedFileError(f"{path} is not a table of {', '.join(columns)}; move it away first")


def _key(row: dict[str, Any], cell: Cell) -> tuple[str, ...]:
    """Return what tells a cell's rows from others, as it stands in the file."""
    return tuple("" if row[name] is None else str(row[name]) for name in cell)
