"""A model that always gives one answer is right on the share of that class, proven everywhere and never broken.

Every number it gets is true, and every place that shows one must say what it is worth.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import securesgd as ss
from securesgd.errors import DamagedFileError
from securesgd.report.page import report
from securesgd.run import load_run
from tests.command_line import run_here

BRIGHTNESS = {"cat": 90, "dog": 160}
IMBALANCED, BALANCED = (48, 12), (30, 30)
SETTINGS = {
    "noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 32, "steps": 1, "accountant": "rdp", "learning_rate": 1e-6,
}  # fmt: skip
BOX = "The accuracies of this run say little."


def network(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def prepared(good):
    """A network that answers by brightness, or always `cat`; a step of rate 1e-6 does not change that."""
    model = network((1, 8, 8), 2)
    with torch.no_grad():
        model[1].weight[:] = torch.tensor([[-10.0], [10.0]]) / 64 if good else 0
        model[1].bias[:] = torch.tensor([4.9, -4.9] if good else [9.0, -9.0])
    return model


def image_folder(path, counts):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for (name, brightness), count in zip(BRIGHTNESS.items(), counts, strict=True):
            (path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = (brightness + rng.integers(-20, 20, (8, 8))).astype(np.uint8)
                Image.fromarray(pixels).save(path / split / name / f"{number}.png")
    return path


def trained(place, counts, *, good, noisy=False):
    data, model = image_folder(place / "data", counts), prepared(good)
    if noisy:
        model = ss.NoisyNetwork(model, (1, 8, 8), radius_per_std=0.05)
    return ss.train(model, str(data), out=place / "run", network="tests.test_one_answer:network", **SETTINGS)


CERTIFY = ("--network", "tests.test_one_answer:network", "--examples", "0", "--draws", "100", "--selection-draws", "20")
ATTACK = (
    "--network", "tests.test_one_answer:network", "--attack", "fgsm,ifgsm", "--steps", "2", "--eot", "2",
    "--draws", "50", "--certify-draws", "50", "--budget", "0.02", "--no-probes", "--examples", "0",
)  # fmt: skip


@pytest.fixture(scope="module", params=["plain", "noisy"])
def constant(request, tmp_path_factory):
    """A folder with 80 % cats, and a model that always answers cat."""
    run = trained(tmp_path_factory.mktemp("constant"), IMBALANCED, good=False, noisy=request.param == "noisy")
    for command in (("certify", run.path, *CERTIFY), ("attack", run.path, *ATTACK)):
        assert run_here(*command).returncode == 0
    return run


@pytest.fixture(scope="module", params=[IMBALANCED, BALANCED], ids=["imbalanced", "balanced"])
def good(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("good"), request.param, good=True)


def last_metrics(run):
    return json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])


def test_the_metrics_of_one_answer(constant):
    record = last_metrics(constant)
    assert record["test_accuracy"] == pytest.approx(0.8)
    assert 'answers are "cat"' in record["test_balance"]["warning"]
    assert [entry["recall"] for entry in record["test_balance"]["classes"]] == [1.0, 0.0]
    balance = load_run(constant.path, network=network).test_balance
    assert balance == constant.test_balance
    assert balance.json(["cat", "dog"]) == record["test_balance"]
    assert balance.lines(["cat", "dog"])[1] == "recall: cat: 1.000 of 48, dog: 0.000 of 12"


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_the_terminal_and_json_of_one_answer(command, constant):
    words = (command, constant.path, *(CERTIFY if command == "certify" else ATTACK))
    text = run_here(*words).stdout
    assert text.count("WARNING: ") == 1
    assert 'WARNING: 1.000 of the answers are "cat", though 12 of 60 examples are of other classes' in text
    assert 'of 60; always answering "cat" would be right on 0.800' in text
    assert text.count("recall: cat: 1.000 of 48, dog: 0.000 of 12") == (1 if command == "certify" else 3)
    record = json.loads(run_here(*words, "--json").stdout)
    if command == "certify":
        balances = [entry["balance"] for entry in record.values()]
        assert all(entry["summary"]["accuracy"] == entry["balance"]["accuracy"] for entry in record.values())
    else:
        cells = record["cells"].values()
        balances = [cell["balance"][place] for cell in cells for place in ("clean", "attacked")]
        assert all(cell["summary"]["clean_accuracy"] == cell["balance"]["clean"]["accuracy"] for cell in cells)
        assert all(cell["summary"]["accuracy"] == cell["balance"]["attacked"]["accuracy"] for cell in cells)
    assert len(balances) == (1 if command == "certify" else 4)
    assert all('"cat"' in balance["warning"] for balance in balances)


def test_the_results_of_one_answer_in_python(constant):
    test_set = (constant.data.test_inputs, constant.data.test_targets)
    assert "WARNING: 1.000 of the answers are" in str(constant.certify(test_set, draws=100, selection_draws=20))
    attacked = constant.attack(
        test_set, "fgsm", budget=0.02, eot=2, steps=2, draws=50, certify_draws=50, examples=None, sanity_checks=False
    )
    assert str(attacked).count("WARNING: 1.000 of the answers are") == 1


def test_the_report_of_one_answer(constant, tmp_path):
    assert report([constant.path], tmp_path / "report.html").missing == []
    page = (tmp_path / "report.html").read_text()
    box = page[page.index(BOX) : page.index('<div class="numbers">')]
    assert "answers are &#34;cat&#34;, though 12 of 60 examples are of other classes" in box
    table = page.split("<h2>Accuracy</h2>")[1].split("</table>")[0]
    assert re.findall(r"<td>dog</td><td[^>]*>([\d.]+)<small>of (\d+)", table) == [("0.000", "12")]
    assert (
        len(re.findall(r"0\.000<small>of 12", table)) == 5
    )  # test set, certified, proven, before and after the attack
    report([constant.path, shutil.copytree(constant.path, tmp_path / "other")], tmp_path / "both.html")
    comparison = (tmp_path / "both.html").read_text().split("<article")[0]
    assert comparison.count("the accuracies say little") == 2


def test_nobody_warns_of_a_good_model(good, tmp_path):
    assert last_metrics(good)["test_balance"]["warning"] is None
    assert good.test_balance.accuracy == 1
    for command in (("certify", good.path, *CERTIFY), ("attack", good.path, *ATTACK)):
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
        assert "WARNING" not in result.stdout
        assert "recall: cat: 1.000 of" in result.stdout
        assert 'warning": "' not in run_here(*command, "--json").stdout
    assert report([good.path], tmp_path / "report.html").missing == []
    assert BOX not in (tmp_path / "report.html").read_text()


def test_first_examples_of_one_class_are_remarked(good):
    """A test set sorted by class: the first 20 of it say nothing about dogs, however good the model is."""
    order = good.data.test_targets.argsort(stable=True)
    results = shutil.ignore_patterns("certificates*", "attacks*")
    run = ss.load_run(shutil.copytree(good.path, good.path.with_name("sorted"), ignore=results), network=network)
    test_set = good.data.test_inputs[order], good.data.test_targets[order]
    words = 'WARNING: every one of the 20 examples is of class "0": this says nothing about other classes'
    assert words in str(run.certify(test_set, examples=20))
    assert words in str(run.attack(test_set, "fgsm", examples=20, sanity_checks=False))


def test_runs_of_earlier_versions_have_no_balance(good, tmp_path):
    folder = shutil.copytree(good.path, tmp_path / "old")
    record = last_metrics(good)
    del record["test_balance"]
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    run = load_run(folder, network=network)
    assert (run.test_accuracy, run.test_images, run.test_balance) == (1.0, 60, None)
    assert not [line for line in report([folder], tmp_path / "report.html").missing if "metrics" in line]


@pytest.mark.parametrize("change", [{"test_accuracy": 0.9}, {"test_images": 6}, {"test_balance": {"classes": [3]}}])
def test_an_accuracy_that_its_classes_do_not_give_is_not_believed(change, good, tmp_path):
    folder = shutil.copytree(good.path, tmp_path / "changed")
    (folder / "metrics.jsonl").write_text(json.dumps(last_metrics(good) | change) + "\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged"):
        _ = load_run(folder, network=network).test_accuracy
    assert any("metrics.jsonl cannot be used" in line for line in report([folder], tmp_path / "report.html").missing)


def test_targets_that_are_no_classes_do_not_stop_a_training(tmp_path):
    """A loss of the user's own may have other targets; then there is nothing to count by class."""
    examples = torch.rand(40, 1, 8, 8), torch.rand(40)

    def loss(outputs, targets):
        return (outputs[:, 0] - targets) ** 2

    run = ss.train(prepared(True), examples, test=examples, out=tmp_path / "run", loss=loss, **SETTINGS)
    assert (run.test_accuracy, run.test_balance) == (0, None)
