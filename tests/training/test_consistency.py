"""Consistency of the copies of an example: a joint loss of one example, on the fast path, with the same sensitivity."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import securesgd as ss
from securesgd.clipping.engine import ClippingEngine
from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.training.consistency import consistent_cross_entropy, joint_loss
from securesgd.training.loop import train
from securesgd.training.step import plain_sum
from securesgd.training.step_loss import per_example_cross_entropy

from .conftest import small_data, small_model, small_settings

SHAPE, CLASSES, COPIES = (1, 16, 16), 4, 3
NETWORKS = {
    "tanh-cnn": lambda: network("tanh-cnn", SHAPE, CLASSES),
    "norms": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(1176, CLASSES)
    ),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES)),
}


def made(name):
    torch.manual_seed(3)
    return NETWORKS[name]().double()


def batch(count=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, COPIES, *SHAPE, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


def joint(strength, copies=COPIES):
    return partial(consistent_cross_entropy, copies=copies, consistency=strength)


def example_loss(model, copies, target, strength):
    """The formula, word for word: mean_c CE(f(x_c), y) + λ·mean_c KL(p̄ ‖ p_c)."""
    outputs = model(copies)
    p = outputs.softmax(dim=1)
    mean = p.mean(dim=0)
    divergences = [(mean * (mean / own).log()).sum() for own in p]
    return cross_entropy(outputs, target.repeat(len(copies))) + strength * sum(divergences) / len(copies)


def example_gradients(model, inputs, targets, strength):
    """One backward pass for each example: gradients, shape [examples, parameters]."""
    parameters = list(model.parameters())
    return torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(example_loss(model, x, y, strength), parameters)])
            for x, y in zip(inputs, targets, strict=True)
        ]
    )


def vector(gradients):
    return torch.cat([g.flatten().double() for g in gradients.values()])


@pytest.mark.parametrize("strength", [0.7, 5.0, 40.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_example_has_the_gradient_of_its_joint_loss(name, strength):
    model, (inputs, targets) = made(name), batch()
    expected = example_gradients(model, inputs, targets, strength)
    plain = example_gradients(model, inputs, targets, 0.0)
    engine = ClippingEngine(model, 1e6)
    together = engine.clipped_sum(inputs, targets, joint(strength), COPIES, copies_given=True)
    assert engine.slow_reason is None
    torch.testing.assert_close(together.norms, expected.norm(dim=1), rtol=1e-10, atol=0)
    losses = torch.stack([example_loss(model, x, y, strength).detach() for x, y in zip(inputs, targets, strict=True)])
    torch.testing.assert_close(together.losses, losses, rtol=1e-10, atol=0)
    for i in range(len(inputs)):
        alone = torch.full_like(inputs, float("nan"))  # null records, which add nothing
        alone[i] = inputs[i]
        own = vector(engine.clipped_sum(alone, targets, joint(strength), COPIES, copies_given=True).gradients)
        assert (own - expected[i]).norm() < 1e-10 * expected[i].norm()
        assert (own - plain[i]).norm() > 1e-3 * plain[i].norm()
    assert engine.slow_reason is None


@pytest.mark.parametrize("way", ["fast", "slow", "micro-batch", "plain"])
def test_every_way_clips_the_whole_loss_of_an_example(way):
    model, (inputs, targets) = made("tanh-cnn"), batch()
    expected = example_gradients(model, inputs, targets, 5.0)
    limit = float(expected.norm(dim=1).median())
    engine = ClippingEngine(model, limit)
    if way == "slow":
        engine.slow_reason = "asked for"
    add_up = partial(plain_sum, model) if way == "plain" else engine.clipped_sum
    pieces = 2 if way == "micro-batch" else None
    sums = add_up(inputs, targets, joint(5.0), COPIES, pieces, copies_given=True)
    factors = torch.ones(len(inputs)) if way == "plain" else (limit / expected.norm(dim=1)).clamp(max=1)
    total = (factors[:, None] * expected).sum(dim=0)
    torch.testing.assert_close(vector(sums.gradients), total, rtol=1e-9, atol=1e-12 * float(total.norm()))
    assert (engine.slow_reason is None) is (way != "slow")


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def test_copies_that_a_noisy_model_makes_are_those_of_one_example():
    plain, (inputs, targets) = made("linear"), batch()
    engine = ClippingEngine(nn.Sequential(Noise(), plain), 1e6)
    torch.manual_seed(5)
    sums = engine.clipped_sum(inputs[:, 0], targets, joint(5.0), COPIES)
    assert engine.slow_reason is None
    torch.manual_seed(5)
    noisy = inputs[:, :1] + torch.randn(len(inputs) * COPIES, *SHAPE, dtype=torch.float64).view_as(inputs)
    expected = example_gradients(plain, noisy, targets, 5.0).sum(dim=0)
    torch.testing.assert_close(vector(sums.gradients), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:clipping runs the examples one by one")  # where float32 has no digits left
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [0.0, 5.0, 1e6, 1e30])
@pytest.mark.parametrize("size", [1.0, 1e8, 1e30])
def test_no_example_moves_the_sum_by_more_than_the_sensitivity(size, strength, dtype):
    model = made("tanh-cnn").to(dtype)
    inputs, targets = (part.to(dtype) if part.is_floating_point() else part for part in batch())
    others, attack = inputs.clone(), inputs.clone()
    with torch.no_grad():
        model[-1].weight.mul_(min(size, 1e30))  # huge logits, of other signs for the copies of the example
    others[2] = float("nan")  # the null record: the same row, with nothing in it
    attack[2, 0] *= -1
    engine = ClippingEngine(model, 0.5)
    run = partial(engine.clipped_sum, targets=targets, loss=joint(strength), copies=COPIES, copies_given=True)
    gap = (vector(run(attack).gradients) - vector(run(others).gradients)).norm()
    assert gap <= engine.sensitivity


def test_another_example_moves_its_own_part_alone():
    model, (inputs, targets) = made("tanh-cnn"), batch()
    changed = inputs.clone()
    changed[4] = 3 * torch.randn(COPIES, *SHAPE, dtype=torch.float64)
    engine = ClippingEngine(model, 0.5)
    run = partial(engine.clipped_sum, targets=targets, loss=joint(5.0), copies=COPIES, copies_given=True)
    before, after = run(inputs), run(changed)
    others = [0, 1, 2, 3, 5, 6]
    assert torch.equal(before.norms[others], after.norms[others])
    assert torch.equal(before.losses[others], after.losses[others])
    assert before.losses[4] != after.losses[4]
    own = [example_gradients(model, x[4:5], targets[4:5], 5.0)[0] for x in (inputs, changed)]
    old, new = (g * min(1.0, 0.5 / float(g.norm())) for g in own)
    torch.testing.assert_close(vector(after.gradients) - vector(before.gradients), new - old, rtol=1e-8, atol=1e-12)


def test_copies_that_agree_add_nothing():
    outputs, targets = torch.randn(5, CLASSES).repeat_interleave(COPIES, 0), torch.arange(5).repeat_interleave(3) % 4
    torch.testing.assert_close(joint(100.0)(outputs, targets), per_example_cross_entropy(outputs, targets))
    apart = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert joint(1.0, 2)(apart, torch.tensor([0, 0])).mean().item() == pytest.approx(
        1000 / 2 + 1000 / 2 - 0.6931, rel=1e-5
    )


# In a run

NOISY = {"norm": "l2", "radius_per_std": 0.3}


def noisy_network():
    torch.manual_seed(0)
    return NoisyNetwork(network("scatter-linear", SHAPE, CLASSES), SHAPE, **NOISY)


def images(count=40):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, *SHAPE, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


@pytest.mark.parametrize(
    "changes",
    [{}, {"kept_copies": True}, {"micro_batch": 3}, {"augmentation": "shift"}, {"private": False}],
    ids=lambda changes: next(iter(changes), "plain"),
)
def test_steps_are_taken_by_the_joint_loss(tmp_path, changes, recwarn):
    losses = {}
    for strength in (0.0, 1e4):
        private = {} if changes.get("private", True) else {"noise_multiplier": None}
        settings = small_settings(steps=1, batch_size=40, copies=COPIES, consistency=strength, **changes | private)
        reports = []
        train(noisy_network(), images(), settings, tmp_path / str(strength), on_step=reports.append)
        losses[strength] = reports[0].loss
    assert 0.5 < losses[0.0] < 3
    assert losses[1e4] > 10  # the copies of an untrained network differ by a thousandth, at least
    assert not [warning for warning in recwarn if "one by one" in str(warning.message)]


def test_without_it_the_loss_is_the_very_same():
    loss = cross_entropy
    assert joint_loss(loss, small_settings()) is loss
    assert joint_loss(per_example_cross_entropy, small_settings(copies=4)) is per_example_cross_entropy


@pytest.mark.parametrize("own", [lambda o, t: o.sum(1), lambda model, x, t: model(x).sum(1)])
def test_a_loss_of_the_users_own_is_refused(tmp_path, own):
    settings = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 2, "copies": 2, "consistency": 5}
    message = "consistency is 5, but the loss is not the cross-entropy; valid: consistency = 0"
    with pytest.raises(InvalidInputError, match=message):
        ss.train(noisy_network(), images(), out=tmp_path / "a", loss=own, **settings)
    with pytest.raises(InvalidInputError, match=message):
        train(small_model(), small_data(), small_settings(copies=2, consistency=5.0), tmp_path / "b", loss=own)
    assert not list(tmp_path.glob("*/*"))
    training = ss.PrivateTraining(noisy_network(), None, images(), out=tmp_path / "c", **settings)
    for given in training.batches():
        with pytest.raises(InvalidInputError, match=message):
            training.step(given, own)
        training.step(given)  # the batch was not used up
    assert training.finish().privacy.epsilon > 0


@pytest.mark.parametrize("method", ["sgd", "dpsgd", "ibp", "dp-ibp", "adlm"])
def test_a_method_without_noise_is_refused(method):
    message = f"consistency is 5, but the method {method} has no noisy copies; valid: consistency = 0, or one of secure"
    given = {"consistency": 5.0, "copies": 2}
    with pytest.raises(InvalidInputError, match=message):
        run_config("digits", method, **given)
    for noisy in ("secure-sgd", "secure-sgd-agm", "pixeldp", "hgm-pixeldp"):
        config = run_config("digits", noisy, **given)
        assert config.training.consistency == 5.0


def test_a_module_without_noise_is_refused(tmp_path):
    settings = {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 2, "copies": 2, "consistency": 5}
    with pytest.raises(InvalidInputError, match="consistency is 5, but the method dpsgd has no noisy copies"):
        ss.train(small_model(), small_data(), out=tmp_path / "a", **settings)


def test_a_run_is_resumed_with_the_same_consistency_only(tmp_path):
    data, settings = images(), {"delta": 1e-5, "noise_multiplier": 1.0, "batch_size": 10, "steps": 6, "copies": 2}

    def stop(report):
        if report.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ss.train(noisy_network(), data, out=tmp_path / "a", on_step=stop, consistency=5.0, **settings)
    with pytest.raises(InvalidInputError, match="consistency = 5"):
        ss.train(noisy_network(), data, out=tmp_path / "a", resume=True, consistency=4.0, **settings)
    ss.train(noisy_network(), data, out=tmp_path / "a", resume=True, consistency=5.0, **settings)
    assert "consistency = 5.0" in (tmp_path / "a" / "config.toml").read_text()
