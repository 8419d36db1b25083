"""The table of attacks on a small stand-in: digits models instead of MNIST, the same code from cell to figure."""

import pytest

from securesgd.config import run_config
from securesgd.reproduce import attacks_table, redistribution
from securesgd.reproduce.grid import fill, open_cells, rows_of
from securesgd.run import train_run


@pytest.fixture
def small(monkeypatch):
    def trained(method, seed, work):
        config = run_config("digits", method, steps=60, copies=1, accountant="rdp", seed=seed, noise_seed=seed)
        return train_run(config, work / "models" / f"{method}-{seed}", resume=True)

    monkeypatch.setattr(attacks_table, "_trained", trained)
    monkeypatch.setattr(attacks_table, "METHODS", ("dpsgd", "secure-sgd"))
    monkeypatch.setattr(attacks_table, "ATTACKS", ("fgsm", "mim"))
    monkeypatch.setattr(attacks_table, "BUDGETS", (0.05, 0.3))
    monkeypatch.setattr(attacks_table, "_PROFILES", {"quick": {"seeds": (0,), "examples": 25}})
    for name, value in (("_VOTES", 50), ("_EOT", 3), ("_STEPS", 2), ("_CERTIFY_DRAWS", 200)):
        monkeypatch.setattr(attacks_table, name, value)


def test_cells_give_rows_with_intervals_and_a_figure(small, tmp_path):
    table, cells = tmp_path / "rows.csv", attacks_table.cells("quick")
    fill(table, cells, attacks_table.measure, tmp_path / "work")
    assert open_cells(table, cells) == []
    rows = rows_of(table, cells)
    assert len(rows) == 2 * 2 * 2 * 2  # methods, protocols, attacks, budgets
    for row in rows:
        assert row["certified_clean"] <= row["attacked"] + row["undecided"] + 1e-9
        assert row["attacked_lower"] <= row["attacked"] <= row["attacked_upper"]
        assert row["sandwich_holds"] == 1
        assert row["eot"] == (3 if row["protocol"] == "sound" else 0)
    assert all(row["certified_clean"] == 0 for row in rows if row["method"] == "dpsgd")
    attacks_table.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_models_are_those_of_the_redistribution_experiment():
    shared = ("network", "epsilon", "batch_size", "steps", "learning_rate")
    assert {name: redistribution._SETTINGS[name] for name in shared} == attacks_table._DPSGD
    assert set(attacks_table._WAYS.values()) <= set(redistribution._WAYS)
    assert [cell["method"] for cell in attacks_table.cells("quick")] == ["dpsgd", "secure-sgd", "secure-sgd-agm"]
    assert {cell["examples"] for cell in attacks_table.cells("paper")} == {1000}
