"""A grid is filled cell by cell, survives interruption, and never measures a cell twice."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securesgd.errors import DamagedFileError
from securesgd.reproduce.grid import Experiment, fill_grid, open_cells
from securesgd.reproduce.reproduce import EXPERIMENTS
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here

from .grid_cells import CELLS, measured


def failing_at_third(cell, work):
    if cell == CELLS[2]:
        raise KeyboardInterrupt
    return measured(cell, work)


def calls(folder):
    return (folder / "calls").read_text().splitlines()


def test_every_cell_once_and_in_order(tmp_path):
    seen = []
    fill_grid(tmp_path / "rows.csv", CELLS, measured, tmp_path, on_cell=lambda cell, *_: seen.append(cell))
    rows = read_rows(tmp_path / "rows.csv")
    assert [(r["method"], r["epsilon"], r["seed"]) for r in rows[::2]] == [tuple(c.values()) for c in CELLS]
    assert seen == CELLS
    fill_grid(tmp_path / "rows.csv", CELLS, measured, tmp_path)
    assert len(calls(tmp_path)) == len(CELLS)
    assert open_cells(tmp_path / "rows.csv", CELLS) == []


def test_an_interrupted_grid_is_resumed(tmp_path):
    path = tmp_path / "rows.csv"
    with pytest.raises(KeyboardInterrupt):
        fill_grid(path, CELLS, failing_at_third, tmp_path)
    assert len(open_cells(path, CELLS)) == len(CELLS) - 2
    fill_grid(path, CELLS, measured, tmp_path)
    assert len(calls(tmp_path)) == len(set(calls(tmp_path))) == len(CELLS)


def test_two_processes_of_one_thread_make_the_same_rows(tmp_path):
    fill_grid(tmp_path / "rows.csv", CELLS, measured, tmp_path, jobs=2)
    rows = read_rows(tmp_path / "rows.csv")
    assert len(rows) == 2 * len(CELLS)
    assert {row["threads"] for row in rows} == {1.0}
    assert open_cells(tmp_path / "rows.csv", CELLS) == []


def free_to_move(cell, work):
    import torch

    torch.ones(200, 200) @ torch.ones(200, 200)  # OpenMP binds its threads when it first works
    return [{**cell, "cores": len(os.sched_getaffinity(0))}]


@pytest.mark.slow
def test_workers_are_not_bound_to_the_same_core(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "true")  # as the command line sets it for itself
    fill_grid(tmp_path / "rows.csv", CELLS[:2], free_to_move, tmp_path, jobs=2)
    assert {row["cores"] for row in read_rows(tmp_path / "rows.csv")} == {len(os.sched_getaffinity(0))}
    assert os.environ["OMP_PROC_BIND"] == "true"


def test_workers_of_a_killed_grid_end_too(tmp_path):
    code = (
        "from pathlib import Path\nfrom securesgd.reproduce.grid import fill_grid\n"
        "from tests.reproduce.grid_cells import CELLS, wait_long\n"
        f"if __name__ == '__main__': fill_grid(Path({str(tmp_path / 'rows.csv')!r}), CELLS[:1] * 2, wait_long, "
        f"Path({str(tmp_path)!r}), jobs=2)\n"
    )
    (tmp_path / "grid.py").write_text(code)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), str(root / "src")))}
    with subprocess.Popen([sys.executable, tmp_path / "grid.py"], env=environment) as grid:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert grid.poll() is None, "the grid ended before its worker began"
            time.sleep(0.1)
        worker = int((tmp_path / "pid").read_text())
        grid.kill()
    for _ in range(50):
        if not Path(f"/proc/{worker}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the worker goes on without its grid")


def test_a_new_cell_is_added_to_rows_that_are_there(tmp_path):
    path = tmp_path / "rows.csv"
    fill_grid(path, CELLS[:3], measured, tmp_path)
    before = path.read_text()
    fill_grid(path, CELLS[:4], measured, tmp_path)
    assert path.read_text().startswith(before)
    assert len(calls(tmp_path)) == 4


def test_rows_of_another_table_are_not_overwritten(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("my,notes\n1,2\n")
    with pytest.raises(DamagedFileError, match="move it away"):
        fill_grid(path, CELLS[:1], measured, tmp_path)
    assert path.read_text() == "my,notes\n1,2\n"


def test_rows_must_name_their_cell(tmp_path):
    with pytest.raises(AssertionError, match="begin with their cell"):
        fill_grid(tmp_path / "rows.csv", CELLS[:1], lambda cell, work: [{"value": 1}], tmp_path)


def test_one_row_of_the_table_adds_an_experiment(tmp_path, monkeypatch):
    """Grid, rows, figure, the environment, and the names that the command line suggests."""
    (tmp_path / "work" / "mine").mkdir(parents=True)
    mine = Experiment(
        cells=lambda profile: CELLS[: 2 if profile == "quick" else 8],
        measure=measured,
        draw=lambda rows, path: path.write_text(f"{len(rows)} rows"),
        minutes={"quick": 120, "standard": 1200},
    )
    monkeypatch.setitem(EXPERIMENTS, "mine", mine)
    folders = ["--out", str(tmp_path), "--work", str(tmp_path / "work"), "--jobs", "1"]
    result = run_here("reproduce", "mine", *folders)
    assert result.returncode == 0, result.stderr
    assert "mine: 2 cells to do, 0 done, about 4.0 hours" in result.stderr
    assert (tmp_path / "mine" / "figure.png").read_text() == "4 rows"
    assert "fixed seeds" in json.loads((tmp_path / "mine" / "environment.json").read_text())["noise"]
    result = run_here("reproduce", "mine", "--profile", "standard", *folders)
    assert "mine: 6 cells to do, 2 done" in result.stderr
    assert (tmp_path / "mine" / "figure.png").read_text() == "16 rows"
    assert "did you mean 'mine'?" in run_here("reproduce", "mime", *folders).stderr
