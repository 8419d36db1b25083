"""The experiment of interval bounds: both families give rows of the same columns, and a figure."""

import pytest

from securesgd.reproduce import interval
from securesgd.reproduce.grid import cell_rows, fill_grid
from securesgd.reproduce.models import cell_model
from securesgd.runtime.tables import read_rows

TINY = {"batch_size": 64, "steps": 3, "network": "digits-cnn"}


def tiny_model(dataset, method, folder, settings, seed):
    kept = {name: value for name, value in settings.items() if name in ("epsilon", "train_radius", "unit")}
    return cell_model(dataset, method, folder, kept | TINY, seed)


@pytest.mark.parametrize("profile", ["quick", "standard"])
def test_every_epsilon_has_both_families_and_the_main_rows_their_seeds(profile):
    cells = interval.INTERVAL.cells(profile)
    assert len({tuple(cell.items()) for cell in cells}) == len(cells)
    preset = [cell for cell in cells if cell["dataset"] == "mnist" and cell["train_radius"] is None]
    for method in ("dp-ibp", "secure-sgd"):
        assert {cell["epsilon"] for cell in preset if cell["method"] == method} == {1.0, 3.0, 8.0}
    main = [cell for cell in preset if cell["method"] == "dp-ibp" and cell["epsilon"] == 3.0]
    assert len(main) == (3 if profile == "standard" else 1)
    assert all(cell["examples"] == 10_000 for cell in main if profile == "standard")


def test_cells_give_rows_and_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(interval, "cell_model", tiny_model)
    monkeypatch.setattr(interval, "_DRAWS", 50)
    common = {"dataset": "digits", "epsilon": 3.0, "train_radius": None, "seed": 0, "examples": 6}
    cells = [common | {"method": method} for method in ("dp-ibp", "secure-sgd")]
    cells = [{name: cell[name] for name in interval.INTERVAL.cells("quick")[0]} for cell in cells]
    table = tmp_path / "rows.csv"
    fill_grid(table, cells, interval.INTERVAL.measure, tmp_path / "work")
    rows = cell_rows(table, cells)
    assert [row["method"] for row in rows] == ["dp-ibp", "secure-sgd"]
    for row in rows:
        certified = [row[name] for name in row if name.startswith("certified_at_")]
        assert certified == sorted(certified, reverse=True)
        assert certified[0] <= row["accuracy"]
        assert row["epsilon_spent"] == pytest.approx(3.0, abs=1e-3)
        assert f"--method {row['method']}" in row["command"]
    assert rows[0]["boxes_at_0.1"] <= rows[0]["certified_at_0.1"]
    as_mnist = [row | {"dataset": "mnist"} for row in rows] + [rows[0]]
    interval.INTERVAL.draw(as_mnist, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert len(read_rows(tmp_path / "summary.csv")) == 3
