"""The experiment of audits: a grid with every kind of run, rows with their command, a figure and a summary."""

import tomllib
from pathlib import Path

import pytest

from securesgd.audit.sabotage import SABOTAGES
from securesgd.config import RunConfig, run_config
from securesgd.reproduce import audit
from securesgd.reproduce.grid import cell_rows, fill_grid
from securesgd.runtime.tables import read_rows

RESULTS = Path(__file__).parents[2] / "results" / "audit"


def test_the_grid_has_every_sabotage_at_every_claim():
    cells = audit.AUDIT.cells("standard")
    assert set(audit.KINDS) == set(SABOTAGES)
    for claim in audit.CLAIMS:
        for kind in ("as-shipped", *SABOTAGES):
            assert sum(cell["epsilon"] == claim and cell["kind"] == kind for cell in cells) == 20
    assert sum(cell["kind"] == "null" for cell in cells) == 100
    assert len({tuple(cell.items()) for cell in cells}) == len(cells)


def test_the_commands_of_the_rows_use_the_settings_of_the_grid():
    config = RunConfig.from_dict(tomllib.loads((RESULTS / "config.toml").read_text()))
    assert config == run_config("digits", "dpsgd", epsilon=3.0, **audit.SETTINGS)


def test_cells_give_rows_a_figure_and_a_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "SETTINGS", audit.SETTINGS | {"steps": 1, "batch_size": 750})
    kinds = ("as-shipped", "no-clipping", "null")
    cells = [{"dataset": "digits", "epsilon": 3.0, "kind": kind, "seed": 0} for kind in kinds]
    table = tmp_path / "rows.csv"
    fill_grid(table, cells, audit.AUDIT.measure, tmp_path / "work")
    rows = cell_rows(table, cells)
    assert [row["holds"] for row in rows] == [1, 0, 1]
    assert rows[2]["epsilon_lower_bound"] == 0
    assert rows[1]["command"].endswith("--set epsilon=3.0 --seed 0 --sabotage no-clipping")
    audit.AUDIT.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    summary = {row["kind"]: row for row in read_rows(tmp_path / "summary.csv")}
    assert summary["no-clipping"]["above_claim"] == 1
    assert summary["null"]["zero"] == 1


@pytest.mark.skipif(not (RESULTS / "rows.csv").exists(), reason="the grid was not recorded")
def test_recorded_audits_catch_every_sabotage_at_epsilon_3_and_accuse_nobody_else():
    summary = {(row["epsilon"], row["kind"]): row for row in audit.audit_catches(read_rows(RESULTS / "rows.csv"))}
    for kind in SABOTAGES:
        row = summary[3.0, kind]
        assert row["above_claim"] >= 0.95 * row["runs"], row
    for (epsilon, kind), row in summary.items():
        if kind in ("as-shipped", "null"):
            assert row["above_claim"] == 0, (epsilon, kind)
    null, shipped = summary[3.0, "null"], summary[3.0, "as-shipped"]
    assert null["zero"] >= 0.93 * null["runs"]
    assert shipped["lowest"] >= 1.5
    assert shipped["median_simple"] >= 0.8
