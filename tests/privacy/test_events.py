"""Events: validation, JSON round trip, translation to dp-accounting."""

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    SampledGaussianSteps,
    UnprotectedRelease,
    dp_event,
    event_from_json,
    event_json,
)

GAUSSIAN = {"kind": "gaussian-release", "noise_multiplier": 2.0, "label": "r"}
STEPS = {"kind": "sampled-gaussian-steps", "sampling_rate": 0.1, "noise_multiplier": 1.0, "steps": 5}
noise = st.floats(0, 1e300)
text = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=50)
events = st.one_of(
    st.builds(GaussianRelease, noise_multiplier=noise, label=text),
    st.builds(
        SampledGaussianSteps,
        sampling_rate=st.floats(0, 1, exclude_min=True),
        noise_multiplier=noise,
        steps=st.integers(1, 10**15),
    ),
    st.builds(UnprotectedRelease, label=text, reason=text),
)


@given(events)
def test_json_gives_back_an_equal_event(event):
    assert event_from_json(event_json(event)) == event


@pytest.mark.parametrize(
    ("build", "shows"),
    [
        (lambda: GaussianRelease(noise_multiplier=-1, label="r"), "noise_multiplier is -1"),
        (lambda: GaussianRelease(noise_multiplier=float("nan"), label="r"), "noise_multiplier is nan"),
        (lambda: GaussianRelease(noise_multiplier=float("inf"), label="r"), "noise_multiplier is inf"),
        (lambda: GaussianRelease(noise_multiplier=10**400, label="r"), "a very large integer"),
        (lambda: GaussianRelease(noise_multiplier="2", label="r"), "noise_multiplier is '2'"),
        (lambda: GaussianRelease(noise_multiplier=True, label="r"), "noise_multiplier is True"),
        (lambda: GaussianRelease(noise_multiplier=1, label=""), "label is ''"),
        (lambda: GaussianRelease(noise_multiplier=1, label="two\nlines"), "label is 'two\\nlines'"),
        (lambda: GaussianRelease(noise_multiplier=1, label="x" * 501), "1 to 500"),
        (lambda: SampledGaussianSteps(sampling_rate=0, noise_multiplier=1, steps=1), "sampling_rate is 0"),
        (
            lambda: SampledGaussianSteps(sampling_rate=1.1, noise_multiplier=1, steps=1),
            "sampling_rate is 1.1",
        ),
        (lambda: SampledGaussianSteps(sampling_rate=0.1, noise_multiplier=1, steps=0), "steps is 0"),
        (lambda: SampledGaussianSteps(sampling_rate=0.1, noise_multiplier=1, steps=2.0), "steps is 2.0"),
        (lambda: SampledGaussianSteps(sampling_rate=0.1, noise_multiplier=1, steps=10**16), "steps is 1000"),
        (lambda: UnprotectedRelease(label="r", reason=None), "reason is None"),
        (lambda: event_json("r"), "event is 'r'"),
        (lambda: event_from_json([]), "event is []"),
        (lambda: event_from_json({"kind": "gaussian-relase"}), "did you mean 'gaussian-release'"),
        (lambda: event_from_json({**STEPS, "step": 5}), "did you mean 'steps'"),
        (lambda: event_from_json({k: v for k, v in STEPS.items() if k != "steps"}), "lacks the key 'steps'"),
        (lambda: event_from_json({**GAUSSIAN, "noise_multiplier": None}), "noise_multiplier is None"),
        (lambda: dp_event(3), "event is 3"),
    ],
)
def test_bad_values_are_named_in_one_line(build, shows):
    with pytest.raises(InvalidInputError) as caught:
        build()
    assert shows in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numpy_numbers_become_plain_ones():
    event = SampledGaussianSteps(sampling_rate=np.float32(0.5), noise_multiplier=np.float64(1.5), steps=np.int64(3))
    assert [type(event.sampling_rate), type(event.noise_multiplier), type(event.steps)] == [float, float, int]


def test_translation_to_dp_accounting():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    assert dp_event(GaussianRelease(noise_multiplier=1.5, label="r")) == gaussian
    steps = SampledGaussianSteps(sampling_rate=0.1, noise_multiplier=1.5, steps=7)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    assert dp_event(steps) == dp_accounting.SelfComposedDpEvent(sampled, 7)
    assert dp_event(UnprotectedRelease(label="r", reason="x")) == dp_accounting.NonPrivateDpEvent()
