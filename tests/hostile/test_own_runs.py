"""Attempts to break what is promised about runs with a user's own model, optimizer, loss, rules and attacks."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.attacks.settings import ATTACKS, AttackSettings
from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.config import run_config
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.report.page import report
from securesgd.report.run_record import read_run
from securesgd.run_training import train_run
from securesgd.runtime.tensors import Checkpoint, load_tensors, save_tensors
from securesgd.theory.certificates import CERTIFICATE_RULES, CertificateRule, rule_caveat

SMALL = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 16, "steps": 4, "accountant": "rdp"}
FEW = {"draws": 40, "selection_draws": 10, "failure_prob": 0.1}


def own_network(activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 3))


def own_data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(60, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0.5).long() + (inputs[:, 1] > 0.7).long()


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    model = ss.NoisyNetwork(own_network(), (6,), radius_per_std=0.2)
    return ss.train(model, own_data(), test=own_data(1), out=tmp_path_factory.mktemp("own") / "run", **SMALL).path


@pytest.fixture
def loaded(own_run, tmp_path):
    folder = shutil.copytree(own_run, tmp_path / "run")
    return ss.load_run(folder, network=own_network())


# One noise, two questions.


# What a run folder says.


def test_an_early_stopped_run_states_all_that_it_reserved(tmp_path):
    settings = SMALL | {"steps": 8, "block_steps": 3}
    run = ss.train(own_network(), own_data(), out=tmp_path / "run", on_step=lambda r: r.step < 4, **settings)
    record = json.loads((run.path / "model.json").read_text())
    full = ss.train(own_network(), own_data(), out=tmp_path / "six", **settings | {"steps": 6})
    assert load_tensors(run.path / "model.safetensors").record["steps"] == 4
    assert record["statement"]["epsilon"] == run.privacy.epsilon == full.privacy.epsilon
    again = ss.train(own_network(), own_data(), out=tmp_path / "run", resume=True, **settings)
    assert again.privacy == run.privacy
    assert torch.equal(again.model[0].weight, run.model[0].weight)


def test_a_ledger_with_lines_cut_off_is_no_privacy_statement(own_run, tmp_path):
    folder = tmp_path / "run"
    ss.train(own_network(), own_data(), out=folder, **SMALL | {"block_steps": 1})
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-2]))
    run = ss.load_run(folder, network=own_network())
    with pytest.raises(DamagedFileError, match="ledger"):
        _ = run.privacy


def test_a_finished_folder_is_not_resumed_with_another_network(tmp_path):
    ss.train(own_network(), own_data(), out=tmp_path / "run", **SMALL)
    with pytest.raises(InvalidInputError, match="structure"):
        ss.train(own_network(nn.Tanh), own_data(), out=tmp_path / "run", resume=True, **SMALL)


@pytest.mark.parametrize(("name", "line"), [("network", None), ("dataset", None), ("redistribution", "robustness")])
def test_resuming_imports_no_path_that_only_the_folder_names(name, line, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    config = run_config("digits", "secure-sgd", **{"training.steps": 2, "training.noise_seed": 1})
    changed = {name: f"{evil}:function"}
    other = replace(config, robustness=replace(config.robustness, **changed)) if line else replace(config, **changed)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(other.to_toml())
    with pytest.raises(InvalidInputError):
        train_run(config, folder, resume=True)
    assert not (tmp_path / "imported").exists()


# Certificates of a run.


def test_certificates_of_weights_that_are_not_the_runs_are_not_stored(loaded):
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(2.0)
    for verb in (partial(loaded.certify, **FEW), partial(loaded.attack, attacks="fgsm", draws=20, certify_draws=0)):
        with pytest.raises(InvalidInputError, match="weights in memory"):
            verb(own_data(1), examples=4)
    assert not (loaded.path / "certificates.csv").exists()
    assert not (loaded.path / "attacks.csv").exists()


def test_certificates_of_a_network_that_was_rebuilt_in_memory_are_not_stored(loaded):
    loaded.model.network[1][1] = nn.Tanh().eval()
    with pytest.raises(InvalidInputError, match="structure"):
        loaded.certify(own_data(1), examples=4, **FEW)


class Quiet(nn.ReLU):
    """Prints itself as torch's ReLU and computes something else."""

    def forward(self, x):
        return x.sigmoid()

    def _get_name(self):
        return "ReLU"


def test_a_network_that_looks_the_same_and_computes_something_else_is_refused(own_run):
    with pytest.raises(InvalidInputError, match="computes something else"):
        ss.load_run(own_run, network=own_network(Quiet))


def test_a_swapped_weight_file_is_no_longer_the_runs(loaded):
    weights = load_tensors(loaded.path / "model.safetensors")
    loaded.certify(own_data(1), examples=4, **FEW)
    changed = {name: tensor * 1.5 if name.endswith("weight") else tensor for name, tensor in weights.tensors.items()}
    save_tensors(loaded.path / "model.safetensors", Checkpoint(changed, weights.record))
    with pytest.raises((DamagedFileError, InvalidInputError)):
        ss.load_run(loaded.path, network=own_network()).certify(own_data(1), examples=8, **FEW)


def test_certificates_and_attacks_of_two_test_sets_are_not_mixed(loaded):
    loaded.certify(own_data(1), examples=4, **FEW)
    attack = partial(loaded.attack, attacks="fgsm", draws=20, certify_draws=0, sanity_checks=False)
    attack(own_data(1), examples=4)
    before = (loaded.path / "attacks.csv").read_bytes()
    with pytest.raises(DamagedFileError, match="other data"):
        loaded.certify(own_data(2), examples=8, **FEW)
    with pytest.raises((DamagedFileError, InvalidInputError), match="other data"):
        attack(own_data(2), examples=8)
    assert (loaded.path / "attacks.csv").read_bytes() == before
    attack(own_data(2), examples=8, again=True)
    attack(own_data(2), examples=9)


def test_the_report_says_so_if_results_are_about_another_test_set(loaded):
    attack = partial(loaded.attack, attacks="fgsm", draws=20, certify_draws=0, sanity_checks=False, examples=4)
    loaded.certify(own_data(1), examples=4, **FEW)
    attack(own_data(1))
    assert not [line for line in read_run(loaded.path).missing if "test set" in line]
    loaded.certify(own_data(2), examples=4, again=True, **FEW)
    attack(own_data(2), again=True)
    lines = [line for line in read_run(loaded.path).missing if "test set" in line]
    assert [line.split()[0] for line in lines] == ["certificates.json", "attacks.json"]
    report([loaded.path], loaded.path / "report.html")
    assert "other examples than" in (loaded.path / "report.html").read_text()


# Predictions.


def test_predictions_for_anybodys_inputs_have_fresh_noise(loaded):
    """A seed is for tests that must repeat, and every prediction under it says that it is no evidence for anybody's."""
    fresh, seeded = (loaded.predict(own_data()[0][0], seed=seed) for seed in (None, 0))
    assert (fresh.seeded, fresh.noise) == (False, "fresh; for any input")
    assert (seeded.seeded, seeded.noise) == (True, "seeded; for a test set fixed beforehand")
    assert "nothing is proven" in seeded.guarantee
    assert "nothing is proven" not in fresh.guarantee
    with pytest.raises(InvalidInputError, match="seed"):
        loaded.predict(own_data()[0][0], seed=-1)


def test_a_radius_is_about_the_input_that_was_given(loaded):
    """Rounded to single precision first, it would be about a point up to 3e-8 away."""
    x = own_data()[0][:2].double() / 3
    seen, original = [], loaded.model.rounding
    loaded.model.rounding = lambda inputs: seen.append(inputs.dtype) or original(inputs)
    loaded.predict(x, **FEW)
    assert seen[-1] == torch.float64


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 255.0])
def test_inputs_out_of_range_get_no_radius(value, loaded):
    x = own_data()[0][0].clone()
    x[2] = value
    with pytest.raises(InvalidInputError, match="input 0"):
        loaded.predict(x)


def test_a_model_without_noise_predicts_no_nan_and_not_in_training_mode(tmp_path):
    plain = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.9), nn.Linear(8, 3))
    run = ss.train(plain, own_data(), out=tmp_path / "run", **SMALL)
    x = own_data()[0][:20]
    labels = [prediction.label for prediction in run.predict(x)]
    run.model.train()
    assert [prediction.label for prediction in run.predict(x)] == labels
    with pytest.raises(InvalidInputError, match="finite"):
        run.predict(torch.full((6,), float("nan")))


# Rules and attacks from outside.


def greedy(p, q, sensitivity, rounding):
    p[:] = 1 - 1e-12
    q[:] = 1e-12
    rounding[:] = 0
    return np.ones_like(p)


def test_a_rule_from_outside_cannot_write_into_the_bounds(loaded):
    inputs, targets = own_data(1)
    with pytest.MonkeyPatch.context() as patch:
        expected = certify(loaded.model, inputs[:4], CertifySettings(seed=0, **FEW))
        patch.setitem(CERTIFICATE_RULES, "greedy", CertificateRule(radius=greedy, is_guarantee=False))
        certificates = certify(loaded.model, inputs[:4], CertifySettings(seed=0, **FEW))
        rows = loaded.certify((inputs, targets), norms=["linf", "l2"], examples=4, **FEW).rows
    assert np.array_equal(certificates.p_lower, expected.p_lower)
    l2 = expected.in_norm("l2", loaded.model)
    assert [row["radius_tight"] for row in rows if row["norm"] == "l2"] == l2.radius["tight"].tolist()


def test_a_rule_named_like_one_of_this_package_is_refused(loaded, monkeypatch):
    monkeypatch.setitem(CERTIFICATE_RULES, "tight", CertificateRule(radius=lambda p, *_: 9 + 0 * p, is_guarantee=True))
    with pytest.raises(InvalidInputError, match="another name"):
        loaded.certify(own_data(1), examples=4, **FEW)


def test_a_guarantee_of_somebody_else_is_not_shown_as_one_of_this_package(monkeypatch):
    monkeypatch.setitem(CERTIFICATE_RULES, "mine", CertificateRule(radius=greedy, is_guarantee=True))
    assert "from outside" in rule_caveat("mine")
    assert [rule_caveat(name) for name in ("tight", "classic")] == ["", ""]


def test_an_attack_from_outside_gets_a_model_of_its_own(loaded):
    """Hooks and modes that it leaves behind would change what is measured after it."""

    def sabotage(model, x, labels, settings, generator):
        for module in model.modules():
            module.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
        model.train()
        model.noisy.given = torch.zeros(len(x), *model.output_shape)
        return x

    rows = {}
    for name in ("first", "second"):
        folder = shutil.copytree(loaded.path, loaded.path.parent / name)
        run = ss.load_run(folder, network=own_network())
        attacks = ["fgsm"] if name == "first" else [sabotage, "fgsm"]
        run.attack(own_data(1), attacks, examples=6, draws=20, certify_draws=0, sanity_checks=False)
        lines = (folder / "attacks.csv").read_text().splitlines()
        rows[name] = [line for line in lines if line.startswith("fgsm-")]
    assert rows["first"] == rows["second"] != []


def test_an_attack_named_like_one_of_this_package_is_refused(monkeypatch):
    with pytest.raises(InvalidInputError, match="another name"):
        AttackSettings(attack="auto", budget=0.1, function=lambda *_: None)
    monkeypatch.setitem(ATTACKS, "fgsm", {"function": lambda model, x, *_: x})
    with pytest.raises(InvalidInputError, match="another name"):
        AttackSettings(attack="fgsm", budget=0.1)


# Networks that own their noise.


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.noisy.noise.std.mul_(0.01),
        lambda model: model.set_noise(np.linspace(0.01, 2, model.units)),
        lambda model: setattr(model, "radius_per_std", 100.0),
        lambda model: model.project(),
    ],
)
def test_a_certificate_uses_the_noise_that_the_weights_have_now(change):
    model = ss.NoisyNetwork(own_network(), (6,), radius_per_std=0.2).eval()
    change(model)
    certificates = certify(model, own_data()[0][:2], CertifySettings(seed=0, **FEW))
    expected = float(np.sqrt((1 / model.noisy.noise.std.double().numpy() ** 2).sum()))
    assert certificates.sensitivity.upper == pytest.approx(expected, rel=1e-6)
    assert certificates.sensitivity.upper >= expected
