"""Copies of an example that are made before the engine sees them: augmented ones, and features that are kept."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from securesgd.models.front_end import FeatureNetwork, FrontEnd, front_end_of
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.randomness import Randomness
from securesgd.training.augmentation import augmented_copies
from securesgd.training.examples import as_examples
from securesgd.training.interrupt import TrainingInterrupted
from securesgd.training.kept_features import KeptFeatures
from securesgd.training.loop import train
from securesgd.training.private_training import PrivateTraining
from securesgd.training.settings import AUGMENTATIONS, TrainingSettings
from securesgd.training.step import plain_sum

SHAPE = (1, 12, 12)


def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")


def head(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return network("scatter-linear", SHAPE, 3)


def images(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=generator), torch.randint(3, (count,), generator=generator)


def settings(**changes):
    base = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 8, "noise_seed": 3, "accountant": "rdp"}
    return TrainingSettings(**base | {"checkpoint_steps": 3, "block_steps": 4, "kept_copies": True} | changes)


@pytest.mark.parametrize("add_up", ["engine", "slow", "plain"])
def test_given_copies_are_averaged_before_clipping(add_up):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    copies, targets = torch.randn(5, 4, 2, 4), torch.randint(3, (5,))
    engine = ClippingEngine(model, 0.1)
    if add_up == "slow":
        engine.slow_reason = "asked for"
    run = engine.clipped_sum if add_up != "plain" else lambda *a, **k: plain_sum(model, *a, **k)
    sums = run(copies, targets, loss, 4, copies_given=True).gradients
    expected = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for example, target in zip(copies, targets, strict=True):  # the slow, obvious way
        gradient = torch.autograd.grad(loss(model(example), target.repeat(4)).mean(), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradient]).norm()
        factor = 1.0 if add_up == "plain" else min(1.0, 0.1 / float(norm))
        for name, g in zip(expected, gradient, strict=True):
            expected[name] += factor * g
    for name, total in expected.items():
        torch.testing.assert_close(sums[name].double(), total, rtol=1e-4, atol=1e-6)


def test_given_copies_must_be_as_many_as_stated():
    engine = ClippingEngine(nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), 0.1)
    with pytest.raises(InvalidInputError, match=r"valid: \[batch, 3, ...\]"):
        engine.clipped_sum(torch.randn(5, 4, 8), torch.zeros(5, dtype=torch.long), loss, 3, copies_given=True)


def test_examples_that_mix_between_copies_of_others_are_refused():
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            return self.layer(x - x.mean(dim=0))

    with pytest.raises(InvalidInputError, match="depends on other examples"):
        ClippingEngine(Mixes(), 0.1).clipped_sum(
            torch.randn(6, 2, 8), torch.zeros(6, dtype=torch.long), loss, 2, copies_given=True
        )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_copy_is_a_function_of_its_own_image(name):
    x, _ = images(6)
    changed = x.clone()
    changed[2] = torch.rand(SHAPE)
    torch.manual_seed(1)
    before = augmented_copies(x, 3, name)
    torch.manual_seed(1)
    after = augmented_copies(changed, 3, name)
    others = [0, 1, 3, 4, 5]
    assert before.shape == (6, 3, *SHAPE)
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[2], after[2])


def test_images_are_moved_by_up_to_two_pixels_and_mirrored():
    x = torch.zeros(1, 1, 9, 9)
    x[0, 0, 4, 3] = 1.0
    torch.manual_seed(0)
    spots = {tuple(copy[0].nonzero()[0].tolist()) for copy in augmented_copies(x, 600, "shift-and-flip")[0]}
    assert spots == {(row, column) for row in range(2, 7) for column in (*range(1, 6), *range(3, 8))}
    assert torch.equal(augmented_copies(x, 2, "none")[0], torch.cat([x, x]))


def test_augmentation_is_for_images():
    with pytest.raises(InvalidInputError, match="augmentation is 'shift', but inputs have shape"):
        augmented_copies(torch.rand(3, 7), 2, "shift")
    with pytest.raises(InvalidInputError, match=r"unknown augmentation 'shif'.*did you mean 'shift'"):
        settings(augmentation="shif")


def test_features_of_the_network_and_its_head_are_the_network():
    model = head().eval()
    trained, (x, _) = FeatureNetwork(model), images(4)
    assert torch.equal(trained(trained.features(x)), model(x))
    noisy = NoisyNetwork(head(), SHAPE, norm="l2", radius_per_std=0.3)
    assert isinstance(front_end_of(noisy), FrontEnd)
    torch.manual_seed(2)
    expected = noisy(x)
    torch.manual_seed(2)
    torch.testing.assert_close(FeatureNetwork(noisy)(FeatureNetwork(noisy).features(x)), expected)


def test_copies_have_noise_of_their_own_and_nothing_is_left_on_disk(tmp_path):
    noisy = NoisyNetwork(head(), SHAPE, norm="l2", radius_per_std=0.3)
    kept = KeptFeatures(FeatureNetwork(noisy), as_examples(images()), settings(copies=2), Randomness.secret(), tmp_path)
    features, targets = kept.batch(np.array([3, 5, 39]))
    assert features.shape[:2] == (3, 2)
    assert torch.equal(targets, images()[1][[3, 5, 39]])
    assert (features[:, 0] - features[:, 1]).abs().mean() > 0.05
    assert kept.batch(np.zeros(0, dtype=np.int64))[0].shape == (0, *features.shape[1:])
    assert list(tmp_path.iterdir()) == []  # a killed process leaves no features of private data behind


def test_another_example_changes_no_other_features(tmp_path):
    noisy = NoisyNetwork(head(), SHAPE, norm="l2", radius_per_std=0.3)
    x, y = images()
    changed = x.clone()
    changed[7] = 1 - changed[7]
    randomness = Randomness.secret()
    one, other = (
        KeptFeatures(FeatureNetwork(noisy), as_examples((data, y)), settings(copies=2), randomness, tmp_path).batch(
            np.arange(40)
        )[0]
        for data in (x, changed)
    )
    same = [i for i in range(40) if torch.equal(one[i], other[i])]
    assert same == [i for i in range(40) if i != 7]


def test_without_noise_and_augmentation_kept_features_train_the_same_network(tmp_path):
    trained = []
    for kept in (True, False):
        model = head()
        train(model, images(), settings(kept_copies=kept, noise_multiplier=1e-3, batch_size=40), tmp_path / str(kept))
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in head().parameters()])
    # Half precision of the features, and another noise of 0.001, is what they differ by.
    assert (trained[0] - trained[1]).norm() < 0.02 * (trained[0] - start).norm()


def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole, cut = head(), head()
    train(whole, images(), settings(augmentation="shift", copies=2), tmp_path / "whole")

    def stop(report):
        if report.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted):
        train(cut, images(), settings(augmentation="shift", copies=2), tmp_path / "cut", on_step=stop)
    cut = head()
    train(cut, images(), settings(augmentation="shift", copies=2), tmp_path / "cut", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), {}, "no fixed front end"),
        (
            lambda: NoisyNetwork(head(), SHAPE, norm="l2", radius_per_std=0.3, redistribution="learned"),
            {},
            "r is learned",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, model, options, reason):
    with pytest.raises(InvalidInputError, match=reason):
        train(model(), images(), settings(), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_gets_the_images_themselves(tmp_path):
    with pytest.raises(InvalidInputError, match="a loop of your own may alter its inputs"):
        PrivateTraining(head(), images(), settings(), tmp_path / "run")


def test_a_front_end_has_nothing_to_train():
    with pytest.raises(InvalidInputError, match=r"the front end has the parameter 0\.weight"):
        FrontEnd(nn.Linear(3, 3))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


class Neighbour(nn.Module):
    def forward(self, x):
        return x + 1e-3 * x.roll(1, dims=0)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        before, self.last = self.last, x.sum()
        return x if before is None else x + before


@pytest.mark.parametrize("layer", [Centred, Neighbour, Remembers])
def test_a_front_end_that_mixes_examples_is_refused(tmp_path, layer):
    model = nn.Sequential(FrontEnd(layer()), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(InvalidInputError, match="the front end mixes examples or remembers them"):
        train(model, images(), settings(), tmp_path / "run")
    with pytest.raises(InvalidInputError, match="the front end mixes examples or remembers them"):
        FeatureNetwork(model).require_separate((1, 12, 12))  # without a look at the data


def test_batch_statistics_in_a_front_end_are_refused(tmp_path):
    model = nn.Sequential(FrontEnd(nn.BatchNorm2d(1, affine=False)), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(InvalidInputError, match="BatchNorm"):
        train(model, images(), settings(), tmp_path / "run")
