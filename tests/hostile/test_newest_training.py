"""Attacks on what training does besides its steps: first weights from public data, and the release of r."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.clipping.engine import ClippingEngine
from securesgd.config import run_config, saved_config
from securesgd.data.load import load_data
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models import gradient_scores
from securesgd.models.noise_layer import ScaleLearning
from securesgd.run_training import train_run
from securesgd.training.private_training import PrivateTraining
from securesgd.training.public_start import learn_from_public
from securesgd.training.settings import TrainingSettings
from tests.bfloat16 import needs_bfloat16
from tests.clipping.clipping_reference import cross_entropy, distance
from tests.forked import run_forked
from tests.training.conftest import small_data, small_model, small_settings

from .test_own_loops import run_until

SMALL = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 16, "accountant": "rdp"}
PUBLIC = {"public_dataset": "digits", "public_steps": 1}
RUN = {"batch_size": 60, "steps": 3, "copies": 1, "accountant": "rdp", "network": "digits-cnn", "checkpoint_steps": 1}


class StoppedError(Exception):
    """A run that was killed."""


def stop_at(step):
    def on_step(report):
        if report.step == step:
            raise StoppedError

    return on_step


def digits(count=120, factor=1.0):
    data = load_data("digits")
    return data.train_inputs[:count] * factor, data.train_targets[:count]


def save(path, inputs, targets):
    x, y = inputs.numpy(), targets.numpy()
    np.savez(path, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return str(path)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


# First weights from public data.


def test_public_steps_do_not_hide_that_a_model_was_trained_on_the_data_before(tmp_path):
    """Weights are known by their bits, and a single public step would change them."""
    model, data = linear(), digits(factor=0.9)
    ss.train(model, data, out=tmp_path / "first", steps=2, **SMALL)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidInputError, match="was trained on these data before"):
        ss.train(model, data, out=tmp_path / "second", steps=2, **SMALL, **PUBLIC)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not (tmp_path / "second").exists()


def test_public_steps_leave_a_model_alone_that_is_in_training(tmp_path):
    model, data = linear(), digits(factor=0.9)
    settings = TrainingSettings(steps=2, **SMALL)
    training = PrivateTraining(model, data, settings, tmp_path / "open")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidInputError, match="is being trained"):
        ss.train(model, data, out=tmp_path / "second", steps=2, **SMALL, **PUBLIC)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    training.close()


@pytest.mark.parametrize("way", [{"public_steps": 1}, {"redistribution": "public"}])
def test_private_data_under_another_name_are_not_public(tmp_path, way):
    private = save(tmp_path / "x.npz", *digits())
    copied = save(tmp_path / "copy.npz", *digits())
    for public in (private, f"{tmp_path}/./x.npz", copied):
        with pytest.raises(InvalidInputError, match=r"the private data|private examples are in public_dataset"):
            train_run(run_config(private, "secure-sgd", **RUN, **way, public_dataset=public), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_the_public_data_of_a_run_that_is_under_way_cannot_be_renamed(tmp_path):
    """Its weights come from what config.toml said when it was started, and so must what its model card says."""
    config = run_config(save(tmp_path / "x.npz", *digits(factor=0.9)), "secure-sgd", **RUN, **PUBLIC)
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        train_run(config, folder, on_step=stop_at(2))
    text = (folder / "config.toml").read_text()
    for edited in (
        text.replace("public_steps = 1\n", "").replace('public_dataset = "digits"\n', ""),
        text.replace("public_steps = 1", "public_steps = 5"),
        text.replace('"digits"', '"mnist"'),
    ):
        assert edited != text
        (folder / "config.toml").write_text(edited)
        for finish in (False, True):
            with pytest.raises(InvalidInputError, match="first weights"):
                train_run(saved_config(folder), folder, resume=not finish, finish=finish)
    (folder / "config.toml").write_text(text)
    assert train_run(config, folder, resume=True).check().passed


def test_the_grids_of_a_learned_r_start_with_the_private_steps_anew():
    """They are spread over the private steps; after as many public ones, the first would have been the last."""
    learning = ScaleLearning(grid=2, steps=4)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = ss.NoisyNetwork(
        network, (1, 8, 8), norm="l2", radius_per_std=0.2, redistribution="learned", learning=learning
    )
    learn_from_public(model, *digits(), steps=4, seed=0)
    scale = model.noisy.scale
    blocks = scale.values.detach().log().view(1, 2, 4, 2, 4)
    assert scale.learning is learning
    assert int(scale.steps_done) == 0
    assert float(blocks.std(dim=(2, 4)).max()) > 1e-4  # finer grids were used on the public images
    probe = torch.randn(1, 8, 8)
    assert torch.equal(scale.block_average(probe), scale.block_average(scale.block_average(probe))) or torch.allclose(
        scale.block_average(probe).view(1, 2, 4, 2, 4).std(dim=(2, 4)), torch.zeros(1, 2, 2), atol=1e-6
    )


def test_public_steps_call_a_layer_named_project_as_a_layer_only(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(64, 10)

        def forward(self, x):
            return self.project(x.flatten(1))

    ss.train(Own(), digits(factor=0.9), out=tmp_path / "run", steps=1, **SMALL, **PUBLIC)


# The release of r between two steps.


class Sharpness(nn.Module):
    """A layer with a number that no record of the model shows."""

    def __init__(self):
        super().__init__()
        self.numbers = [1.0]

    def forward(self, x):
        return torch.tanh(x * self.numbers[0])


def test_one_noise_does_not_give_two_vectors_r(tmp_path, monkeypatch):
    """Killed after r, the run is resumed by a program that alters the model where the record of steps does not look."""
    asked = []
    release = gradient_scores.GridRelease.release
    monkeypatch.setattr(
        gradient_scores.GridRelease,
        "release",
        lambda self, sums, *a, **k: asked.append(1) or release(self, sums, *a, **k),
    )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(60, 6, generator=generator)
    data = inputs, (inputs[:, 0] > 0.5).long()

    def attempt(change, resume):
        torch.manual_seed(0)
        layer = Sharpness()
        network = nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3))
        model = ss.NoisyNetwork(network, (6,), radius_per_std=0.2, redistribution="private")
        even = model.noisy.noise.std.clone()

        def on_step(report):
            if report.step == 2 and change:
                layer.numbers[0] = 30.0
            if report.step == 3 and not resume:
                raise StoppedError

        settings = SMALL | {"steps": 4, "r_step": 0.5, "r_noise_multiplier": 2.0}
        try:
            ss.train(model, data, out=tmp_path / "run", on_step=on_step, resume=resume, **settings)
        finally:
            shown.append(not torch.allclose(model.noisy.noise.std, even))

    shown = []
    with pytest.raises(StoppedError):
        attempt(change=False, resume=False)
    with pytest.raises(InvalidInputError, match="the release before step 3 gave something else"):
        attempt(change=True, resume=True)
    attempt(change=False, resume=True)
    assert shown == [True, False, True]


# The record of what steps were asked.


def own_loop(folder, checkpoint_steps, **options):
    settings = small_settings(noise_seed=None, checkpoint_steps=checkpoint_steps, block_steps=1)
    return PrivateTraining(small_model(), small_data(), settings, folder, **options)


def doubled(outputs, targets):
    return 2 * cross_entropy(outputs, targets)


def test_a_checkpoint_does_not_forget_what_an_earlier_attempt_was_asked_later(tmp_path):
    """The first attempt comes to step 9 without a checkpoint; the second writes one after 5, and alters step 8."""
    run_until(own_loop(tmp_path, 100), 9).close()
    second = run_until(own_loop(tmp_path, 5, resume=True), 7)
    with pytest.raises(InvalidInputError, match="step 8 was run before"):
        run_until(second, 8, loss=doubled)
    third = run_until(own_loop(tmp_path, 5, resume=True), 6)
    third.close()
    with pytest.raises(InvalidInputError, match="step 9 was run before"):
        run_until(run_until(own_loop(tmp_path, 5, resume=True), 8), 9, loss=doubled)
    assert run_until(own_loop(tmp_path, 5, resume=True), 20).finish().steps == 20


def test_checkpoint_and_record_of_an_earlier_moment_are_refused(tmp_path):
    """They fit each other, but the ledger shows that later steps were run, which they would let be asked anew."""
    training = run_until(own_loop(tmp_path, 3), 4)
    names = ("checkpoint.safetensors", "asked.json", "secret.json")
    kept = {name: (tmp_path / name).read_bytes() for name in names}
    run_until(training, 8).close()
    now = {name: (tmp_path / name).read_bytes() for name in names}
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"asked\.json lacks steps that were run"):
        own_loop(tmp_path, 3, resume=True)
    for name, content in now.items():
        (tmp_path / name).write_bytes(content)
    assert run_until(own_loop(tmp_path, 3, resume=True), 20).finish().steps == 20


# Rounding and odd shapes: the gradient of each output is what the attacker says.


class Given(torch.autograd.Function):
    """Losses of 0 (or NaN, for a null record) whose gradient for the outputs is `gradient`."""

    @staticmethod
    def forward(ctx, outputs, gradient):
        ctx.save_for_backward(gradient)
        ctx.kind = outputs.dtype
        return gradient.flatten(1).sum(1) * 0

    @staticmethod
    def backward(ctx, weights):
        (gradient,) = ctx.saved_tensors
        return (gradient * weights.view(-1, *[1] * (gradient.dim() - 1))).to(ctx.kind), None


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


ODD = {
    "groups": (lambda: nn.Conv2d(8, 16, (1, 3), (3, 2), (1, 0), (3, 1), groups=4), (8, 5, 9)),
    "same": (lambda: nn.Conv2d(16, 16, (2, 3), padding="same", dilation=2, padding_mode="circular"), (16, 12, 12)),
    "vectors": (lambda: nn.Conv2d(16, 32, 3, padding=1), (16, 12, 12)),
    "joint": (lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), (64, 4, 4)),
    "lstm": (Sequence, (7, 8)),
    "norm": (lambda: nn.GroupNorm(2, 4), (4, 4, 3)),
    "sequence": (lambda: nn.Linear(40, 64), (9, 40)),
}


def odd_examples(shape, outputs):
    """Examples 0 to 8: plain, constant, huge under a tiny gradient and the reverse, overflowing, spread, cancelling."""
    x, g = torch.randn(9, *shape), torch.randn(9, *outputs)
    x[1] = 1.0
    x[2], g[2] = x[2] * 1e10, g[2] * 1e-8
    x[3], g[3] = x[3] * 1e-20, g[3] * 1e15
    x[4], g[4] = x[4] * 1e19, g[4] * 1e18
    x[5] *= torch.exp(torch.randn(shape) * 10)
    x[6], g[6] = 1 + 1e-4 * x[6], g[6] - g[6].mean(dim=tuple(range(1, len(outputs))), keepdim=True)
    x[7] = 0.0
    g[8] *= torch.rand(outputs) < 0.05
    return x, g


@pytest.mark.parametrize(
    ("precision", "limit"),
    [
        ("float32", 1.0),
        pytest.param("bfloat16", 1.0, marks=needs_bfloat16),
        pytest.param("bfloat16", 1e6, marks=needs_bfloat16),
    ],
)
@pytest.mark.parametrize("kind", ODD)
def test_no_odd_example_moves_the_sum_by_more_than_the_sensitivity(kind, precision, limit):
    torch.manual_seed(0)
    make, shape = ODD[kind]
    model = make()
    x, g = odd_examples(shape, model(torch.zeros(1, *shape)).shape[1:])
    engine = ClippingEngine(model, limit, precision)
    whole = engine.clipped_sum(x, g, Given.apply).gradients
    assert engine.slow_reason is None
    for example in range(len(x)):
        without = torch.where((torch.arange(9) == example).view(-1, *[1] * (g.dim() - 1)), torch.nan, g)
        assert distance(whole, engine.clipped_sum(x, without, Given.apply).gradients) <= engine.sensitivity


# Layers that torch itself breaks on.

FIRST_NORM = """
import sys, torch
from torch import nn
from securesgd.clipping.engine import ClippingEngine

kind, rows = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
stem = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False) if kind == "frozen" else nn.Identity()
channels = 4 if kind == "frozen" else 3
layers = [stem, nn.GroupNorm(1, channels)] + ([] if kind == "bare" else [nn.Conv2d(channels, 4, 3), nn.ReLU()])
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(144 if kind != "bare" else 192, 3))
x, y = torch.rand(rows, 3, 8, 8), torch.arange(rows) % 3
x = x.to(memory_format=torch.channels_last) if kind == "bare" else x
loss = nn.CrossEntropyLoss(reduction="none")
engine = ClippingEngine(model, 1.0)
engine.clipped_sum(x, y, loss)
fast = engine.clipped_sum(x, y, loss)
print(engine.slow_reason, bool(torch.isfinite(fast.norms).all()))
"""


@pytest.mark.parametrize(("kind", "rows"), [("first", 33), ("first", 300), ("frozen", 33), ("bare", 33)])
def test_a_first_group_norm_does_not_end_the_process(kind, rows):
    """In channels_last, torch writes to the gradient of an input that has none: the process is gone, and the run."""
    result = run_forked(FIRST_NORM, kind, str(rows), OMP_NUM_THREADS="1")
    assert (result.returncode, result.stdout) == (0, "None True\n")
