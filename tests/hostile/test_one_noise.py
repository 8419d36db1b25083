"""One noise, two questions: whoever resumes a run of their own with another question is refused."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from securesgd.errors import InvalidInputError
from securesgd.training.loop import train

from ..training.conftest import small_data, small_model, small_settings
from ..training.test_loop import InterruptedRunError, stop_at
from .test_own_runs import own_data, own_network


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
