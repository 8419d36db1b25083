"""The DP-SGD loop: right noise, right division, every step reserved, same bits after an interruption, refusals."""

import copy
import json
import stat

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn
from torch.utils.data import Dataset

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy import (
    Ledger,
    calibrated_noise_multiplier,
    replayed_statement,
)
from securesgd.runtime.randomness import Randomness
from securesgd.training.loop import per_example_cross_entropy, train

from .conftest import small_data, small_model, small_settings


class InterruptedRunError(Exception):
    """Stands for a crash in the middle of training."""


def stop_at(step):
    def on_step(report):
        if report.step == step:
            raise InterruptedRunError

    return on_step


def no_gradient(outputs, targets):
    return outputs.sum(dim=1) * 0


def test_noise_alone_gives_the_predicted_variance(tmp_path, weights):
    """With zero gradients the weights walk: variance T·(lr·σ·C/B)². Accepts σ, rejects 0.8σ and 1.25σ (at 1e-7)."""
    model = nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 3))
    before = weights(model).double()
    settings = small_settings(noise_multiplier=1.7, max_grad_norm=0.4, learning_rate=0.3, steps=9, batch_size=10)
    inputs = torch.randn(50, 40)
    train(model, (inputs, torch.zeros(50, dtype=torch.long)), settings, tmp_path / "run", loss=no_gradient)
    moved = (weights(model).double() - before).numpy()
    predicted = np.sqrt(9) * 0.3 * 1.7 * 0.4 / 10

    def accepts(std):
        statistic = (moved**2).sum() / std**2
        return chi2.ppf(1e-7, moved.size) < statistic < chi2.ppf(1 - 1e-7, moved.size)

    assert accepts(predicted)
    assert not accepts(0.8 * predicted)
    assert not accepts(1.25 * predicted)


@pytest.fixture
def sampled(monkeypatch):
    """The samples of the steps that were run, in order."""
    samples, real = [], Randomness.poisson_sample

    def spy(self, *arguments):
        samples.append(real(self, *arguments))
        return samples[-1]

    monkeypatch.setattr(Randomness, "poisson_sample", spy)
    return samples


def test_one_step_is_the_clipped_sum_over_the_expected_batch_size(tmp_path, sampled):
    """Without noise, against a loop over examples. Dividing by the realised batch would be off: its size differs."""
    model, (inputs, targets), clip = small_model().eval(), small_data(), 0.05
    model[2].p = 0.0
    settings = small_settings(noise_multiplier=0.0, steps=1, max_grad_norm=clip, learning_rate=1.0)
    before, initial = [p.detach().clone() for p in model.parameters()], copy.deepcopy(model.state_dict())
    train(model, (inputs, targets), settings, tmp_path / "run")
    after = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(initial)
    (sample,) = sampled
    assert len(sample) not in (0, 12)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for i in sample:
        loss = per_example_cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradient]).norm()
        assert norm > clip
        for total, part in zip(expected, gradient, strict=True):
            total += part * min(1.0, clip / norm.item())
    for start, end, total in zip(before, after, expected, strict=True):
        assert torch.allclose(start - end, total / 12, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "adam", "learning_rate": 0.01}, {"momentum": 0.9, "ema_decay": 0.9, "schedule": "cosine"},
     {"copies": 2, "micro_batch": 5}],
)  # fmt: skip
def test_interrupted_and_resumed_gives_the_same_bits(tmp_path, weights, changes):
    settings, data = small_settings(**changes), small_data()
    whole = small_model()
    train(whole, data, settings, tmp_path / "whole")
    statement = train(whole, data, settings, tmp_path / "whole", resume=True).statement
    for step in (1, 6, 8, 19):
        folder = tmp_path / f"broken at {step}"
        with pytest.raises(InterruptedRunError):
            train(small_model(), data, settings, folder, on_step=stop_at(step))
        resumed = small_model(seed=99)  # the initial weights come from the checkpoint
        result = train(resumed, data, settings, folder, resume=True)
        assert torch.equal(weights(whole), weights(resumed)), step
        assert result.statement == statement
        assert replayed_statement(folder / "ledger.jsonl").epsilon == result.statement.epsilon


def test_a_reserved_block_counts_after_a_crash(tmp_path):
    """Undercounting is the fault to catch: the crash is at step 6, the block of steps 5 to 9 was reserved."""
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), small_settings(), tmp_path / "run", on_step=stop_at(6))
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 10
    train(small_model(), small_data(), small_settings(), tmp_path / "run", resume=True)
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == 20


def test_every_step_is_on_disk_before_its_weights_exist(tmp_path):
    def on_step(report):
        lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
        steps = sum(json.loads(line)["event"]["steps"] for line in lines if '"event"' in line)
        assert steps >= report.step

    train(small_model(), small_data(), small_settings(), tmp_path / "run", on_step=on_step)


def test_the_noise_multiplier_is_calibrated_to_the_target(tmp_path):
    settings = small_settings(noise_multiplier=None, epsilon=2.0, accountant="pld", noise_seed=None)
    result = train(small_model(), small_data(), settings, tmp_path / "run")
    assert result.noise_multiplier == calibrated_noise_multiplier(2.0, 1e-5, 12 / 60, 20)
    assert 2.0 - 1e-3 <= result.statement.epsilon <= 2.0
    assert result.statement.guaranteed


def test_secret_is_private_while_it_exists_and_gone_at_the_end(tmp_path):
    settings = small_settings(noise_seed=None)
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), settings, tmp_path / "run", on_step=stop_at(3))
    assert stat.S_IMODE((tmp_path / "run" / "secret.json").stat().st_mode) == 0o600
    result = train(small_model(), small_data(), settings, tmp_path / "run", resume=True)
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"ledger.jsonl", "model.safetensors"}
    assert result.statement.cautions == ()
    other = small_model()
    train(other, small_data(), settings, tmp_path / "other")
    first = train(small_model(), small_data(), settings, tmp_path / "run", resume=True)
    assert first.steps == 20
    seeded = train(small_model(), small_data(), small_settings(), tmp_path / "seeded")
    assert not seeded.statement.guaranteed
    assert seeded.statement.epsilon == float("inf")
    assert "not guaranteed: the noise has a fixed seed" in seeded.statement.in_words
    assert result.statement.guaranteed
    assert seeded.statement.accounted_epsilon == result.statement.epsilon


def test_two_secret_runs_differ(tmp_path, weights):
    models = [small_model(), small_model()]
    for i, model in enumerate(models):
        train(model, small_data(), small_settings(noise_seed=None), tmp_path / str(i))
    assert not torch.equal(weights(models[0]), weights(models[1]))


def test_empty_samples_are_legal_steps(tmp_path):
    batches = []
    settings = small_settings(batch_size=1, steps=40)
    train(small_model(), small_data(), settings, tmp_path / "run", on_step=lambda r: batches.append(r.batch_size))
    assert 0 in batches
    assert len(set(batches)) > 1


def test_projection_is_called_after_every_step(tmp_path):
    def project(model):
        with torch.no_grad():
            model[0].weight.clamp_(-0.1, 0.1)

    model = small_model()
    train(model, small_data(), small_settings(), tmp_path / "run", project=project)
    assert model[0].weight.abs().max() <= 0.1


def test_any_map_style_dataset(tmp_path, weights):
    inputs, targets = small_data()

    class Pairs(Dataset):
        def __len__(self):
            return len(inputs)

        def __getitem__(self, i):
            return inputs[i], int(targets[i])

    from_dataset, from_tensors = small_model(), small_model()
    train(from_dataset, Pairs(), small_settings(), tmp_path / "a")
    train(from_tensors, (inputs, targets), small_settings(), tmp_path / "b")
    assert torch.equal(weights(from_dataset), weights(from_tensors))


def test_resume_never_puts_the_same_noise_on_another_run(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), small_settings(), folder, on_step=stop_at(6))
    with pytest.raises(InvalidInputError, match=r"not those .* was started with"):
        train(small_model(), small_data(), small_settings(learning_rate=0.1), folder, resume=True)
    with pytest.raises(InvalidInputError, match="training data are not those"):
        train(small_model(), small_data(seed=1), small_settings(), folder, resume=True)
    with pytest.raises(InvalidInputError, match=r"not those .* was started with"):
        train(nn.Sequential(nn.Linear(6, 3)), small_data(), small_settings(), folder, resume=True)
    train(small_model(), small_data(), small_settings(), folder, resume=True)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "ledger.jsonl", "secret.json"])
@pytest.mark.parametrize("harm", ["damage", "remove"])
def test_damaged_run_folder(tmp_path, name, harm):
    folder = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), small_settings(), folder, on_step=stop_at(6))
    file = folder / name
    if harm == "remove":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x01
        file.write_bytes(content)
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    with pytest.raises((DamagedFileError, InvalidInputError)) as caught:
        train(small_model(), small_data(), small_settings(), folder, resume=True)
    assert "\n" not in str(caught.value)
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


def test_a_ledger_cut_back_behind_the_checkpoint_is_noticed(tmp_path):
    """Removing whole lines leaves a valid file that would undercount; the checkpoint remembers the last line."""
    folder = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), small_settings(), folder, on_step=stop_at(14))
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-2]))
    with pytest.raises(DamagedFileError, match="cut off"):
        train(small_model(), small_data(), small_settings(), folder, resume=True)


def with_nan(data):
    inputs = data[0].clone()
    inputs[7, 2] = float("nan")
    return inputs, data[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": with_nan(small_data())}, InvalidInputError, "input of example 7 is not finite"),
        ({"loss": lambda o, t: o.mean()}, InvalidInputError, "one loss per row"),
        ({"settings": small_settings(batch_size=61)}, InvalidInputError, "batch_size is 61 but there are 60"),
        (
            {"settings": small_settings(epsilon=0.5)},
            PrivacyError,
            r"20 steps .* cost more than epsilon = 0.5; \d+ steps",
        ),
        ({"data": (torch.zeros(0, 6), torch.zeros(0))}, InvalidInputError, "no training examples"),
        ({"data": (torch.zeros(5, 6), torch.zeros(4))}, InvalidInputError, "5 inputs but 4 targets"),
        ({"data": 7}, InvalidInputError, "pair of tensors or a map-style Dataset"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, InvalidInputError, "BatchNorm"),
    ],
)
def test_bad_input_is_one_clear_line_and_releases_nothing(tmp_path, arguments, error, message):
    given = {"model": small_model(), "data": small_data(), "settings": small_settings()} | arguments
    with pytest.raises(error, match=message) as caught:
        train(**given, folder=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_occupied_folder_is_not_touched(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match="is not empty"):
        train(small_model(), small_data(), small_settings(), tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(InvalidInputError, match="is a file"):
        train(small_model(), small_data(), small_settings(), tmp_path / "mine.txt")


def test_global_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(small_model(), small_data(), small_settings(), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_training_without_privacy_says_so_and_is_plain_sgd(tmp_path, sampled):
    """One step against torch's own gradient of the sampled sum; the statement must not claim anything."""
    model, (inputs, targets) = small_model(), small_data()
    model[2].p = 0.0
    settings = small_settings(private=False, noise_multiplier=None, steps=1, learning_rate=1.0, copies=2, micro_batch=5)
    twin = copy.deepcopy(model)
    result = train(model, (inputs, targets), settings, tmp_path / "run")
    (sample,) = sampled
    loss = per_example_cross_entropy(twin(inputs[sample]), targets[sample]).sum()
    expected = [
        p - g / 12 for p, g in zip(twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True)
    ]
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter, value, atol=1e-6)
    assert not result.statement.guaranteed
    assert "does not protect the training data" in result.statement.in_words
    whole, broken, settings = small_model(), small_model(), small_settings(private=False, noise_multiplier=None)
    train(whole, small_data(), settings, tmp_path / "a")
    with pytest.raises(InterruptedRunError):
        train(broken, small_data(), settings, tmp_path / "b", on_step=stop_at(7))
    train(broken, small_data(), settings, tmp_path / "b", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), broken.parameters(), strict=True))


def other_loss(outputs, targets):
    return 2 * per_example_cross_entropy(outputs, targets)


class Pairs(Dataset):
    def __init__(self, seed):
        self.inputs, self.targets = small_data(seed=seed)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], int(self.targets[i])


def test_resume_refuses_another_loss_other_items_or_other_frozen_parameters(tmp_path):
    folder, settings = tmp_path / "run", small_settings()
    with pytest.raises(InterruptedRunError):
        train(small_model(), Pairs(0), settings, folder, on_step=stop_at(6))
    with pytest.raises(InvalidInputError, match="loss"):
        train(small_model(), Pairs(0), settings, folder, resume=True, loss=other_loss)
    with pytest.raises(InvalidInputError, match="training data are not those"):
        train(small_model(), Pairs(1), settings, folder, resume=True)
    frozen, other = small_model(), small_model()
    frozen[0].requires_grad_(False)
    other[1] = nn.ReLU()
    for model in (frozen, other):
        with pytest.raises(InvalidInputError, match="model"):
            train(model, Pairs(0), settings, folder, resume=True)
    train(small_model(), Pairs(0), settings, folder, resume=True)


def test_a_finished_run_with_a_shortened_ledger_is_refused(tmp_path):
    """Lines cut off the end leave a valid file that says a smaller epsilon; the model remembers the last line."""
    train(small_model(), small_data(), small_settings(), tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    for kept in (1, len(lines) - 1):
        ledger.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(DamagedFileError, match="cut off"):
            train(small_model(), small_data(), small_settings(), tmp_path / "run", resume=True)
