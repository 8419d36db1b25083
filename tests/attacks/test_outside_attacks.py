"""Attacks from outside, by a row of the table, an import path or a function: measured like the built-in ones."""

import csv
import subprocess
import sys

import pytest
import torch
from torch import nn

from securesgd.attacks.craft import craft
from securesgd.attacks.evaluate import EvaluationSettings, evaluate_run
from securesgd.attacks.losses import LOSSES
from securesgd.attacks.sanity_checks import probe_attack
from securesgd.attacks.settings import (
    _LOSSES,
    ATTACKS,
    PAPER_ATTACKS,
    AttackSettings,
    attack_grid,
    attack_settings,
    uses_gradients,
)
from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.run_training import train_run
from tests.attacks import outside_attack
from tests.attacks.outside_attack import far_outside, not_numbers, signed_gradient
from tests.command_line import run_here

PATH = "tests.attacks.outside_attack:signed_gradient"
MEASURED = EvaluationSettings(draws=100, certify_draws=0)
FAST = ("--examples", "20", "--draws", "50", "--certify-draws", "50", "--no-probes")


@pytest.fixture
def few(images):
    return images[0][:40], images[1][:40]


def rows(folder):
    return list(csv.DictReader((folder / "attacks.csv").open()))


def test_a_row_and_an_import_path_are_choices_rows_and_lines_of_the_report(tmp_path, monkeypatch):
    monkeypatch.setitem(ATTACKS, "my-attack", {"function": signed_gradient, "steps": 1})
    folder = tmp_path / "run"
    train_run(run_config("digits", "secure-sgd", steps=20, copies=1, epsilon=8.0), folder)
    result = run_here("attack", str(folder), "--attack", f"my-attack,{PATH}", "--budget", "0.2", *FAST)
    assert result.returncode == 0, result.stderr
    assert "my-attack" in result.stdout
    assert {row["attack"] for row in rows(folder)} == {"my-attack", PATH}
    assert len(rows(folder)) == 40
    unknown = run_here("attack", str(folder), "--attack", "my-atack")
    assert unknown.returncode == 2
    assert "did you mean 'my-attack'?" in unknown.stderr
    assert "package.module:function" in unknown.stderr
    assert run_here("report", str(folder), "--out", str(tmp_path / "report.html")).returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert "<td>my-attack</td>" in page
    assert f"<td>{PATH}</td>" in page


def test_an_attack_from_outside_is_as_strong_as_its_built_in_twin_and_reproducible(plain, noisy, few, tmp_path):
    for model, folder in ((plain, tmp_path / "plain"), (noisy, tmp_path / "noisy")):
        folder.mkdir()
        attacks = attack_grid([signed_gradient, "fgsm"], 0.2)
        evaluation = evaluate_run(folder, model, *few, attacks, MEASURED, keep_images=True)
        own, fgsm = (cell["summary"]["accuracy"]["share"] for cell in evaluation.cells.values())
        assert own == pytest.approx(fgsm, abs=0.3)
        assert own < 0.8
        first = rows(folder)
        evaluate_run(folder, model, *few, attacks, MEASURED, again=True)
        assert rows(folder) == first
    assert {row["attack"] for row in first} == {PATH, "fgsm"}


def test_targets_are_aimed_at(plain, few):
    crafted = craft(plain, *few, attack_settings(signed_gradient, 0.4, target="3"))
    assert crafted.labels.eq(3).all()
    with torch.no_grad():
        assert (plain(crafted.images).argmax(1) == 3).float().mean() > 0.2


@pytest.mark.parametrize("attack", [far_outside, not_numbers])
def test_images_outside_the_budget_and_not_numbers_gain_nothing_and_are_named(plain, few, tmp_path, attack):
    evaluation = evaluate_run(tmp_path, plain, *few, attack_grid(attack, 0.01), MEASURED)
    assert "left-the-budget" in [warning.name for warning in evaluation.warnings]
    (cell,) = evaluation.cells.values()
    assert cell["outside"] == cell["attacked"] > 30
    assert cell["summary"]["accuracy"]["share"] > cell["summary"]["clean_accuracy"]["share"] - 0.2
    assert all(float(row["size"]) <= 0.01 + 1e-6 for row in rows(tmp_path))


def test_an_attack_that_does_nothing_is_suspicious_even_if_it_leaves_the_range(plain, few):
    assert [w.name for w in probe_attack(plain, *few, attack_settings(not_numbers, 0.1))] == [
        "whole-range-does-not-break"
    ]
    assert not uses_gradients(PATH)
    assert uses_gradients("madry")


def wrong_shape(model, images, labels, settings, generator):
    return images[:, :, :4]


def no_tensor(model, images, labels, settings, generator):
    return None


def fails(model, images, labels, settings, generator):
    raise ValueError("first line\nsecond line")


def trains(model, images, labels, settings, generator):
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    return images


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (wrong_shape, r"wrong_shape' returned shape \[40, 1, 4, 8\]; valid: a tensor of shape \[40, 1, 8, 8\]"),
        (no_tensor, r"no_tensor' returned NoneType; valid: a tensor"),
        (fails, r"fails' failed with ValueError: first line$"),
        (trains, r"trains' changed the model's weights"),
    ],
)
def test_functions_that_are_no_attacks_are_refused_in_one_line(few, attack, message):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(InvalidInputError, match=message):
        craft(model, *few, attack_settings(attack, 0.1))


def test_an_attack_may_leave_the_model_in_training_mode_and_change_its_copies(few):
    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer(x.flatten(1))

    def meddles(model, images, labels, settings, generator):
        model.train()
        images.zero_()
        labels.zero_()
        return images

    model, before = Recorder().eval(), few[0].clone()
    craft(model, *few, attack_settings(meddles, 0.1))
    assert not model.training
    assert torch.equal(few[0], before)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("tests.attacks.outside_attack:missing", "has no function missing"),
        ("no.such.module:attack", "cannot be imported"),
        (lambda *_: None, "has no name to record"),
        (7, "has no name to record"),
    ],
)
def test_attacks_that_cannot_be_had_are_refused(attack, message):
    with pytest.raises(InvalidInputError, match=message):
        attack_settings(attack, 0.1)


def test_only_attack_settings_imports_a_path():
    """Settings made of a record in a run folder do not run code that the folder names."""
    with pytest.raises(InvalidInputError, match="unknown attack"):
        AttackSettings(attack=PATH, budget=0.1)
    assert attack_settings(PATH, 0.1).function is outside_attack.signed_gradient
    with pytest.raises(InvalidInputError, match=r"the paper has no attack 'tests\."):
        attack_settings(PATH, 0.1, protocol="as-published")


def test_the_grid_takes_names_lists_and_budgets():
    names = [(one.attack, one.budget) for one in attack_grid("mim, fgsm,mim", [0.1, 0.2])]
    assert names == [("mim", 0.1), ("mim", 0.2), ("fgsm", 0.1), ("fgsm", 0.2)]
    assert [one.attack for one in attack_grid("all", 0.1)] == list(PAPER_ATTACKS)
    assert [one.attack for one in attack_grid(["auto", PATH], 0.1)] == ["auto", PATH]
    for attacks, budget, message in ((" ,", 0.1, "no attack is given"), ("fgsm", [], "no budget is given")):
        with pytest.raises(InvalidInputError, match=message):
            attack_grid(attacks, budget)
    with pytest.raises(InvalidInputError, match="unknown setting 'stesp': did you mean 'steps'"):
        attack_settings("mim", 0.1, stesp=3)


def test_the_table_is_read_without_torch_and_knows_the_losses():
    code = (
        "import securesgd.attacks.settings as s, sys; s.attack_grid('all,auto', 0.1); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert tuple(LOSSES) == _LOSSES


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(12,), (3, 4)], ids=["vector", "sequence"])
def test_inputs_that_are_not_images_can_be_attacked(shape, norm, tmp_path):
    from securesgd.report.gallery import draw_gallery

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    inputs = torch.rand(30, *shape)  # the model is in training mode: one example would not do for BatchNorm
    targets = model(inputs).argmax(1)
    targets = model.eval()(inputs).argmax(1)
    model.train()
    buffers = [buffer.clone() for buffer in model.buffers()]
    attacks = attack_grid("madry,square,auto", 0.3, norm=norm, steps=5, queries=10)
    evaluation = evaluate_run(tmp_path, model, inputs, targets, attacks, MEASURED, examples=20)
    assert model.training
    assert all(torch.equal(now, before) for now, before in zip(model.buffers(), buffers, strict=True))
    for cell in evaluation.cells.values():
        assert cell["summary"]["examples"] == 20
        assert cell["summary"]["clean_accuracy"]["share"] == 1
    assert draw_gallery(tmp_path, evaluation, inputs, dataset="vectors") is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), r"returns shape \[1, 1\] for one example; valid: logits"),
        (nn.LSTM(8, 4), "do not fit the model|returns tuple"),
        (nn.Linear(7, 3), "do not fit the model: inputs of shape"),
    ],
    ids=["one-logit", "tuple", "other-inputs"],
)
def test_models_that_are_no_classifiers_are_refused_in_one_line(model, message, few, tmp_path):
    with pytest.raises(InvalidInputError, match=message):
        evaluate_run(tmp_path, model, *few, attack_grid("fgsm", 0.1), MEASURED)
    assert list(tmp_path.iterdir()) == []
