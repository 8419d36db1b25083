"""What the attacks do to networks with and without noise, measured by votes of the test's own."""

import pytest
import torch
from torch import nn

from securesgd.attacks.ball import sizes
from securesgd.attacks.craft import craft
from securesgd.attacks.settings import ATTACKS, AttackSettings, attack_settings
from securesgd.errors import InvalidInputError
from securesgd.models.predict import vote_counts

ITERATIVE = ["ifgsm", "mim", "madry", "apgd-ce", "apgd-dlr"]


def attacked(model, images, attack, budget, **changes):
    return craft(model, *images, attack_settings(attack, budget, **changes)).images


def accuracy(model, x, labels, draws=150):
    return float((vote_counts(model, x, draws, torch.Generator().manual_seed(99)).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("attack", ITERATIVE)
def test_an_undefended_network_keeps_under_five_percent(plain, images, attack):
    assert accuracy(plain, *images) > 0.95
    assert accuracy(plain, attacked(plain, images, attack, 0.3), images[1]) < 0.05


@pytest.mark.parametrize("attack", ["fgsm", "square"])
def test_one_step_and_no_gradient_hurt_too(plain, images, attack):
    assert accuracy(plain, attacked(plain, images, attack, 0.3), images[1]) < 0.35


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_attack_stays_in_its_ball_and_uses_it(plain, noisy, images, attack, norm):
    budget = {"linf": 0.12, "l2": 0.8}[norm]
    few = images[0][:40], images[1][:40]
    quick = {"steps": 5, "queries": 20, "restarts": 1, "eot": 4}
    for model in (plain, noisy):
        change = attacked(model, few, attack, budget, norm=norm, **quick) - few[0]
        assert bool((sizes(change, norm) <= budget + 1e-6).all())
        assert float(sizes(change, norm).max()) > 0.9 * budget
        assert bool(((few[0] + change >= -1e-6) & (few[0] + change <= 1 + 1e-6)).all())


@pytest.mark.parametrize("model", ["plain", "noisy"])
@pytest.mark.parametrize("attack", ["fgsm", "ifgsm", "mim", "madry"])
def test_a_larger_budget_hurts_more(request, images, model, attack):
    network = request.getfixturevalue(model)
    few = images[0][:120], images[1][:120]
    left = [accuracy(network, attacked(network, few, attack, b, eot=10, steps=6), few[1]) for b in (0.05, 0.15)]
    assert accuracy(network, *few) > left[0] > left[1]


@pytest.mark.parametrize("attack", ["ifgsm", "mim", "madry"])
def test_more_steps_hurt_more(plain, images, attack):
    left = [accuracy(plain, attacked(plain, images, attack, 0.1, steps=steps), images[1]) for steps in (1, 3, 20)]
    assert left[0] > left[2]
    assert left[0] >= left[1] - 0.01
    assert left[1] >= left[2] - 0.01


@pytest.mark.parametrize("attack", ["fgsm", "ifgsm", "mim", "madry"])
def test_gradients_averaged_over_noise_are_at_least_as_strong_as_noise_free_ones(noisy, digits, attack):
    images = digits.test_inputs, digits.test_targets
    averaged = accuracy(noisy, attacked(noisy, images, attack, 0.15, eot=20), images[1])
    noise_free = accuracy(noisy, attacked(noisy, images, attack, 0.15, eot=0), images[1])
    published = accuracy(noisy, attacked(noisy, images, attack, 0.15, protocol="as-published"), images[1])
    assert accuracy(noisy, *images) > averaged + 0.2
    assert averaged <= noise_free + 0.005
    assert averaged <= published + 0.005


def test_auto_is_at_least_as_strong_as_its_parts(noisy, images):
    settings = {"steps": 15, "queries": 50, "eot": 10}
    auto = accuracy(noisy, attacked(noisy, images, "auto", 0.12, **settings), images[1])
    part = accuracy(noisy, attacked(noisy, images, "apgd-ce", 0.12, steps=15, eot=10), images[1])
    assert auto <= part + 0.01


def test_a_targeted_attack_reaches_its_target(plain, noisy, images):
    for model in (plain, noisy):
        settings = attack_settings("madry", 0.4, target="3", steps=20, restarts=1)
        crafted = craft(model, *images, settings)
        votes = vote_counts(model, crafted.images, 200, torch.Generator().manual_seed(5)).argmax(1)
        assert float((votes == 3).float().mean()) > 0.9
        assert crafted.labels.eq(3).all()


def test_chosen_targets_are_not_the_label(plain, images):
    least = craft(plain, *images, attack_settings("fgsm", 0.1, target="least-likely")).labels
    second = craft(plain, *images, attack_settings("fgsm", 0.1, target="runner-up")).labels
    assert not least.eq(images[1]).any()
    assert not second.eq(images[1]).any()
    with torch.no_grad():
        logits = plain(images[0])
    assert bool((logits.gather(1, second[:, None]) >= logits.gather(1, least[:, None])).all())
    with pytest.raises(InvalidInputError, match="target class 10 does not exist; valid: 0 to 9"):
        craft(plain, *images, attack_settings("fgsm", 0.1, target="10"))


def test_the_seed_and_only_the_seed_decides(noisy, images):
    few = images[0][:30], images[1][:30]
    one, again, other = (attacked(noisy, few, "madry", 0.1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    chunked = craft(noisy, *few, attack_settings("madry", 0.1, seed=1), stream=1).images
    assert not torch.equal(one, chunked)


def test_a_model_in_training_mode_comes_back_so(noisy, images):
    noisy.train()
    try:
        attacked(noisy, (images[0][:4], images[1][:4]), "fgsm", 0.1)
        assert noisy.training
    finally:
        noisy.eval()


def test_published_protocol_moves_away_from_the_prediction_without_looking_at_labels(plain, images):
    wrong = (images[1] + 1) % 10
    one = craft(plain, images[0], images[1], attack_settings("ifgsm", 0.1, protocol="as-published"))
    two = craft(plain, images[0], wrong, attack_settings("ifgsm", 0.1, protocol="as-published"))
    assert torch.equal(one.images, two.images)


def test_flat_gradients_are_noticed(images):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer((x.flatten(1) > 0.5).float())

    assert craft(Steps(), *images, attack_settings("ifgsm", 0.1)).flat.all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": "fgms"}, "unknown attack 'fgms': did you mean 'fgsm'"),
        ({"norm": "l_inf"}, "unknown norm 'l_inf': did you mean 'linf'"),
        ({"protocol": "published"}, "unknown protocol 'published': did you mean 'as-published'"),
        ({"budget": 0.0}, "budget must be finite and > 0, got 0.0"),
        ({"budget": float("inf")}, "budget must be finite"),
        ({"steps": 0}, "steps is .*; valid: an integer from 1 to"),
        ({"eot": -1}, "eot is .*; valid: an integer from 0 to"),
        ({"target": "nearest"}, "unknown target 'nearest'"),
        ({"attack": "auto", "protocol": "as-published"}, "the paper has no attack 'auto'; valid as published: fgsm"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        AttackSettings(**{"attack": "fgsm", "budget": 0.1} | changes)


def test_bad_images_are_refused(plain, images):
    with pytest.raises(InvalidInputError, match=r"pixels must be in \[0, 1\]"):
        attacked(plain, (images[0] * 2, images[1]), "fgsm", 0.1)
    with pytest.raises(InvalidInputError, match="200 images and 3 labels"):
        attacked(plain, (images[0], images[1][:3]), "fgsm", 0.1)


def test_fgsm_takes_one_step_and_speed_settings_are_no_identity():
    assert attack_settings("fgsm", 0.1, steps=40).steps == 1
    assert attack_settings("ifgsm", 0.1, protocol="as-published", dataset="cifar10").steps == 3
    assert attack_settings("mim", 0.1, rows=7).identity == attack_settings("mim", 0.1).identity
