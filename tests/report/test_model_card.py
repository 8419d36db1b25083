"""The model card says what the records say, the same every time, and nothing of the machine or of private numbers."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.errors import InvalidInputError
from securesgd.report.model_card import model_card, refresh_model_card, write_model_card
from securesgd.report.run_record import read_run
from securesgd.run import load_run
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here

SMALL = {"epsilon": 8.0, "delta": 1e-5, "batch_size": 20, "steps": 2, "accountant": "rdp"}


def cells(card, title):
    """The rows of the first table of a section, without its header."""
    section = card.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    end = next((i for i, row in enumerate(rows[2:], 2) if set(row) == {"---"}), len(rows) + 1)
    return rows[2 : end - 1] if end <= len(rows) else rows[2:]


def card_of(folder):
    return (folder / "MODEL_CARD.md").read_text()


def test_its_numbers_are_those_of_the_records(tiny_run):
    card, run, model = card_of(tiny_run), load_run(tiny_run), json.loads((tiny_run / "model.json").read_text())
    assert run.privacy.in_words in card
    assert f"**{run.privacy.in_short}**" in card
    rows = dict(cells(card, "Model"))
    weights = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    assert model["weights"] == weights == model["statement"]["noise"]["coordinates"]
    assert rows["network"] == f"digits-cnn, {weights:,} trained weights"
    assert rows["input"] == "1 × 8 × 8 numbers"
    data = dict(cells(card, "Data"))
    assert (data["training examples"], data["test examples"]) == ("1,500", "297")
    balance = run.test_balance
    assert cells(card, "Accuracy") == [
        [str(k), str(balance.examples[k]), str(balance.right[k]), f"{balance.recall[k]:.3f}"] for k in range(10)
    ]
    assert f"right: {run.test_accuracy:.3f} (" in card


def test_certified_and_attacked_accuracies_are_counted_from_the_rows(tiny_run):
    card, rows = card_of(tiny_run), read_rows(tiny_run / "certificates.csv")
    right = [row["abstained"] in (0.0, "False") and row["prediction"] == row["label"] for row in rows]
    tight = next(row for row in cells(card, "Robustness") if row[0] == "tight")
    for cell, radius in zip(tight[1:5], (0.01, 0.02, 0.05, 0.1), strict=True):
        share = np.mean([ok and row["radius_tight"] >= radius for ok, row in zip(right, rows, strict=True)])
        assert cell.startswith(f"{share:.3f} (")
    mean = np.mean([row["radius_tight"] * ok for ok, row in zip(right, rows, strict=True)])
    assert tight[5] == f"{mean:.4f}"
    (attack,) = cells(card, "Attacks")
    attacked = read_rows(tiny_run / "attacks.csv")
    under = np.mean([row["label_votes"] > row["other_votes"] for row in attacked])
    assert attack[:3] == ["fgsm", "linf 0.05", "4"]
    assert attack[4].startswith(f"{under:.3f} (")


def test_it_is_a_function_of_the_records_wherever_they_are(tiny_run, copied_run):
    """Another folder, another time: the same text, without a place on the machine or a date."""
    card = card_of(tiny_run)
    assert model_card(read_run(copied_run)) == model_card(read_run(tiny_run)) == card
    (copied_run / "MODEL_CARD.md").unlink()
    assert write_model_card(copied_run) is None
    assert card_of(copied_run) == card
    assert str(tiny_run.parent) not in card
    assert not re.search(r"\b20\d\d-\d\d", card)
    assert str(os.uname().nodename) not in card


def test_report_writes_it_anew_with_what_is_there_by_then(copied_run, tmp_path):
    for name in ("certificates.csv", "certificates.json", "attacks.csv", "attacks.json"):
        (copied_run / name).unlink()
    before = card_of(copied_run)
    assert run_here("report", copied_run, "--out", tmp_path / "elsewhere.html").returncode == 0
    assert card_of(copied_run) == before  # only the card beside a report
    load_run(copied_run).report()
    card = card_of(copied_run)
    assert "No test prediction is certified yet." in card
    assert "The model was not attacked yet." in card
    assert (
        run_here("certify", copied_run, "--draws", "40", "--selection-draws", "10", "--examples", "6").returncode == 0
    )
    assert run_here("report", copied_run).returncode == 0
    assert "Certified accuracy in linf, 6 test examples:" in card_of(copied_run)


def test_what_does_not_fit_together_is_said_in_it(copied_run):
    lines = (copied_run / "ledger.jsonl").read_text().splitlines(keepends=True)
    record = json.loads((copied_run / "certificates.json").read_text())
    record["linf"]["model_file"] = "0" * 64
    (copied_run / "certificates.json").write_text(json.dumps(record))
    (copied_run / "ledger.jsonl").write_text(lines[0])
    assert write_model_card(copied_run) is None
    card = card_of(copied_run)
    assert "**The ledger is not the one these weights were trained with, or lines of it were cut off.**" in card
    assert "certificates.json was made with other weights" in card
    assert "securesgd certify RUN --again**" in card
    assert str(copied_run) not in card


@pytest.mark.parametrize("name", ["config.toml", "model.json", "ledger.jsonl", "metrics.jsonl", "certificates.json"])
@pytest.mark.parametrize("content", ["", "{}", '{"data": 3, "linf": 4, "test_accuracy": "x", "input_shape": 5}'])
def test_damaged_records_leave_a_card_or_a_reason(name, content, copied_run):
    (copied_run / name).write_text(content)
    reason = write_model_card(copied_run)
    assert reason is None or "was not written" in reason
    assert str(copied_run) not in card_of(copied_run)


def test_a_file_of_somebody_else_stays(copied_run, tmp_path):
    path = copied_run / "MODEL_CARD.md"
    path.write_text("# My own card\n")
    result = run_here("report", copied_run)
    assert result.returncode == 0
    assert "MODEL_CARD.md is not a card that this package wrote" in result.stderr
    assert path.read_text() == "# My own card\n"
    path.unlink()
    path.mkdir()
    assert len(refresh_model_card([copied_run], copied_run / "report.html")) == 1
    path.rmdir()
    (tmp_path / "mine").write_text("mine")
    path.symlink_to(tmp_path / "mine")
    assert "left as it is" in write_model_card(copied_run)
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(InvalidInputError, match="not a run folder"):
        write_model_card(tmp_path)


def test_a_number_of_examples_that_is_not_public_and_places_are_not_in_it(tmp_path):
    rng, place = np.random.default_rng(0), tmp_path / "secret-place"
    place.mkdir()
    arrays = {
        f"x_{part}": rng.integers(0, 256, (n, 4, 4), dtype=np.uint8) for part, n in (("train", 637), ("test", 20))
    }
    arrays |= {f"y_{part}": np.arange(len(arrays[f"x_{part}"])) % 2 for part in ("train", "test")}
    np.savez(place / "scans.npz", **arrays)
    settings = [
        word for s in ("steps=1", "batch_size=50", "population=5000", "accountant=rdp") for word in ("--set", s)
    ]
    options = ("--dataset", place / "scans.npz", "--method", "dpsgd", "--out", tmp_path / "run", *settings)
    assert run_here("train", *options).returncode == 0
    card = card_of(tmp_path / "run")
    assert dict(cells(card, "Data"))["name"] == "scans.npz"
    assert dict(cells(card, "Data"))["training examples"] == "not public"
    assert "637" not in card
    assert "secret-place" not in card
    assert "Unit: One training example, added or removed." in card


def test_names_that_users_chose_do_not_break_the_tables(tmp_path):
    """A class may be called like Markdown; a network and its data may be in memory."""
    inputs, targets = torch.rand(60, 6), torch.arange(60) % 2
    run = ss.train(
        nn.Sequential(nn.Linear(6, 2)), (inputs, targets), test=(inputs, targets), out=tmp_path / "run", **SMALL
    )
    card = card_of(run.path)
    assert "# dpsgd on data in memory" in card
    assert "a module of the user's own, 14 trained weights" in card
    record = read_run(run.path)
    record.model["class_names"] = ["a|b\n# c", "<script>"]
    rows = cells(model_card(record), "Accuracy")
    assert [row[0] for row in rows] == [r"a\|b \# c", r"\<script\>"]


def test_the_commands_of_the_card_are_commands(tiny_run):
    commands = card_of(tiny_run).split("```")[1].strip().splitlines()
    verbs = [line.split()[1] for line in commands if line.startswith("securesgd ")]
    assert verbs == ["check", "certify", "train", "predict"]
    for verb in verbs:
        assert run_here(verb, "--help").returncode == 0


def test_a_run_on_a_table_says_what_its_columns_may_move_by(tmp_path):
    schema = 'target = "y"\nclasses = ["n", "p"]\n[columns.age]\nminimum = 0\nmaximum = 120\n'
    schema += "[columns.weight]\nminimum = 0\nmaximum = 200\n"
    (tmp_path / "t.schema.toml").write_text(schema)
    rows = [f"{i % 100},{(7 * i) % 150},{'np'[i % 100 > 50]}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["age,weight,y", *rows]))
    settings = ("--set", "steps=5", "--set", "accountant=rdp")
    options = ("--dataset", tmp_path / "t.csv", "--method", "dp-ibp", "--out", tmp_path / "run", *settings)
    assert run_here("train", *options).returncode == 0
    assert run_here("certify", tmp_path / "run").returncode == 0
    assert run_here("report", tmp_path / "run").returncode == 0
    card = card_of(tmp_path / "run")
    assert dict(cells(card, "Data"))["read as"].endswith("public bounds of the columns age, weight")
    assert "| column | range | may move by |" in card
    assert re.search(r"\| age \| 0 to 120 \| [\d.e-]+ \|", card)
    shutil.rmtree(tmp_path / "run")
