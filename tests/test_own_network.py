"""A network of the user's own is first class: the same run folder, from Python and from the command line."""

import json
import shutil

import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.data.load import load_data
from tests.command_line import run_here
from tests.forked import run_forked

SMALL = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 64, "steps": 3, "accountant": "rdp"}
MODULE = """
import torch
from torch import nn

def mine(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, classes))

def other(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.GELU(), nn.Linear(13, classes))

def not_a_network():
    return 3
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A file with networks that is no part of the package."""
    path = tmp_path_factory.mktemp("outside") / "my_networks.py"
    path.write_text(MODULE)
    return path


@pytest.fixture(scope="module")
def trained(outside, tmp_path_factory):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 10))
    model = ss.NoisyNetwork(net, (1, 8, 8), radius_per_std=0.05, redistribution="learned", start="prior")
    folder = tmp_path_factory.mktemp("own") / "run"
    return ss.train(model, load_data("digits"), out=str(folder), network=f"{outside}:mine", **SMALL)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained.path, tmp_path / "run")


def test_the_run_folder_is_complete_and_says_what_was_trained(trained, outside):
    names = {file.name for file in trained.path.iterdir()}
    assert names == {
        "config.toml", "model.safetensors", "model.json", "ledger.jsonl", "metrics.jsonl", "environment.json",
        "redistribution.json", "redistribution.png", "MODEL_CARD.md",
    }  # fmt: skip
    record = json.loads((trained.path / "model.json").read_text())
    assert (record["network"], record["method"], record["classes"]) == (f"{outside}:mine", "secure-sgd", 10)
    assert trained.config.robustness.unit == 0.05
    assert trained.config.way == "learned"
    assert trained.model.sensitivity("linf").upper == pytest.approx(20, rel=1e-6)
    assert str(trained.privacy) == trained.privacy.in_words


def test_the_same_verbs_from_python_and_from_the_command_line(copied, outside):
    run = ss.load_run(copied, network=f"{outside}:mine")
    run.certify(examples=6, draws=60, selection_draws=10)
    run.attack(attacks="fgsm", budget=0.05, examples=4, eot=2, draws=20, certify_draws=20, sanity_checks=False)
    run.report()
    assert {"certificates.csv", "attacks.csv", "report.html"} <= {file.name for file in copied.iterdir()}
    page = (copied / "report.html").read_text()
    assert "unknown" not in page[: page.index("</h1>")]
    network = ("--network", f"{outside}:mine")
    for command in (
        ("certify", copied, "--draws", "60", "--selection-draws", "10", "--examples", "8", *network),
        ("attack", copied, "--attack", "mim", "--budget", "0.05", "--examples", "4", "--eot", "2", "--steps", "2",
         "--draws", "20", "--certify-draws", "20", "--no-probes", *network),
        ("report", copied),
    ):  # fmt: skip
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
    rows = (copied / "certificates.csv").read_text().splitlines()
    assert len(rows) == 1 + 8


def test_a_fresh_process_loads_and_predicts(trained, outside):
    code = (
        "import sys, securesgd as ss\n"
        f"run = ss.load_run({str(trained.path)!r}, network={f'{outside}:mine'!r})\n"
        "print(run.predict(run.data.test_inputs[0]))"
    )
    result = run_forked(code)
    assert result.stdout.startswith("Prediction(label="), result.stderr


def test_a_module_or_a_function_rebuilds_it_and_is_left_alone(trained):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 10))
    before = net[1].weight.detach().clone()
    for source in (net, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 10))):
        run = ss.load_run(trained.path, network=source)
        for name, tensor in trained.model.state_dict().items():
            assert torch.equal(tensor, run.model.state_dict()[name])
    assert torch.equal(net[1].weight, before)


def test_what_is_not_the_trained_network_is_refused(trained, outside):
    for source, words in (
        (None, "has a network of its own"),
        (f"{outside}:other", "another structure"),
        (f"{outside}:not_a_network", "valid: a torch.nn.Module"),
        (f"{outside}:absent", "has no function absent"),
        ("no.such.module:f", "cannot be imported"),
        ("tanh-cnn-x", "valid: package.module:function"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)), "another structure"),
    ):
        with pytest.raises(ss.InvalidInputError, match=words):
            ss.load_run(trained.path, network=source)


def test_a_path_in_a_folder_is_not_imported_by_itself(copied, tmp_path):
    """A run folder may come from anybody: what its files name is not executed."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\ndef mine(shape, classes): ...\n")
    for name in ("config.toml", "model.json"):
        text = (copied / name).read_text()
        (copied / name).write_text(text.replace("my_networks.py:mine", "trap.py:mine"))
    for command in (
        ("certify", copied),
        ("attack", copied),
        ("report", copied),
        ("train", "--resume", "--out", copied),
    ):
        run_here(*command)
    assert not (tmp_path / "sprung").exists()


def test_data_in_memory_and_no_test_set(tmp_path):
    data = load_data("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    run = ss.train(net, (data.train_inputs, data.train_targets), out=tmp_path / "run", **SMALL)
    assert run.config.method == "dpsgd"
    assert run.test_accuracy is None
    run.report()
    with pytest.raises(ss.InvalidInputError, match="data in memory"):
        run.attack(budget=0.1)
    run.attack((data.test_inputs, data.test_targets), "fgsm", budget=0.1, examples=4, draws=10)
    with pytest.raises(ss.InvalidInputError, match="no interval certificates to search"):
        run.falsify()
    with pytest.raises(ss.InvalidInputError, match="nothing to certify by smoothing"):
        run.certify((data.test_inputs, data.test_targets), family="smoothing")
    loaded = ss.load_run(tmp_path / "run", network=net, dataset="digits")
    assert loaded.data.name == "digits"
    again = ss.train(net, (data.train_inputs, data.train_targets), out=tmp_path / "run", resume=True, **SMALL)
    assert again.path == run.path


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    data = load_data("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for model, changes, words in (
        (net, {"epsilom": 1.0}, "unknown setting 'epsilom'.*epsilon"),
        (net, {"network": "mine"}, "valid: an import path"),
        (ss.NoisyNetwork(net, (1, 8, 8)), {}, "radius_per_std is None"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)), {}, "use GroupNorm"),
    ):
        with pytest.raises(ss.InvalidInputError, match=words):
            ss.train(model, data, out=tmp_path / "run", **SMALL | changes)
        assert not (tmp_path / "run").exists()
    ss.train(net, data, out=tmp_path / "run", **SMALL)
    with pytest.raises(ss.InvalidInputError, match="not empty"):
        ss.train(net, data, out=tmp_path / "run", **SMALL)
    with pytest.raises(ss.InvalidInputError, match="other settings: steps = 3"):
        ss.train(net, data, out=tmp_path / "run", resume=True, **SMALL | {"steps": 4})


def _small_model():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 10))
    return ss.NoisyNetwork(net, (1, 8, 8), radius_per_std=0.05)


_INPUTS, _LABELS = torch.rand(80, 1, 8, 8), torch.arange(80) % 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": (torch.rand(80, 1, 9, 9), _LABELS)}, r"inputs have shape \[1, 9, 9\]; valid: \[1, 8, 8\]"),
        ({"data": ((255 * _INPUTS).to(torch.uint8), _LABELS)}, "the model does not take inputs .*uint8"),
        ({"data": (_INPUTS, _LABELS[:, None])}, r"the loss cannot be computed .* targets of shape \[2, 1\]"),
        ({"test": (torch.rand(5, 1, 9, 9), _LABELS[:5])}, r"test inputs have shape \[1, 9, 9\]; valid: \[1, 8, 8\]"),
        ({"model": "a text"}, "model is a str; valid: a torch.nn.Module"),
        ({"loss": nn.functional.cross_entropy}, "one loss per row"),
        ({"loss": "cross-entropy"}, "loss is a str; valid: a function"),
        ({"optimizer": "adam"}, "optimizer is a str; valid: a function"),
        ({"on_step": 3}, "on_step is a int; valid: a function"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_folder_is_made(change, words, tmp_path):
    arguments = {"model": _small_model(), "data": (_INPUTS, _LABELS), "out": tmp_path / "run"} | SMALL | change
    with pytest.raises(ss.InvalidInputError, match=words):
        ss.train(arguments.pop("model"), arguments.pop("data"), **arguments)
    assert not (tmp_path / "run").exists()


def test_an_input_shape_is_whole_numbers():
    with pytest.raises(ss.InvalidInputError, match="input_shape is 64; valid: whole numbers"):
        ss.NoisyNetwork(nn.Flatten(), 64)


def test_verbs_refuse_a_test_set_or_setting_that_does_not_fit(trained):
    digits = load_data("digits")
    inputs, labels = digits.test_inputs[:5], digits.test_targets[:5]
    for verb in (trained.certify, trained.attack):
        with pytest.raises(ss.InvalidInputError, match=r"test inputs have shape \[1, 9, 9\]"):
            verb((torch.rand(5, 1, 9, 9), labels))
        with pytest.raises(ss.InvalidInputError, match="valid: 0 to 9"):
            verb((inputs, labels + 10))
        with pytest.raises(ss.InvalidInputError, match=r"torch\.float32"):
            verb((inputs, labels.float()))
    with pytest.raises(ss.InvalidInputError, match="'drws' of certificates: did you mean 'draws'"):
        trained.certify(drws=10)
    with pytest.raises(ss.InvalidInputError, match="did you mean 'draws'"):
        trained.predict(inputs, drws=10)
    with pytest.raises(ss.InvalidInputError, match="'step' of a search: did you mean 'steps'"):
        trained.falsify(step=3)
    with pytest.raises(ss.InvalidInputError, match="inputs are a str"):
        trained.predict("image.png")
    with pytest.raises(ss.InvalidInputError, match="budget must be finite"):
        trained.attack(attacks="fgsm", budget="much")
    with pytest.raises(ss.InvalidInputError, match="the attack 5 has no name"):
        trained.attack(attacks=5)


def test_a_check_is_about_the_test_set_of_the_certificates(copied, outside):
    run = ss.load_run(copied, network=f"{outside}:mine")
    run.certify(examples=2, draws=20, selection_draws=5)
    other = load_data("digits")
    with pytest.raises(ss.InvalidInputError, match="are about another test set"):
        run.falsify((other.test_inputs.flip(0), other.test_targets.flip(0)))


def test_loaded_data_are_not_tensors(copied, outside):
    with pytest.raises(ss.InvalidInputError, match=r"dataset is a tuple; .*run.certify\(test_set\)"):
        ss.load_run(copied, network=f"{outside}:mine", dataset=(_INPUTS, _LABELS))
