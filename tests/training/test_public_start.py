"""First weights from a public data set: what they depend on, what they cost, and how a run says so."""

import json

import numpy as np
import pytest
import torch

import securesgd as ss
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.data.public_images import moved_images, public_examples
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import accuracy
from securesgd.run_training import train_run
from securesgd.training.public_start import learn_from_public
from tests.command_line import run_here

SMALL = {"batch_size": 60, "steps": 3, "copies": 1, "accountant": "rdp", "noise_seed": 1, "network": "digits-cnn"}
PUBLIC = {"public_dataset": "digits", "public_steps": 2}


@pytest.fixture(scope="module")
def private_images(tmp_path_factory):
    """Private images of 12×12 pixels: digits, with noise that the public ones do not have."""
    digits = load_data("digits")
    images = torch.nn.functional.interpolate(digits.train_inputs[:300], size=(12, 12)).numpy()
    images = np.clip(images + 0.1 * np.random.default_rng(0).normal(size=images.shape), 0, 1).astype(np.float32)
    path = tmp_path_factory.mktemp("private") / "larger.npz"
    labels = digits.train_targets[:300].numpy()
    np.savez(path, x_train=images, y_train=labels, x_test=images[:50], y_test=labels[:50])
    return path


def first_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_public_images_teach_what_private_ones_show():
    """Without a single private step, the network tells digits of another size and other writers apart."""
    torch.manual_seed(0)
    model = NoisyNetwork(network("digits-cnn", (1, 12, 12), 10), (1, 12, 12), norm="l2", radius_per_std=0.2)
    images, labels = public_examples("digits", (1, 12, 12), 10)
    others = moved_images(images[1000:])
    before = accuracy(model, others, labels[1000:])
    learn_from_public(model, images[:1000], labels[:1000], steps=300, seed=0)
    assert accuracy(model, others, labels[1000:]) > max(0.55, before + 0.3)


def test_weights_depend_on_images_steps_and_seed_and_on_nothing_else():
    images, labels = public_examples("digits", (1, 8, 8), 10)

    def learn(images=images, steps=3, seed=0):
        torch.manual_seed(5)
        model = network("digits-cnn", (1, 8, 8), 10)
        torch.manual_seed(int(np.random.default_rng().integers(2**31)))  # must not matter
        state = torch.get_rng_state()
        learn_from_public(model, images, labels, steps=steps, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(p.grad is None for p in model.parameters())
        return first_weights(model)

    assert torch.equal(learn(), learn())
    for other in (learn(steps=4), learn(seed=1), learn(images=1 - images)):
        assert not torch.equal(learn(), other)


def test_moved_images_are_images_of_the_same_class():
    images, labels = public_examples("digits", (1, 28, 28), 10)
    torch.manual_seed(0)
    moved = moved_images(images[:400])
    assert moved.shape == (400, 1, 28, 28)
    assert bool(((moved >= 0) & (moved <= 1)).all())
    assert not torch.equal(moved, moved_images(images[:400]))
    others = moved_images(images[400:])
    means = torch.stack([others[labels[400:] == digit].mean(dim=0).flatten() for digit in range(10)])
    nearest = torch.cdist(moved.flatten(1), means).argmin(dim=1)
    assert (nearest == labels[:400]).float().mean() > 0.5  # ten classes; moved far, but not beyond recognition


def test_moved_strokes_are_in_the_middle_and_five_sevenths_of_the_side():
    images, _ = public_examples("digits", (1, 28, 28), 10)
    torch.manual_seed(0)
    moved = moved_images(images[:400])[:, 0].double()
    ink = moved > 0.2
    sides = torch.maximum(ink.any(1).sum(1), ink.any(2).sum(1)).double()
    assert 19 < sides.mean() < 21
    assert sides.min() >= 15
    assert sides.max() <= 25
    middle = (moved.sum(1) * torch.arange(28)).sum(1) / moved.sum((1, 2))
    assert abs(middle.mean() - 13.5) < 0.2
    assert (middle - 13.5).abs().max() < 1.5


def test_an_empty_image_and_one_with_colours_are_moved_too():
    torch.manual_seed(0)
    assert not moved_images(torch.zeros(2, 1, 9, 12)).any()
    photographs = torch.rand(3, 3, 16, 20)
    moved = moved_images(photographs)
    assert moved.shape == photographs.shape
    assert bool(((moved >= 0) & (moved <= 1)).all())
    assert not torch.equal(moved, photographs)


def test_a_learned_r_learns_too_and_delta_is_kept():
    images, labels = public_examples("digits", (1, 8, 8), 10)
    torch.manual_seed(0)
    model = NoisyNetwork(network("digits-cnn", (1, 8, 8), 10), (1, 8, 8), radius_per_std=0.05, redistribution="learned")
    even = model.whitening.copy()
    learn_from_public(model, images, labels, steps=60, seed=0)
    assert model.whitening.max() > 1.02 * model.whitening.min()
    assert not np.allclose(model.whitening, even)
    assert model.sensitivity("linf").upper == pytest.approx(20, rel=1e-3)


def test_interval_bounds_start_with_their_schedule_anew():
    images, labels = public_examples("digits", (1, 8, 8), 10)
    torch.manual_seed(0)
    model = IntervalNetwork(network("interval-cnn", (1, 8, 8), 10), (1, 8, 8), train_radius=0.05, steps=7)
    before = first_weights(model)
    learn_from_public(model, images, labels, steps=20, seed=0)
    assert not torch.equal(before, first_weights(model))
    assert (model.steps, int(model.steps_done)) == (7, 0)


def test_the_privacy_of_a_run_is_the_same_and_the_card_names_the_public_data(private_images, tmp_path):
    plain = train_run(run_config(str(private_images), "secure-sgd", **SMALL), tmp_path / "plain")
    public = train_run(run_config(str(private_images), "secure-sgd", **SMALL | PUBLIC), tmp_path / "public")
    assert public.privacy.accounted_epsilon == plain.privacy.accounted_epsilon
    assert not torch.equal(first_weights(public.model), first_weights(plain.model))
    line = "| first weights | 2 steps on digits, declared public by who trained it |"
    assert line in (tmp_path / "public" / "MODEL_CARD.md").read_text()
    assert "first weights" not in (tmp_path / "plain" / "MODEL_CARD.md").read_text()
    assert public.check().passed


def test_a_resumed_run_ends_with_the_same_bits_and_does_not_learn_again(private_images, tmp_path, monkeypatch):
    config = run_config(str(private_images), "secure-sgd", **SMALL | PUBLIC)
    whole = train_run(config, tmp_path / "whole")

    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "stopped", on_step=stop)
    monkeypatch.setattr("securesgd.run_job.learn_from_public", lambda *_, **__: pytest.fail("learned again"))
    resumed = train_run(config, tmp_path / "stopped", resume=True)
    assert torch.equal(first_weights(whole.model), first_weights(resumed.model))


def test_a_module_of_ones_own_takes_it_too(private_images, tmp_path):
    data = load_data(str(private_images))
    weights = []
    for name, settings in (("plain", {}), ("public", PUBLIC)):
        torch.manual_seed(0)
        own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 10))
        numbers = {"epsilon": 3.0, "delta": 1e-4, "batch_size": 60, "steps": 1, "noise_seed": 1}
        run = ss.train(own, data, out=tmp_path / name, **numbers, **settings)
        weights.append(first_weights(run.model))
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"public_steps": 2}, "there is no public_dataset"),
        ({"public_dataset": "digits"}, "nothing reads it"),
        ({"public_dataset": "digits", "public_steps": -1}, "public_steps"),
        ({"public_dataset": "PRIVATE", "public_steps": 2}, "the private data"),
        ({"public_dataset": "breast-cancer", "public_steps": 2}, "breast-cancer"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(private_images, tmp_path, changes, message):
    changes = {name: str(private_images) if value == "PRIVATE" else value for name, value in changes.items()}
    with pytest.raises(InvalidInputError, match=message):
        train_run(run_config(str(private_images), "secure-sgd", **SMALL | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_says_what_it_does_first(private_images, tmp_path):
    words = [word for name, value in (SMALL | PUBLIC).items() for word in ("--set", f"{name}={json.dumps(value)}")]
    result = run_here("train", "--dataset", private_images, "--method", "secure-sgd", *words, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "first weights: 2 steps on digits, public" in result.stderr
