"""What a caller adds to the loop: a callback that may stop it, a projection, a loss of her own, a path as text."""

import pytest
import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.privacy import Ledger, replayed_statement
from securesgd.runtime.tensors import load_tensors
from securesgd.training.loop import train

from .conftest import small_data, small_model, small_settings


def stop_after(step):
    return lambda report: report.step < step


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.9}, {"private": False, "noise_multiplier": None}])
def test_a_callback_that_returns_false_stops_the_run(tmp_path, weights, changes):
    """The weights are those of a run interrupted there; the ledger counts the whole block of steps 5 to 9."""
    folder, model = tmp_path / "run", small_model()
    settings = small_settings(**changes)
    seen = []

    def on_step(report):
        seen.append(weights(model).clone())
        return report.step != 7

    result = train(model, small_data(), settings, folder, on_step=on_step)
    assert result.steps == len(seen) == 7
    assert {file.name for file in folder.iterdir()} == {"ledger.jsonl", "model.safetensors"}
    assert load_tensors(folder / "model.safetensors").record["steps"] == 7
    assert torch.equal(weights(model), seen[-1]) is (not settings.ema_decay)
    assert not model.training
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        assert ledger.steps_charged == (10 if settings.private else 0)
    assert result.statement == replayed_statement(folder / "ledger.jsonl")
    again = small_model(seed=5)
    resumed = train(again, small_data(), settings, folder, resume=True, on_step=on_step)
    assert resumed.steps == len(seen) == 7
    assert resumed.statement == result.statement
    assert torch.equal(weights(again), weights(model))


def test_a_stopped_run_has_the_first_steps_of_a_whole_one(tmp_path, weights):
    stopped, whole, first = small_model(), small_model(), []
    train(stopped, small_data(), small_settings(), tmp_path / "stopped", on_step=stop_after(7))

    def on_step(report):
        if report.step == 7:
            first.append(weights(whole).clone())

    train(whole, small_data(), small_settings(), tmp_path / "whole", on_step=on_step)
    assert torch.equal(weights(stopped), first[0])


@pytest.mark.parametrize("value", [None, 0, "", True])
def test_only_false_stops(tmp_path, value):
    result = train(small_model(), small_data(), small_settings(steps=3), tmp_path / "run", on_step=lambda _: value)
    assert result.steps == 3


def test_stopping_at_the_last_step_is_an_ordinary_end(tmp_path):
    settings = small_settings(steps=10)
    result = train(small_model(), small_data(), settings, tmp_path / "run", on_step=stop_after(10))
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:
        assert result.steps == ledger.steps_charged == 10


class Bounded(nn.Module):
    """A network that keeps its first layer's weights within 0.1."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

    def project(self):
        with torch.no_grad():
            self.first.weight.clamp_(-0.1, 0.1)


class ProjectsInputs(Bounded):
    """A method of the same name that is about something else."""

    def project(self, x):
        return self.first(x)


class ProjectionLayer(nn.Module):
    """A layer of that name."""

    def __init__(self):
        super().__init__()
        self.project, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.project(x)))


def test_the_models_own_projection_is_called_after_every_step(tmp_path):
    model = Bounded()
    largest = []
    settings = small_settings(learning_rate=5.0)

    def on_step(_):
        largest.append(model.first.weight.abs().max().item())

    train(model, small_data(), settings, tmp_path / "own", on_step=on_step)
    assert len(largest) == 20
    assert max(largest) <= 0.1 + 1e-7
    other = Bounded()
    train(other, small_data(), settings, tmp_path / "given", project=lambda model: None)
    assert other.first.weight.abs().max() > 0.1
    for model in (ProjectsInputs(), ProjectionLayer()):
        train(model, small_data(), settings, tmp_path / type(model).__name__)


def test_any_loss_per_example_and_a_path_as_text(tmp_path):
    inputs, _ = small_data()
    targets = inputs[:, :3] * 2

    def squared_error(outputs, targets):
        return (outputs - targets).square().mean(dim=1)

    result = train(small_model(), (inputs, targets), small_settings(), str(tmp_path / "run"), loss=squared_error)
    assert result.folder == tmp_path / "run"
    assert result.steps == 20


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(), r"loss returned shape \[\] for \d+ rows: it must return one loss per row"),
        (lambda o, t: o, r"loss returned shape \[\d+, 3\]"),
        (lambda o, t: 0.5, "loss returned a float"),
    ],
)
def test_a_loss_of_the_wrong_shape_is_one_clear_line(tmp_path, private, loss, message):
    changes = {} if private else {"private": False, "noise_multiplier": None}
    with pytest.raises(InvalidInputError, match=message) as caught:
        train(small_model(), small_data(), small_settings(**changes), tmp_path / "run", loss=loss)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "model.safetensors").exists()
