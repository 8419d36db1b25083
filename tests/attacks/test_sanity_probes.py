"""Models made to fool attacks, and healthy ones: probes tell them apart."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.attacks import sanity_checks
from securesgd.attacks.sanity_checks import probe_attack
from securesgd.attacks.settings import attack_settings
from securesgd.models.noisy import NoisyNetwork

QUICK = {"steps": 5, "restarts": 1, "eot": 10}


def names(model, images, attack="ifgsm", budget=0.1, **changes):
    return [
        warning.name for warning in probe_attack(model, *images, attack_settings(attack, budget, **QUICK | changes))
    ]


@pytest.mark.parametrize("attack", ["ifgsm", "madry"])
def test_healthy_models_give_no_warning(plain, noisy, images, attack):
    assert names(plain, images, attack) == []
    assert names(noisy, images, attack) == []


class Masked(nn.Module):
    """The model behind a step function: right as often, without gradients."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model((x * 16).round() / 16)


class Saturated(nn.Module):
    """The model with logits so large that the softmax has no gradient left in single precision."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return 1000 * self.model(x)


@pytest.mark.parametrize("kind", [Masked, Saturated], ids=["masked", "saturated"])
def test_zero_gradients_are_noticed(plain, images, kind):
    warnings = names(kind(plain).eval(), images)
    assert "zero-gradients" in warnings
    assert "whole-range-does-not-break" in warnings


def test_gradients_that_are_mostly_noise_are_noticed(noisy, images):
    loud = NoisyNetwork(noisy.network[1], noisy.input_shape, place="input").eval()
    loud.set_noise(np.full(loud.units, 20.0))
    labels = sanity_checks.vote_counts(loud, images[0], 400, torch.Generator().manual_seed(0)).argmax(1)
    warnings = probe_attack(loud, images[0], labels, attack_settings("fgsm", 0.1, eot=1))
    (drawn,) = [one for one in warnings if one.name == "gradients-differ-between-draws"]
    assert drawn.evidence["cosine"] < 0.1
    assert "Raise --eot" in drawn.words
    assert names(noisy, images, "fgsm") == []


def test_the_paper_s_noise_free_gradients_are_named(noisy, images):
    assert "noise-free-gradients" in names(noisy, images, "fgsm", protocol="as-published", eot=0)


def test_effort_that_does_not_pay_is_noticed(plain, images, monkeypatch):
    def broken(model, x, labels, settings):
        return torch.arange(len(x)) < (10 if settings.steps > 5 else 40 if settings.budget < 1 else 64)

    monkeypatch.setattr(sanity_checks, "_broken", broken)
    assert names(plain, images) == ["more-steps-do-not-hurt"]


def test_the_recommended_draws_would_do(noisy, images):
    """The formula's promise: at that many draws two averages agree to about one half."""
    from securesgd.attacks.objective import Objective

    x, y = images[0][:50], images[1][:50]
    objective = Objective(noisy, "cross-entropy", 1, torch.Generator().manual_seed(0))
    cosine = float(
        nn.functional.cosine_similarity(*(objective.evaluate(x, y).gradient.flatten(1) for _ in range(2))).median()
    )
    assert sanity_checks._enough_draws(cosine, 1) == pytest.approx((1 - cosine) / cosine, abs=1)
    assert sanity_checks._enough_draws(0.5, 20) == 20


def test_square_has_no_gradients_to_probe_and_a_useless_model_is_not_probed(plain, images):
    assert names(plain, images, "square") == []
    assert names(plain, (images[0], (images[1] + 1) % 10)) == []
