"""Noise for a target and steps for a budget: round trips, never above the target."""

import time

import pytest

from securesgd.errors import InvalidInputError, PrivacyError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    affordable_steps,
    calibrated_noise_multiplier,
    epsilon_spent,
)
from securesgd.privacy.calibration import largest_within

MNIST = 1024 / 60000
SETTINGS = [
    (3.0, 1e-5, MNIST, 700),
    (0.1, 1e-5, 0.01, 1000),
    (0.01, 1e-5, 0.01, 100),
    (1.0, 1e-9, 0.01, 1000),
    (2.0, 1e-5, 1.0, 10),
]


def run(rate, noise, count):
    return SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=count)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "count", "accountant"),
    [
        pytest.param(
            *setting, accountant, marks=[pytest.mark.slow] if (setting[2], accountant) == (MNIST, "pld") else []
        )
        for setting in SETTINGS
        for accountant in ("pld", "rdp")
    ],
)
def test_round_trip(epsilon, delta, rate, count, accountant):
    start = time.perf_counter()
    noise = calibrated_noise_multiplier(epsilon, delta, rate, count, accountant)
    assert time.perf_counter() - start < 15  # measured 3 s on two idle cores for the MNIST setting
    reached = epsilon_spent([run(rate, noise, count)], delta, accountant)
    assert epsilon - 1e-3 <= reached <= epsilon
    assert epsilon_spent([run(rate, noise * (1 - 1e-4), count)], delta, accountant) > epsilon
    # a little more noise than calibrated affords at least the same number of steps, and not many more
    left = affordable_steps(epsilon, delta, rate, noise, accountant=accountant, at_most=2 * count)
    assert count <= left <= count * 1.001 + 1
    assert epsilon_spent([run(rate, noise, left)], delta, accountant) <= epsilon
    assert epsilon_spent([run(rate, noise, left + 1)], delta, accountant) > epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.2, 1, 2, 4, 10, 60])
@pytest.mark.parametrize(("rate", "count"), [(0.0025, 100_000), (0.0025, 5_000), (MNIST, 2_000), (0.3, 300)])
def test_round_trip_over_the_papers_range(epsilon, rate, count):
    noise = calibrated_noise_multiplier(epsilon, 1e-5, rate, count)
    reached = epsilon_spent([run(rate, noise, count)], 1e-5)
    assert epsilon - 1e-3 <= reached <= epsilon


def test_other_releases_are_paid_from_the_same_budget():
    release = GaussianRelease(noise_multiplier=20.0, label="r")
    noise = calibrated_noise_multiplier(0.5, 1e-5, 0.01, 500, extra_events=[release])
    assert 0.5 - 1e-3 <= epsilon_spent([release, run(0.01, noise, 500)], 1e-5) <= 0.5
    assert noise > calibrated_noise_multiplier(0.5, 1e-5, 0.01, 500)
    left = affordable_steps(0.5, 1e-5, 0.01, noise, spent=[release, run(0.01, noise, 400)])
    assert 100 <= left <= 101


def test_impossible_targets_are_refused():
    release = GaussianRelease(noise_multiplier=1.0, label="r")
    with pytest.raises(PrivacyError, match="other releases alone cost epsilon"):
        calibrated_noise_multiplier(2.0, 1e-5, 0.01, 500, extra_events=[release])
    with pytest.raises(PrivacyError, match="cost epsilon inf"):
        calibrated_noise_multiplier(2.0, 1e-5, 0.01, 500, extra_events=[UnprotectedRelease(label="r", reason="x")])
    with pytest.raises(PrivacyError, match="cannot be reached"):
        calibrated_noise_multiplier(1e-5, 1e-9, 1.0, 10**9, accountant="rdp")
    assert affordable_steps(2.0, 1e-5, 0.01, 1.0, spent=[release]) == 0
    assert affordable_steps(2.0, 1e-5, 0.01, 0.0) == 0
    assert affordable_steps(2.0, 1e-5, 0.5, 0.3, accountant="rdp") == 0
    assert affordable_steps(2.0, 1e-5, 0.01, 2.0, at_most=7) == 7


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        (lambda: calibrated_noise_multiplier(0, 1e-5, 0.1, 1), "epsilon is 0"),
        (lambda: calibrated_noise_multiplier(2000, 1e-5, 0.1, 1), "epsilon is 2000"),
        (lambda: calibrated_noise_multiplier(1, 2, 0.1, 1), "delta is 2"),
        (lambda: calibrated_noise_multiplier(1, 1e-5, 0, 1), "sampling_rate is 0"),
        (lambda: calibrated_noise_multiplier(1, 1e-5, 0.1, 0), "steps is 0"),
        (lambda: calibrated_noise_multiplier(1, 1e-5, 0.1, 1, "moments"), "accountant is 'moments'"),
        (lambda: affordable_steps(1, 1e-5, 0.1, -1), "noise_multiplier is -1"),
        (lambda: affordable_steps(1, 1e-5, 0.1, 1, at_most=-1), "at_most is -1"),
    ],
)
def test_bad_input_is_one_line(call, shows):
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert shows in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [-50, 0, 7, 99, 500])
@pytest.mark.parametrize("stride", [1, 1000])
def test_search_finds_the_last_value_within(start, stride):
    for answer in range(100):
        calls = []

        def value(k, answer=answer, calls=calls):
            calls.append(k)
            return 1.5**k if k <= answer else 1e30 + k

        found = largest_within(value, 1.5**answer, start=start, stride=stride, lowest=0, highest=99)
        assert found == answer
        assert all(0 <= k <= 99 for k in calls)
    assert largest_within(lambda k: k + 1.0, 0.5, start=start, stride=stride, lowest=0, highest=99) is None
