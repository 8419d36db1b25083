"""The table of attacks on a small stand-in: digits models instead of MNIST, the same code from cell to figure."""

import pytest

from securesgd.config import run_config
from securesgd.reproduce import tables
from securesgd.reproduce.grid import cell_rows, fill_grid, open_cells
from securesgd.reproduce.models import WAYS
from securesgd.reproduce.reproduce import EXPERIMENTS
from securesgd.run_training import train_run

SMALL = tables.AttackTable(
    methods=("dpsgd", "secure-sgd"), budgets=(0.05, 0.3), examples=25, votes=50, eot=3, attack_steps=2,
    certify_draws=200,
)  # fmt: skip


@pytest.fixture
def digits_models(monkeypatch):
    def digits_model(method, seed, work):
        config = run_config("digits", method, steps=60, copies=1, accountant="rdp", seed=seed, noise_seed=seed)
        return train_run(config, work / "models" / f"{method}-{seed}", resume=True)

    monkeypatch.setattr(tables, "attack_model", digits_model)
    monkeypatch.setattr("securesgd.attacks.settings.PAPER_ATTACKS", ("fgsm", "mim"))


def test_cells_give_rows_with_intervals_and_a_figure(digits_models, tmp_path):
    table, cells = tmp_path / "rows.csv", SMALL.cells("quick")
    fill_grid(table, cells, SMALL.measure, tmp_path / "work")
    assert open_cells(table, cells) == []
    rows = cell_rows(table, cells)
    assert [(row["protocol"], row["attack"], row["budget"]) for row in rows] == 2 * [
        (protocol, attack, budget)
        for protocol in ("sound", "as-published")
        for attack in ("fgsm", "mim")
        for budget in (0.05, 0.3)
    ]
    for row in rows:
        assert row["certified_clean"] <= row["attacked"] + row["undecided"] + 1e-9
        assert row["attacked_lower"] <= row["attacked"] <= row["attacked_upper"]
        assert row["sandwich_holds"] == 1
        assert row["eot"] == (3 if row["protocol"] == "sound" else 0)
    # DP-SGD has no noise to vote under: its certificates are by interval bounds, and prove nothing this far out
    assert all(row["certified_clean"] == 0 for row in rows if row["method"] == "dpsgd" and row["budget"] == 0.3)
    EXPERIMENTS["attacks"].draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "gains.csv").exists()


def test_models_are_those_of_the_redistribution_experiment():
    assert tables._DPSGD_SETTINGS == {
        "network": "tanh-cnn", "epsilon": 3.0, "batch_size": 1024, "steps": 703, "learning_rate": 1.0,
    }  # fmt: skip
    assert set(tables._ATTACK_WAYS.values()) <= set(WAYS)
    cells = EXPERIMENTS["attacks"].cells("quick")
    assert [cell["method"] for cell in cells] == ["dpsgd", "secure-sgd", "secure-sgd-agm"]
    assert {cell["examples"] for cell in EXPERIMENTS["attacks"].cells("standard")} == {1000}
