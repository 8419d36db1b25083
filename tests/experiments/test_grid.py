"""A grid is filled cell by cell, survives interruption, and never measures a cell twice."""

import os

import pytest

from securesgd.errors import DamagedFileError
from securesgd.experiments.grid import fill, open_cells
from securesgd.report.rows import read_rows

CELLS = [{"method": m, "epsilon": e, "seed": s} for m in ("a", "b") for e in (0.2, 1.0) for s in (0, 1)]


def measured(cell, work):
    """Two rows per cell, and a mark on disk for every call."""
    with (work / "calls").open("a") as file:
        file.write(f"{cell}\n")
    threads = os.environ.get("OMP_NUM_THREADS")
    return [{**cell, "attack": k, "value": cell["epsilon"] + k, "threads": threads} for k in (0, 1)]


def failing_at_third(cell, work):
    if cell == CELLS[2]:
        raise KeyboardInterrupt
    return measured(cell, work)


def calls(folder):
    return (folder / "calls").read_text().splitlines()


def test_every_cell_once_and_in_order(tmp_path):
    seen = []
    fill(tmp_path / "rows.csv", CELLS, measured, tmp_path, on_cell=lambda cell, *_: seen.append(cell))
    rows = read_rows(tmp_path / "rows.csv")
    assert [(r["method"], r["epsilon"], r["seed"]) for r in rows[::2]] == [tuple(c.values()) for c in CELLS]
    assert seen == CELLS
    fill(tmp_path / "rows.csv", CELLS, measured, tmp_path)
    assert len(calls(tmp_path)) == len(CELLS)
    assert open_cells(tmp_path / "rows.csv", CELLS) == []


def test_an_interrupted_grid_goes_on_where_it_was(tmp_path):
    path = tmp_path / "rows.csv"
    with pytest.raises(KeyboardInterrupt):
        fill(path, CELLS, failing_at_third, tmp_path)
    assert len(open_cells(path, CELLS)) == len(CELLS) - 2
    fill(path, CELLS, measured, tmp_path)
    assert len(calls(tmp_path)) == len(set(calls(tmp_path))) == len(CELLS)


def test_two_processes_of_one_thread_make_the_same_rows(tmp_path):
    fill(tmp_path / "rows.csv", CELLS, measured, tmp_path, jobs=2)
    rows = read_rows(tmp_path / "rows.csv")
    assert len(rows) == 2 * len(CELLS)
    assert {row["threads"] for row in rows} == {1.0}
    assert open_cells(tmp_path / "rows.csv", CELLS) == []


def test_a_new_cell_is_added_to_rows_that_are_there(tmp_path):
    path = tmp_path / "rows.csv"
    fill(path, CELLS[:3], measured, tmp_path)
    before = path.read_text()
    fill(path, CELLS[:4], measured, tmp_path)
    assert path.read_text().startswith(before)
    assert len(calls(tmp_path)) == 4


def test_rows_of_another_table_are_not_overwritten(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("my,notes\n1,2\n")
    with pytest.raises(DamagedFileError, match="move it away"):
        fill(path, CELLS[:1], measured, tmp_path)
    assert path.read_text() == "my,notes\n1,2\n"


def test_rows_must_name_their_cell(tmp_path):
    with pytest.raises(AssertionError, match="begin with their cell"):
        fill(tmp_path / "rows.csv", CELLS[:1], lambda cell, work: [{"value": 1}], tmp_path)
