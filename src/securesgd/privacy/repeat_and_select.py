"""How many trials a private search of hyper-parameters has, and how much noise each of them needs.

The number of trials K is secret and random: a truncated negative binomial law on 1, 2, 3, …

    P(K = k) ∝ (1 − γ)^k · Π_{l<k} (l + shape)/(l + 1)          shape 1: geometric; shape 0: logarithmic

With a K that is fixed or known, epsilon would be that of all K trials. With this law it is 1.4 (mean 2) to 2.7 times
(mean 100) that of one trial, for DP-SGD and the geometric law at epsilon = 3.
Reference: Papernot and Steinke 2022 (arXiv:2110.03620v2), Definition 1 and Theorem 2.
"""

__all__ = ["calibrated_repeat_and_select", "trial_count", "trial_count_pmf"]

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from mpmath.ctx_mp import MPContext

from securesgd.errors import InvalidInputError, PrivacyError
from securesgd.privacy.accounting import epsilon_spent
from securesgd.privacy.calibration import LARGEST_EPSILON, LARGEST_NOISE, RESOLUTION, SMALLEST_NOISE, largest_within
from securesgd.privacy.events import GaussianRelease, RepeatAndSelect, SampledGaussianSteps
from securesgd.runtime.key_stream import KeyStream
from securesgd.validate import validate_count, validate_positive

_PRECISION = 256  # bits of the probabilities: K has its law as exactly as the 128 bits that it is drawn from allow
_NEVER = 2.0**-140


def trial_count(event: RepeatAndSelect, stream: KeyStream) -> int:
    """Return K, the number of trials of the event; the same one from the same stream.

    Guarantee: K has the law that the event is accounted for, with a mean of at most `event.mean`, up to 2⁻¹²⁰ in total
    variation.
    Assumes: `stream` is secret and used for nothing else.
    """
    high, low = (int(word) for word in stream.words(2))
    context = _context()
    left = context.ldexp(context.mpf(high << 64 | low), -128)
    for k, probability in enumerate(_probabilities(event, context), start=1):
        left -= probability
        if left < 0 or (k > event.mean and probability < _NEVER):
            return k
    raise AssertionError("the probabilities do not end")


def trial_count_pmf(event: RepeatAndSelect, most: int) -> list[float]:
    """Return the probabilities that the event has 1, 2, …, `most` trials."""
    return [float(probability) for _, probability in zip(range(most), _probabilities(event, _context()), strict=False)]


def calibrated_repeat_and_select(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    mean: float,
    shape: float = 1.0,
    extra_events: Iterable[GaussianRelease] = (),
) -> RepeatAndSelect:
    """Return the event whose trials are `steps` DP-SGD steps, with the smallest noise that keeps it to `epsilon`.

    Guarantee: `epsilon_spent` of the event, by RDP, is <= epsilon, evaluated for the very event returned; with a noise
    multiplier of the steps smaller by 2e-6 of itself it is not. `extra_events` are parts of each trial too.
    Raises: InvalidInputError for invalid values; PrivacyError if no noise multiplier up to 1e6 is enough.
    """
    target, steps = validate_positive("epsilon", epsilon), validate_count("steps", steps, at_least=1)
    if target > LARGEST_EPSILON:
        raise InvalidInputError(f"epsilon is {epsilon!r}; valid: 0 < epsilon <= {LARGEST_EPSILON:g}")
    extra = tuple(extra_events)

    def event_at(k: int) -> RepeatAndSelect:
        noise = math.exp(-k * RESOLUTION)
        one = SampledGaussianSteps(sampling_rate=sampling_rate, noise_multiplier=noise, steps=steps)
        return RepeatAndSelect(trial=(one, *extra), mean=mean, shape=shape)

    ends = [round(-math.log(noise) / RESOLUTION) for noise in (LARGEST_NOISE, SMALLEST_NOISE)]
    k = largest_within(
        lambda k: epsilon_spent([event_at(k)], delta, "rdp"),
        target,
        start=0,
        stride=round(math.log(2) / RESOLUTION),
        lowest=ends[0],
        highest=ends[1],
    )
    if k is None:
        raise PrivacyError(
            f"epsilon {target:g} at delta {delta:g} cannot be reached by the best of {mean:g} trials of {steps} steps "
            f"with sampling rate {sampling_rate:g}, not even with noise multiplier {LARGEST_NOISE:g}"
        )
    return event_at(k)


@cache
def _context() -> Any:
    context = MPContext()
    context.prec = _PRECISION
    return context


def _probabilities(event: RepeatAndSelect, context: Any) -> Iterator[Any]:
    """Yield P(K = 1), P(K = 2), … without end, as numbers of the context."""
    shape, log_gamma = context.mpf(event.shape), context.mpf(_log_gamma(event.mean, event.shape))
    if log_gamma == 0:
        stop, probability = context.mpf(0), context.mpf(1)
    else:
        stop = -context.expm1(log_gamma)  # 1 − γ
        # γ^-shape − 1 over shape, which is log 1/γ at shape 0
        probability = stop / (context.expm1(-shape * log_gamma) / shape if shape else -log_gamma)
    k = 1
    while True:
        yield probability
        probability = probability * stop * (k + shape) / (k + 1)
        k += 1


def _log_gamma(mean: float, shape: float) -> float:
    """Return log γ for which K has the mean `mean`, or a slightly smaller one.

    The accountant rounds γ down and takes `mean` as it is: a γ rounded up is within its bound in both.
    """
    low, high = -700.0, 0.0  # the mean falls from e^700 / 700 or more to 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(middle, shape) > mean else (low, middle)
    return min(0.0, high * (1 - 1e-12) + 1e-15)


def _mean(log_gamma: float, shape: float) -> float:
    """Return the mean of K."""
    if log_gamma == 0:
        return 1.0
    gone = math.expm1(shape * log_gamma) / (shape * log_gamma) if shape else 1.0
    return math.exp(-log_gamma) / gone * (math.expm1(log_gamma) / log_gamma)
