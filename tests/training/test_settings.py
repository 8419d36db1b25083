from dataclasses import fields

import pytest

from securesgd.errors import InvalidInputError
from securesgd.training.settings import TrainingSettings

from .conftest import small_settings


def test_schedules():
    constant = small_settings(steps=10, learning_rate=2.0, warmup_steps=4)
    assert [constant.learning_rate_at(t) for t in (0, 1, 3, 4, 9)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    cosine, linear = (small_settings(steps=10, learning_rate=2.0, schedule=name) for name in ("cosine", "linear"))
    assert cosine.learning_rate_at(0) == 2
    assert cosine.learning_rate_at(5) == pytest.approx(1)
    assert [linear.learning_rate_at(t) for t in (0, 5, 9)] == pytest.approx([2, 1, 0.2])


@pytest.mark.parametrize(
    ("steps", "given", "block"),
    [(20, None, 50), (2500, None, 50), (2501, None, 51), (4688, None, 94), (10**6, None, 20_000), (10**6, 50, 50)],
)
def test_a_long_run_has_at_most_fifty_blocks(steps, given, block):
    assert small_settings(steps=steps, block_steps=given).block == block


def test_every_setting_that_changes_a_released_number_changes_the_fingerprint():
    changes = {
        "private": False, "delta": 1e-6, "epsilon": 3.0, "noise_multiplier": 2.0, "batch_size": 13, "steps": 21,
        "max_grad_norm": 2.0, "sampling_rate": 0.1, "population": 100,
        "accountant": "pld", "noise_seed": 4, "learning_rate": 0.1, "optimizer": "adam", "momentum": 0.5,
        "schedule": "cosine", "warmup_steps": 1, "ema_decay": 0.5, "copies": 2, "micro_batch": 5,
        "augmentation": "shift", "kept_copies": True, "consistency": 5.0, "precision": "bfloat16",
    }  # fmt: skip
    needs = {"consistency": {"copies": 2}}
    speed = {"block_steps": 7, "checkpoint_steps": 7}
    assert small_settings(block_steps=None).fingerprint(1.0) == small_settings(block_steps=50).fingerprint(1.0)
    assert set(changes) | set(speed) == {field.name for field in fields(TrainingSettings)}
    for name, value in changes.items():
        base = small_settings(**needs.get(name, {})).fingerprint(1.0)
        given = needs.get(name, {}) | {name: value} | ({"noise_multiplier": None} if name == "private" else {})
        assert small_settings(**given).fingerprint(1.0) != base or name == "noise_multiplier", name
    base = small_settings().fingerprint(1.0)
    assert small_settings().fingerprint(2.0) != base
    for name, value in speed.items():
        assert small_settings(**{name: value}).fingerprint(1.0) == base


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": None}, "give epsilon"),
        ({"private": False}, "are for private training"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"noise_multiplier": -1}, "noise_multiplier is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm is nan"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"learning_rate": 1e40}, "learning_rate is 1e"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"ema_decay": -0.1}, "ema_decay is -0.1"),
        ({"optimizer": "agd"}, "did you mean 'sgd'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"accountant": "pdl"}, "pld"),
        ({"copies": 0}, "copies is 0"),
        ({"consistency": -1.0, "copies": 2}, "consistency is -1.0; valid: a number from 0 to 1e"),
        ({"consistency": float("nan"), "copies": 2}, "consistency is nan; valid: a number from 0"),
        ({"consistency": "5", "copies": 2}, "consistency is '5'; valid: a number"),
        ({"consistency": 5.0}, "consistency is 5, but copies is 1; valid: copies >= 2"),
        ({"sampling_rate": 1.5}, "sampling_rate is 1.5"),
        ({"population": 11}, "population is 11"),
        ({"population": 100, "sampling_rate": 0.1}, "not both"),
    ],
)
def test_bad_settings_are_one_clear_line(changes, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        small_settings(**changes)
    assert "\n" not in str(caught.value)


def test_from_dict_names_the_nearest_setting():
    with pytest.raises(InvalidInputError, match="did you mean 'batch_size'"):
        TrainingSettings.from_dict({"delta": 1e-5, "batchsize": 3, "steps": 1})
    with pytest.raises(InvalidInputError, match="need delta, steps"):
        TrainingSettings.from_dict({"batch_size": 3})
    assert TrainingSettings.from_dict({"delta": 1e-5, "epsilon": 1, "batch_size": 3, "steps": 1}).steps == 1
