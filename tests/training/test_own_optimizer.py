"""The user's own optimizer and scheduler: resumed bit for bit, never mixed with the noise of another, or refused."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from securesgd.errors import InvalidInputError
from securesgd.runtime.tensors import load_tensors
from securesgd.training.loop import train
from tests.forked import Forked

from .conftest import small_data, small_model, small_settings
from .test_loop import InterruptedRunError, stop_at


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1, amsgrad=True)


def cosine(optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, 15)


def two_groups(parameters):
    first, *others = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": others}], lr=0.1, momentum=0.9)


class Counting(torch.optim.SGD):
    """SGD that halves its steps from the fifth on, by a plain number in its state."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                count = self.state[parameter].get("count", 0) + 1
                self.state[parameter]["count"] = count
                parameter.grad.mul_(1.0 if count < 5 else 0.5)
        return super().step(closure)


OPTIMIZERS = {
    "AdamW": adamw,
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "NAdam": torch.optim.NAdam,
    "two groups": two_groups,
    "numbers in the state": lambda p: Counting(p, lr=0.1, momentum=0.9),
}
SCHEDULERS = {
    "none": None,
    "cosine": cosine,
    "integer keys": lambda o: lr_scheduler.MultiStepLR(o, [3, 9, 12]),
    "one cycle, which moves momentum too": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=21),
    "two in a row": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=6), lr_scheduler.MultiStepLR(o, [4, 8])], [6]
    ),
    "a function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}
CASES = [(name, "cosine") for name in OPTIMIZERS] + [("AdamW", name) for name in SCHEDULERS if name != "cosine"]


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_interrupted_and_resumed_gives_the_same_bits(tmp_path, weights, optimizer, scheduler):
    choices = {"optimizer": OPTIMIZERS[optimizer], "scheduler": SCHEDULERS[scheduler]}
    whole, broken = small_model(), small_model()
    train(whole, small_data(), small_settings(), tmp_path / "whole", **choices)
    with pytest.raises(InterruptedRunError):
        train(broken, small_data(), small_settings(), tmp_path / "broken", on_step=stop_at(14), **choices)
    resumed = small_model(seed=99)
    result = train(resumed, small_data(), small_settings(), tmp_path / "broken", resume=True, **choices)
    assert torch.equal(weights(whole), weights(resumed))
    assert result.steps == 20


WORKER = """
import sys, time
from tests.training.conftest import small_data, small_model, small_settings
from tests.training.test_own_optimizer import adamw, cosine
from securesgd.training.loop import train

def on_step(report):
    if report.step == 11:
        print("step 11", flush=True)
        time.sleep(60)

train(small_model(), small_data(), small_settings(), sys.argv[1], on_step=on_step, optimizer=adamw, scheduler=cosine)
"""


def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    choices = {"optimizer": adamw, "scheduler": cosine}
    train(small_model(), small_data(), small_settings(), tmp_path / "whole", **choices)
    worker = Forked(WORKER, tmp_path / "killed", OMP_NUM_THREADS="1")
    assert worker.wait_for_line() == "step 11"
    worker.kill()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    train(small_model(), small_data(), small_settings(), tmp_path / "killed", resume=True, **choices)
    torch.set_num_threads(threads)
    killed, whole = (load_tensors(tmp_path / name / "model.safetensors").tensors for name in ("killed", "whole"))
    assert all(torch.equal(killed[name], whole[name]) for name in whole)


def test_the_same_noise_is_never_used_with_another_optimizer(tmp_path):
    """A factory's numbers count, not its name alone: both lambdas have the same one."""
    folder, settings = tmp_path / "run", small_settings(noise_seed=None)
    choices = {"optimizer": adamw, "scheduler": cosine}
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), settings, folder, on_step=stop_at(6), **choices)
    others = [
        {},
        {"optimizer": adamw},
        {"optimizer": lambda p: torch.optim.AdamW(p, lr=0.01), "scheduler": cosine},
        {"optimizer": two_groups, "scheduler": cosine},
        {"optimizer": adamw, "scheduler": lambda o: lr_scheduler.CosineAnnealingLR(o, 16)},
    ]
    for other in others:
        with pytest.raises(InvalidInputError, match=r"optimizer.* are not those .* was started with"):
            train(small_model(), small_data(), settings, folder, resume=True, **other)
    rates = [{"optimizer": lambda p, rate=rate: torch.optim.AdamW(p, lr=rate)} for rate in (0.1, 0.2)]
    with pytest.raises(InterruptedRunError):
        train(small_model(), small_data(), settings, tmp_path / "rates", on_step=stop_at(6), **rates[0])
    with pytest.raises(InvalidInputError, match="are not those"):
        train(small_model(), small_data(), settings, tmp_path / "rates", resume=True, **rates[1])
    train(small_model(), small_data(), settings, tmp_path / "rates", resume=True, **rates[0])
    train(small_model(), small_data(), settings, folder, resume=True, **choices)


def test_seeded_runs_with_other_optimizers_have_other_noise(tmp_path, weights):
    """Zero gradients: the weights after one step of SGD are the noise alone."""

    def no_gradient(outputs, targets):
        return outputs.sum(dim=1) * 0

    released = []
    for i, rate in enumerate((0.5, 0.5, 0.25)):
        model = small_model()
        before = weights(model)
        options = {"optimizer": lambda p, rate=rate: torch.optim.SGD(p, lr=rate), "loss": no_gradient}
        train(model, small_data(), small_settings(steps=1), tmp_path / str(i), **options)
        released.append((weights(model) - before) / rate)
    assert torch.allclose(released[0], released[1], atol=1e-6)
    assert not torch.allclose(released[0], released[2], atol=1e-3)


def test_own_optimizer_equal_to_the_settings_gives_the_same_step(tmp_path, weights):
    """Without noise: the settings' schedule scales the learning rate of an own optimizer, a scheduler replaces it."""
    settings = {"noise_multiplier": 0.0, "schedule": "linear", "warmup_steps": 3}
    models = [small_model() for _ in range(4)]
    for model in models:
        model[2].p = 0.0
    runs = [
        (small_settings(**settings, sampling_rate=1.0, learning_rate=0.3, momentum=0.9), {}),
        (small_settings(**settings, sampling_rate=1.0), {"optimizer": lambda p: torch.optim.SGD(p, 0.3, 0.9)}),
        (
            small_settings(**settings, sampling_rate=1.0),
            {"optimizer": lambda p: torch.optim.SGD(p, 0.3, 0.9), "scheduler": lambda o: lr_scheduler.ConstantLR(o, 1)},
        ),
        (small_settings(noise_multiplier=0.0, sampling_rate=1.0, learning_rate=0.3, momentum=0.9), {}),
    ]
    for i, (model, (values, options)) in enumerate(zip(models, runs, strict=True)):
        train(model, small_data(), values, tmp_path / str(i), **options)
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert torch.equal(weights(models[2]), weights(models[3]))
    assert not torch.equal(weights(models[0]), weights(models[2]))


class Hoarding(torch.optim.SGD):
    """Keeps something outside its state."""

    def step(self, closure=None):
        self.count = getattr(self, "count", 0) + 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(1 / self.count)
        return super().step(closure)


class Listing(torch.optim.SGD):
    """Keeps a list of tensors in its state."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("history", []).append(parameter.grad.clone())
        return super().step(closure)


def shared_optimizer(parameters, made=[]):  # noqa: B006
    if not made:
        made.append(torch.optim.SGD(parameters, lr=0.1))
    return made[0]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"optimizer": torch.optim.LBFGS}, r"step\(closure\) of LBFGS needs a closure"),
        ({"optimizer": Hoarding}, "the state of Hoarding cannot be saved and resumed"),
        ({"optimizer": Listing}, "cannot be saved as JSON"),
        ({"optimizer": torch.optim.SparseAdam}, "SparseAdam does not work in training: "),
        ({"optimizer": lambda p: torch.optim.SGD(list(p)[:1])}, "SGD does not hold the 4 trainable parameters"),
        ({"optimizer": lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(1))])}, "SGD does not hold the 4"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1))}, "cannot be saved as JSON"),
        ({"optimizer": lambda p: "sgd"}, "optimizer returned a str; valid: a function"),
        ({"optimizer": shared_optimizer}, "returned the same object twice"),
        ({"scheduler": lr_scheduler.ReduceLROnPlateau}, r"step\(metrics\) of ReduceLROnPlateau needs a value"),
        ({"scheduler": lambda o: None}, "scheduler returned a NoneType; valid: a function"),
        ({"scheduler": lambda o: cosine(torch.optim.SGD([nn.Parameter(torch.ones(1))]))}, "of it"),
        (
            {"scheduler": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=10, cycle_momentum=False)},
            "total steps is 10",
        ),
    ],
)
def test_refused_in_one_line_before_anything_is_written(tmp_path, weights, choices, message):
    model = small_model()
    before = weights(model)
    with pytest.raises(InvalidInputError, match=message) as caught:
        train(model, small_data(), small_settings(), tmp_path / "run", **choices)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert torch.equal(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
