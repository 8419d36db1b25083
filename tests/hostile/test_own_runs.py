"""Attempts to break what is promised about runs with a user's own model, optimizer, loss, rules and attacks."""

import copy
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

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
from securesgd.training.loop import train

from ..training.conftest import small_data, small_model, small_settings
from ..training.test_loop import InterruptedRunError, stop_at

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


def weighted_loss(outputs, targets, weight):
    return weight * nn.functional.cross_entropy(outputs, targets, reduction="none")


def loss_of(weight):
    return lambda outputs, targets: weighted_loss(outputs, targets, weight)


def decay(rate):
    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: rate**step)


def groups(first, second):
    def optimizer(parameters):
        matrices, vectors = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() == 1]
        chosen = {"matrices": matrices, "vectors": vectors}
        return torch.optim.SGD([{"params": chosen[first], "lr": 0.1}, {"params": chosen[second], "lr": 0.2}])

    return optimizer


class FactorSgd(torch.optim.SGD):
    """SGD with a number that is neither in its groups nor in its state."""

    def __init__(self, parameters, factor):
        super().__init__(parameters, lr=0.1)
        self.factor = factor

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.factor)
        return super().step(closure)


def halve_weights(model, factor=0.5):
    with torch.no_grad():
        model[0].weight.mul_(factor)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"loss": loss_of(1.0)}, {"loss": loss_of(2.0)}),
        ({"loss": partial(weighted_loss, weight=1.0)}, {"loss": partial(weighted_loss, weight=2.0)}),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            {"loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)},
        ),
        ({"loss": lambda o, t: o.sum(1)}, {"loss": lambda o, t: -o.sum(1)}),
        ({"scheduler": decay(0.9)}, {"scheduler": decay(0.8)}),
        ({"optimizer": groups("matrices", "vectors")}, {"optimizer": groups("vectors", "matrices")}),
        ({"optimizer": lambda p: FactorSgd(p, 1.0)}, {"optimizer": lambda p: FactorSgd(p, 2.0)}),
        ({"project": halve_weights}, {"project": partial(halve_weights, factor=0.1)}),
        ({"project": halve_weights}, {}),
    ],
)  # fmt: skip
def test_a_resumed_run_asks_nothing_else_under_the_same_noise(first, second, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), small_settings(), folder, on_step=stop_at(6), **first)
    with pytest.raises(InvalidInputError, match="are not those"):
        train(small_model(), small_data(), small_settings(), folder, resume=True, **second)
    train(small_model(), small_data(), small_settings(), folder, resume=True, **first)


class Temperature(nn.Module):
    """A layer with a number that torch does not print."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x / self.value


def test_a_number_of_an_own_layer_is_part_of_the_question(tmp_path):
    def model(value):
        return nn.Sequential(own_network(), Temperature(value))

    with pytest.raises(InterruptedRunError):
        train(model(1.0), own_data(), small_settings(), tmp_path / "run", on_step=stop_at(6))
    with pytest.raises(InvalidInputError, match="are not those"):
        train(model(2.0), own_data(), small_settings(), tmp_path / "run", resume=True)


class Lookback(torch.optim.SGD):
    """SGD that does something else at every seventh step, by a counter that no checkpoint has."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        if self.count % 7 == 0:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.neg_()
        return super().step(closure)


def test_an_optimizer_that_counts_in_secret_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be saved and resumed"):
        train(small_model(), small_data(), small_settings(), tmp_path / "run", optimizer=lambda p: Lookback(p, lr=0.1))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("of", ["weights", "buffers"])
def test_a_callback_that_changes_the_model_ends_the_run(of, tmp_path):
    """Run again without it, the steps after the last checkpoint would have the same noise at other weights."""
    model = small_model()
    model.register_buffer("shift", torch.zeros(3))

    def meddle(step_report):
        if step_report.step == 6:
            target = model[0].weight.data if of == "weights" else model.shift
            target.add_(1.0)

    with pytest.raises(InvalidInputError, match="on_step changed"):
        train(model, small_data(), small_settings(), tmp_path / "run", on_step=meddle)
    train(model, small_data(), small_settings(), tmp_path / "run", resume=True)
    reference = small_model()
    reference.register_buffer("shift", torch.zeros(3))
    train(reference, small_data(), small_settings(), tmp_path / "reference")
    assert torch.equal(model[0].weight, reference[0].weight)


def test_a_callback_that_leaves_the_model_in_eval_mode_changes_nothing(tmp_path):
    """Dropout would be off until the next resume, and then on again under the same noise."""
    model, reference = small_model(), small_model()
    train(reference, small_data(), small_settings(), tmp_path / "reference")
    train(model, small_data(), small_settings(), tmp_path / "run", on_step=lambda _: model.eval() and None)
    assert torch.equal(model[0].weight, reference[0].weight)


def test_a_model_is_not_trained_twice_on_the_same_data_at_the_price_of_once(tmp_path):
    """The second run would start from weights that depend on the data, and its ledger would not know."""
    model, settings = small_model(), small_settings(noise_seed=None)
    train(model, small_data(), settings, tmp_path / "first")
    for again in (model, copy.deepcopy(model)):
        with pytest.raises(InvalidInputError, match="trained on these data before"):
            train(again, small_data(), settings, tmp_path / "second")
    train(model, small_data(seed=1), settings, tmp_path / "other data")
    interrupted = small_model(seed=4)
    with pytest.raises(InterruptedRunError):
        train(interrupted, small_data(), settings, tmp_path / "third", on_step=stop_at(3))
    with pytest.raises(InvalidInputError, match="trained on these data before"):
        train(interrupted, small_data(), settings, tmp_path / "fourth")
    train(interrupted, small_data(), settings, tmp_path / "third", resume=True)


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
