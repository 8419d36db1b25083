"""A run folder under attack: cells that can be stopped, extended and repeated, and a sandwich that notices lies."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.attacks import evaluate, measurement
from securesgd.attacks.cells import Cells, cell_name, load_images
from securesgd.attacks.craft import craft
from securesgd.attacks.evaluate import EvaluationSettings, evaluate_run
from securesgd.attacks.settings import attack_settings
from securesgd.certificates.sensitivity import fingerprint
from securesgd.errors import DamagedFileError, InvalidInputError

QUICK = {"steps": 3, "eot": 6, "restarts": 1, "queries": 20}
MEASURED = EvaluationSettings(draws=150, certify_draws=150)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(evaluate, "PART", 15)


@pytest.fixture
def few(images):
    return images[0][:40], images[1][:40]


def grid(*attacks, budgets=(0.05, 0.15)):
    return [attack_settings(attack, budget, **QUICK) for attack in attacks for budget in budgets]


def evaluated(folder, model, data, attacks=None, **rest):
    rest = {"probes": False, "settings": MEASURED} | rest
    return evaluate_run(folder, model, *data, attacks or grid("ifgsm"), rest.pop("settings"), **rest)


def table(folder):
    return list(csv.DictReader((folder / "attacks.csv").open()))


def test_both_accuracies_intervals_and_the_sandwich(noisy, few, tmp_path):
    evaluation = evaluated(tmp_path, noisy, few, grid("fgsm", "madry"))
    assert evaluation.holds
    assert len(evaluation.cells) == 4
    assert len(table(tmp_path)) == 4 * 40
    for cell in evaluation.cells.values():
        summary = cell["summary"]
        certified = summary["certified_accuracy"]["tight"]
        assert certified["clean"]["share"] <= summary["accuracy"]["share"] <= summary["clean_accuracy"]["share"]
        assert certified["attacked"]["share"] <= summary["accuracy"]["share"]
        assert summary["accuracy"]["lower"] < summary["accuracy"]["upper"]
    small, large = (cell["summary"] for cell in list(evaluation.cells.values())[2:])
    assert small["certified_accuracy"]["tight"]["clean"]["share"] > 0.1
    assert large["accuracy"]["share"] < small["accuracy"]["share"] - 0.1
    assert set(json.loads((tmp_path / "attacks.json").read_text())["cells"]) == set(evaluation.cells)


def test_inflated_certificates_are_caught(noisy, few, tmp_path, monkeypatch):
    true = measurement.make_certifier

    def inflated(*arguments):
        certifier = true(*arguments)
        return lambda *request: certifier(*request) | {"tight": np.full(len(request[0]), 0.5)}

    monkeypatch.setattr(measurement, "make_certifier", inflated)
    evaluation = evaluated(tmp_path, noisy, few, grid("madry", budgets=(0.3,)))
    assert not evaluation.holds
    (cell,) = evaluation.cells.values()
    assert len(cell["summary"]["sandwich"]["contradictions"]) > 10


def test_an_interrupted_evaluation_ends_with_the_same_rows(noisy, few, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    evaluated(whole, noisy, few)

    def stop(attack, share):
        if attack.budget == 0.15 and share > 0.75:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluated(broken, noisy, few, on_progress=stop)
    assert 40 < len(table(broken)) < 80
    evaluated(broken, noisy, few)
    assert table(broken) == table(whole)


def test_what_is_there_is_not_measured_again(noisy, few, tmp_path, monkeypatch):
    first = evaluated(tmp_path, noisy, few)
    before = (tmp_path / "attacks.csv").read_bytes()

    def never(*_, **__):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(measurement, "attack_examples", never)
        second = evaluated(tmp_path, noisy, few)
        with pytest.raises(AssertionError, match="measured again"):
            evaluated(tmp_path, noisy, few, again=True)
    assert second.cells == first.cells
    assert second.images == {}
    assert (tmp_path / "attacks.csv").read_bytes() == before
    evaluated(tmp_path, noisy, few, again=True)
    assert (tmp_path / "attacks.csv").read_bytes() == before  # replaced, by the same numbers


def test_cells_of_other_settings_stand_side_by_side(noisy, few, tmp_path):
    evaluated(tmp_path, noisy, few, grid("ifgsm", budgets=(0.1,)))
    more = [replace(attack, steps=5) for attack in grid("ifgsm", budgets=(0.1,))]
    evaluated(tmp_path, noisy, few, more)
    evaluated(
        tmp_path, noisy, few, grid("ifgsm", budgets=(0.1,)), settings=EvaluationSettings(draws=100, certify_draws=0)
    )
    rows = table(tmp_path)
    assert len(rows) == 3 * 40
    assert len({row["cell"] for row in rows}) == 3


def test_more_examples_later(noisy, few, tmp_path):
    evaluated(tmp_path, noisy, few, examples=15)
    first = table(tmp_path)
    evaluation = evaluated(tmp_path, noisy, few)
    later = table(tmp_path)
    assert [row for row in later if row in first] == first
    assert {cell["summary"]["examples"] for cell in evaluation.cells.values()} == {40}
    again = evaluated(tmp_path, noisy, few, examples=15)  # fewer: of those asked for
    assert {cell["summary"]["examples"] for cell in again.cells.values()} == {15}


def test_kept_images_are_those_that_were_measured(plain, few, tmp_path):
    evaluation = evaluated(tmp_path, plain, few, grid("ifgsm", budgets=(0.3,)), keep_images=True)
    (name,) = evaluation.cells
    index, images = load_images(tmp_path, name)
    assert list(index) == list(range(40))
    assert torch.equal(images, evaluation.images[name][1])
    with torch.no_grad():
        wrong = (plain(images).argmax(1) != few[1]).float().mean()
    assert float(wrong) == pytest.approx(1 - evaluation.cells[name]["summary"]["accuracy"]["share"])
    with pytest.raises(DamagedFileError, match="is missing"):
        load_images(tmp_path, "another")


def test_a_model_without_noise_is_certified_by_intervals_if_its_layers_have_bounds(plain, few, tmp_path):
    evaluation = evaluated(tmp_path, plain, few)
    assert evaluation.holds
    for cell in evaluation.cells.values():
        certified = cell["summary"]["certified_accuracy"]
        assert set(certified) == {"tight"}
        assert certified["tight"]["clean"]["share"] <= cell["summary"]["accuracy"]["share"]
    (tmp_path / "other").mkdir()
    softened = nn.Sequential(plain, nn.GroupNorm(2, 10)).eval()
    bare = evaluated(tmp_path / "other", softened, few)
    assert all("certified_accuracy" not in cell["summary"] for cell in bare.cells.values())
    assert all(row["clean_radius"] == "" and row["draws"] == "1" for row in table(tmp_path / "other"))


def test_warnings_are_reported_and_kept(noisy, few, tmp_path):
    published = [attack_settings("ifgsm", budget, protocol="as-published") for budget in (0.05, 0.1)]
    evaluation = evaluated(tmp_path, noisy, few, published, probes=True)
    assert [one.name for one in evaluation.warnings if one.name == "noise-free-gradients"] == ["noise-free-gradients"]
    assert json.loads((tmp_path / "attacks.json").read_text())["suspicions"] == [
        one.json() for one in evaluation.warnings
    ]
    with Cells.open(tmp_path, fingerprint(noisy)) as cells:  # a later attack that is stopped half-way keeps them
        cells.write()
    assert json.loads((tmp_path / "attacks.json").read_text())["suspicions"] == [
        one.json() for one in evaluation.warnings
    ]


def test_attacks_of_an_earlier_call_are_compared_too(plain, few, tmp_path, monkeypatch):
    from securesgd.attacks import harness

    with monkeypatch.context() as patch:  # a gradient attack that finds nothing
        patch.setattr(harness, "craft", lambda m, x, *a, **k: replace(craft(m, x, *a, **k), images=x))
        evaluated(tmp_path, plain, few, grid("ifgsm", budgets=(0.3,)))
    evaluation = evaluated(tmp_path, plain, few, grid("square", budgets=(0.3,)))
    assert [one.name for one in evaluation.warnings] == ["black-box-beats-white-box"]


def test_an_attack_that_breaks_its_rules_is_named(plain, few, tmp_path, monkeypatch):
    from securesgd.attacks import harness

    true = harness.craft
    monkeypatch.setattr(harness, "craft", lambda *a, **k: (m := true(*a, **k)) and replace(m, images=m.images + 1))
    evaluation = evaluated(tmp_path, plain, few, grid("fgsm", budgets=(0.1,)))
    assert [one.name for one in evaluation.warnings] == ["left-the-budget"]


def test_foreign_damaged_or_other_files_are_left_alone(noisy, plain, few, tmp_path):
    evaluated(tmp_path, plain, few)
    with pytest.raises(DamagedFileError, match="other weights"):
        evaluated(tmp_path, noisy, few, settings=EvaluationSettings(certify_draws=0))
    for name in ("attacks.csv", "attacks.json"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text("my,own\n1,2\n")
        with pytest.raises(DamagedFileError, match="is damaged"):
            evaluated(tmp_path, plain, few)
        assert (tmp_path / name).read_text() == "my,own\n1,2\n"
        (tmp_path / name).write_bytes(before)
    evaluated(tmp_path, plain, few)


def test_two_processes_do_not_write_to_one_folder(plain, few, tmp_path):
    with Cells.open(tmp_path, fingerprint(plain)), pytest.raises(InvalidInputError, match="another process"):
        evaluated(tmp_path, plain, few)
    evaluated(tmp_path, plain, few)


def test_data_that_do_not_fit_are_refused(plain, few, tmp_path):
    with pytest.raises(InvalidInputError, match=r"do not fit the model: inputs of shape \[1, 28, 28\]"):
        evaluated(tmp_path, plain, (torch.rand(5, 1, 28, 28), few[1][:5]))
    with pytest.raises(InvalidInputError, match="labels up to 12"):
        evaluated(tmp_path, plain, (few[0][:5], torch.tensor([1, 2, 12, 3, 4])))
    with pytest.raises(InvalidInputError, match="26 classes, the model has 10"):
        evaluated(tmp_path, plain, few, classes=26)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"draws": 0}, {"certify_draws": -1}, {"failure_prob": 1.0}])
def test_bad_settings_are_refused(change):
    with pytest.raises(InvalidInputError, match=next(iter(change))):
        EvaluationSettings(**change)


def test_a_name_tells_cells_apart_and_speed_does_not_change_it():
    one = attack_settings("mim", 0.1)
    assert cell_name(one, {"draws": 5}) == cell_name(replace(one, rows=9), {"draws": 5})
    others = [replace(one, seed=1), replace(one, eot=3), replace(one, momentum=0.5)]
    assert len({cell_name(other, {"draws": 5}) for other in [one, *others]} | {cell_name(one, {"draws": 6})}) == 5
    assert cell_name(one, {}).startswith("mim-linf-0.1-")
