"""Noise for a target epsilon, and steps for a given noise: the two inverses of the accountant."""

__all__ = ["affordable_steps", "calibrated_noise_multiplier", "largest_within"]

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from securesgd.errors import InvalidInputError, PrivacyError
from securesgd.privacy.accounting import Accountant, composition_epsilon, epsilon_spent, validate_accountant
from securesgd.privacy.composition import Composition, compose
from securesgd.privacy.events import PrivacyEvent, SampledGaussianSteps
from securesgd.privacy.pld import pld_epsilon
from securesgd.privacy.rdp import FEW_ORDERS, rdp_epsilon
from securesgd.validate import validate_count, validate_delta, validate_positive, validate_sampling_rate

Point = tuple[int, float]


def largest_within(
    value_at: Callable[[int], float], limit: float, *, start: int, stride: int, lowest: int, highest: int
) -> int | None:
    """Return the largest k in [lowest, highest] with value_at(k) <= limit, or None if there is none.

    Guarantee: the returned k was evaluated and is within the limit; k + 1 was evaluated and is not, or k is
    `highest`. If value_at is not monotone only the first part and "some k + 1 is not" hold.
    Assumes: value_at(k) >= 0 does not decrease. `start` and `stride` (the first step away from it) only
    change how many evaluations are needed: about five with a good start.
    """
    bracket = _bracket(value_at, limit, min(max(start, lowest), highest), max(1, stride), lowest, highest)
    if isinstance(bracket, int) or bracket is None:
        return bracket
    within, beyond = bracket
    last_within = False
    for attempt in itertools.count():
        gap = beyond[0] - within[0]
        if gap <= 1:
            break
        # Interpolation lands next to the crossing, but always on the same side; so aim a little past it, to
        # the side not hit last. Every third attempt bisects, in case the function bends too much.
        guess, nudge = _interpolate(within, beyond, limit), gap // 1000
        aim = guess + 1 + nudge if last_within else guess - nudge
        k = (within[0] + beyond[0]) // 2 if attempt % 3 == 2 else min(max(aim, within[0] + 1), beyond[0] - 1)
        value = value_at(k)
        last_within = value <= limit
        if last_within:
            within = (k, value)
        else:
            beyond = (k, value)
    return within[0]


def _bracket(
    value_at: Callable[[int], float], limit: float, start: int, stride: int, lowest: int, highest: int
) -> tuple[Point, Point] | int | None:
    """Return points (within, beyond) around the crossing; the answer itself if it is at an end."""
    point = (start, value_at(start))
    if point[1] <= limit:
        while point[0] < highest:
            k = min(point[0] + stride, highest)
            higher = (k, value_at(k))
            if not higher[1] <= limit:
                return point, higher
            point, stride = higher, stride * 4
        return highest
    while point[0] > lowest:
        k = max(point[0] - stride, lowest)
        lower = (k, value_at(k))
        if lower[1] <= limit:
            return lower, point
        point, stride = lower, stride * 4
    return None


def _interpolate(within: Point, beyond: Point, limit: float) -> int:
    """Return the last k before the crossing if log(value) were linear between the two points."""
    (a, low), (b, high) = within, beyond
    if not (0 < low < limit < high < math.inf):
        return (a + b) // 2
    return a + math.floor((b - a) * math.log(limit / low) / math.log(high / low))


LARGEST_EPSILON = 1000.0
LARGEST_NOISE = 1e6
SMALLEST_NOISE = 1e-3
RESOLUTION = 2e-6  # noise multipliers are searched on the grid exp(-k·RESOLUTION)
MOST_STEPS = 10_000_000


def calibrated_noise_multiplier(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: str = "pld",
    extra_events: Iterable[PrivacyEvent] = (),
) -> float:
    """Return the smallest noise multiplier that keeps `steps` DP-SGD steps and `extra_events` to `epsilon`.

    Guarantee: `epsilon_spent` of the steps and extra events is <= epsilon, evaluated for the very number
    returned; a multiplier smaller by 2e-6 of itself is not enough. (The epsilon reached is then within 1e-3
    of the target, unless the extra events cost nearly all of it, or the PLD grid changes right there, which
    matters beyond 1e5 steps.)
    Raises: InvalidInputError for invalid values or epsilon > 1000; PrivacyError if no noise multiplier up to
    1e6 is enough, for instance because the extra events alone cost more.
    """
    target = validate_positive("epsilon", epsilon)
    if target > LARGEST_EPSILON:
        raise InvalidInputError(f"epsilon is {epsilon!r}; valid: 0 < epsilon <= {LARGEST_EPSILON:g}")
    delta, name = validate_delta(delta), validate_accountant(accountant)
    rate, steps, extra = (
        validate_sampling_rate(sampling_rate),
        validate_count("steps", steps, at_least=1),
        tuple(extra_events),
    )
    alone = epsilon_spent(extra, delta, name)
    if alone >= target:
        raise PrivacyError(f"the other releases alone cost epsilon {alone:.6g}; the target {target:g} leaves nothing")

    def composition_at(k: int) -> Composition:
        run = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=math.exp(-k * RESOLUTION), steps=steps)
        return compose((*extra, run))

    @cache
    def nearly_epsilon(k: int, coarser: float) -> float:
        groups, _, selections = composition = composition_at(k)
        if name == "pld":
            return pld_epsilon(groups, delta, coarser=coarser, removal_only=True)
        if coarser > 1:
            return rdp_epsilon(groups, delta, FEW_ORDERS, selections)
        return composition_epsilon(composition, delta, name)

    def epsilon_at(k: int) -> float:
        if name == "pld" and (below := nearly_epsilon(k, 1)) > target:
            return below  # too much, and the other direction can only add to it
        return composition_epsilon(composition_at(k), delta, name)

    lowest, highest = -_grid(LARGEST_NOISE), -_grid(SMALLEST_NOISE)
    # With much noise, DP-SGD is close to one Gaussian release with multiplier c/(q·sqrt(T)).
    # Both divisions overflow for numbers near the smallest: the guess only has to be one that can be searched from.
    guess = rate * math.sqrt(2 * steps * (math.log(1.25) - math.log(delta))) / max(target, 1e-100)
    guess = min(max(0.5, guess), LARGEST_NOISE)
    start, stride = -_grid(guess), -_grid(0.7)
    # The same crossing at a fraction of the cost, only to start the real search next to it.
    near = _near_crossing(nearly_epsilon, target, start=start, stride=stride, lowest=lowest, highest=highest)
    start, stride = (start, stride) if near is None else (near, 1)
    k = largest_within(epsilon_at, target, start=start, stride=stride, lowest=lowest, highest=highest)
    if k is None:
        raise PrivacyError(
            f"epsilon {target:g} at delta {delta:g} cannot be reached in {steps} steps with sampling rate "
            f"{rate:g}, not even with noise multiplier {LARGEST_NOISE:g}"
        )
    return math.exp(-k * RESOLUTION)


def _near_crossing(
    value_at: Callable[[int, float], float], limit: float, *, start: int, stride: int, lowest: int, highest: int
) -> int | None:
    """Return the last k before value_at(k, 1) crosses `limit`, or one nearby; None if there is no crossing.

    value_at(k, coarser) is nearly the same for larger `coarser` and costs less: coarse values narrow the search down,
    then secants of log(value) need about two exact ones. Nothing rests on the result but the time of what follows.
    """
    bracket = _bracket(lambda k: value_at(k, 10), limit, min(max(start, lowest), highest), stride, lowest, highest)
    if bracket is None or isinstance(bracket, int):
        return bracket
    (before, first), (k, value) = bracket
    coarser, slope = 10.0, math.nan
    for _ in range(_MOST_SECANTS):
        if k != before:
            usable = min(first, value) > 0 and max(first, value) < math.inf
            slope = math.log(value / first) / (k - before) if usable else math.nan
        if not slope > 0:
            break
        ahead = math.floor(math.log(limit / value) / slope)
        if abs(ahead) <= _CLOSE[coarser]:
            if coarser == 1:
                return k + ahead
            coarser = 1.0  # exact values from here on, at first with the slope of the coarse ones
            before = k = min(max(k + ahead, lowest), highest)
            first = value = value_at(k, coarser)
        else:
            before, first = k, value
            k = min(max(k + ahead, lowest), highest)
            value = value_at(k, coarser)
    return k


_MOST_SECANTS = 20
_CLOSE = {10.0: 500, 1.0: 3}
"""Steps of the grid to the next guess at which coarse, and exact, values are near enough."""


def affordable_steps(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    spent: Iterable[PrivacyEvent] = (),
    accountant: str = "pld",
    at_most: int = MOST_STEPS,
) -> int:
    """Return the largest number of DP-SGD steps, up to `at_most`, that keeps to `epsilon` after `spent`.

    Guarantee: `epsilon_spent` of `spent` and that many steps is <= epsilon; with one step more it is not
    (unless the result is `at_most`). 0 if not even one step is affordable.
    Raises: InvalidInputError for invalid values.
    """
    target = validate_positive("epsilon", epsilon)
    delta, name = validate_delta(delta), validate_accountant(accountant)
    most, past = validate_count("at_most", at_most, at_least=0), tuple(spent)
    one = SampledGaussianSteps(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=1)
    if most == 0 or math.isinf(epsilon_spent((*past, one), delta, name)):
        return 0
    start, stride = _steps_by_rdp(target, delta, one, past, most), 1
    if name == "pld":
        stride = max(1, start // 8)  # PLD usually affords 10 to 40 % more
    return _most_steps(target, delta, one, past, name, start=start, stride=stride, most=most)


def _steps_by_rdp(
    target: float, delta: float, one: SampledGaussianSteps, past: Sequence[PrivacyEvent], most: int
) -> int:
    return _most_steps(target, delta, one, past, "rdp", start=1, stride=64, most=most)


def _most_steps(
    target: float,
    delta: float,
    one: SampledGaussianSteps,
    past: Sequence[PrivacyEvent],
    accountant: Accountant,
    *,
    start: int,
    stride: int,
    most: int,
) -> int:
    def epsilon_at(steps: int) -> float:
        if steps == 0:
            return epsilon_spent(past, delta, accountant)
        run = SampledGaussianSteps(sampling_rate=one.sampling_rate, noise_multiplier=one.noise_multiplier, steps=steps)
        return epsilon_spent((*past, run), delta, accountant)

    return largest_within(epsilon_at, target, start=start, stride=stride, lowest=0, highest=most) or 0


def _grid(noise_multiplier: float) -> int:
    return round(math.log(noise_multiplier) / RESOLUTION)
