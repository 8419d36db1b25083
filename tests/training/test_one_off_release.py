"""A release before the first step: recorded and paid once, the same after a crash."""

import pytest
import torch

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    Ledger,
    UnprotectedRelease,
    calibrated_noise_multiplier,
)
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.training.loop import train
from securesgd.training.one_off_release import OneOffRelease

from .conftest import small_data, small_model, small_settings
from .test_loop import InterruptedRunError, stop_at


def reading_release(step, event, seen):
    def action(model, examples, stream):
        seen.append(float(stream.words(1)[0]) * 2.0**-64)
        with torch.no_grad():
            model[0].bias.add_(seen[-1])

    return OneOffRelease(step=step, event=event, action=action)


def test_a_one_off_release_is_recorded_once_and_repeats_after_a_crash(tmp_path, weights):
    event = GaussianRelease(noise_multiplier=20.0, label="r")
    whole, broken, settings = small_model(), small_model(), small_settings(checkpoint_steps=6)
    seen = []
    train(whole, small_data(), settings, tmp_path / "a", one_off_release=reading_release(7, event, seen))
    release = reading_release(7, event, seen)
    with pytest.raises(InterruptedRunError):
        train(broken, small_data(), settings, tmp_path / "b", one_off_release=release, on_step=stop_at(9))
    with pytest.raises(InvalidInputError, match="not those"):
        train(broken, small_data(), settings, tmp_path / "b", resume=True)
    train(broken, small_data(), settings, tmp_path / "b", resume=True, one_off_release=reading_release(7, event, seen))
    assert len(set(seen)) == 1
    assert torch.equal(weights(whole), weights(broken))
    with Ledger.open(tmp_path / "b" / "ledger.jsonl") as ledger:
        assert ledger.events.count(event) == 1
        assert ledger.steps_charged == 20


def test_calibration_leaves_room_for_the_one_off_release(tmp_path):
    event = GaussianRelease(noise_multiplier=5.0, label="r")
    settings = small_settings(noise_multiplier=None, epsilon=2.0, accountant="pld", noise_seed=None)
    result = train(
        small_model(), small_data(), settings, tmp_path / "run", one_off_release=reading_release(3, event, [])
    )
    assert result.noise_multiplier > calibrated_noise_multiplier(2.0, 1e-5, 12 / 60, 20)
    assert 2.0 - 1e-3 <= result.statement.epsilon <= 2.0


def test_an_unprotected_one_off_release_voids_the_guarantee(tmp_path):
    event = UnprotectedRelease(label="r", reason="computed on private data as published")
    settings = small_settings(noise_multiplier=None, epsilon=2.0)
    release = reading_release(3, event, [])
    statement = train(small_model(), small_data(), settings, tmp_path / "run", one_off_release=release).statement
    assert not statement.guaranteed
    assert "not guaranteed: " in statement.in_words
    assert "as published" in statement.in_words


def test_a_one_off_release_that_draws_from_torch_repeats_too(tmp_path, weights):
    def action(model, examples, stream):
        with torch.no_grad():
            model[0].bias.add_(torch.randn(8))

    release = OneOffRelease(step=8, event=None, action=action)
    whole, broken, settings = small_model(), small_model(), small_settings(checkpoint_steps=8)
    train(whole, small_data(), settings, tmp_path / "a", one_off_release=release)
    with pytest.raises(InterruptedRunError):
        train(broken, small_data(), settings, tmp_path / "b", one_off_release=release, on_step=stop_at(10))
    torch.manual_seed(1234)
    train(broken, small_data(), settings, tmp_path / "b", one_off_release=release, resume=True)
    assert torch.equal(weights(whole), weights(broken))


def test_what_the_action_draws_from_torch_comes_from_the_key_alone():
    """Whatever state torch's generator is in: it is seeded for the release by itself, not with the step after it."""
    drawn = []
    release = OneOffRelease(step=3, event=None, action=lambda model, examples, stream: drawn.append(torch.rand(4)))
    for key, state in (("a", 1), ("a", 2), ("b", 2)):
        torch.manual_seed(state)
        release.run(small_model(), small_data(), Randomness.from_seed(5, key), Processes())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
