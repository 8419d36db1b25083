"""Epsilon by privacy loss distributions (PLD): tight, computed on a grid, rounded to the safe side.

The grid. dp-accounting replaces the privacy loss of one step by a distribution on multiples of an interval
that dominates it ("connect the dots"), so every interval gives an upper bound; a smaller one a closer bound.
With T steps the excess is about T·interval² (measured: T=20,000, q=0.002, c=1.1: 1e-3 -> +0.020, 1e-4 ->
+0.0002), the cost grows with range/interval. Therefore
    1e-5  if one step's loss stays below 0.5 (much noise or little sampling, hence many steps: cheap and
    needed), 1e-4  otherwise (700 steps at q=0.017, c=0.9: excess below 1e-5, 0.5 s the first time, 0.2 s
    after), 1e-3, 1e-2, 1e-1 once epsilon (by RDP) is beyond 100, 1,000, 10,000, or one step's loss beyond 40.
A grid is never refined when an event is added or noise is removed, so epsilon only grows with what is
released.

Rounding. The convolutions are done by FFT. Its errors can make the tail *too light*, by about 2e-17 per step
(measured against the exact Gaussian, T up to 1e6), which dp-accounting does not count. We ask it for a delta
smaller by 1e-15 per step, fifty times that; at delta 1e-5 and 1e5 steps this is 1e-5 of delta. Where less than
half of delta is left (delta < 2e-15 per step), the RDP bound is returned, which has no such floor.
"""

__all__ = ["pld_deltas", "pld_epsilon"]

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from securesgd.privacy.composition import Group
from securesgd.privacy.rdp import rdp_epsilon

SIZING_ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
LARGEST_PLD_EPSILON = 1e5
FFT_ERROR_PER_STEP = 1e-15
FFT_ERROR_BASE = 1e-14


def pld_epsilon(groups: Sequence[Group], delta: float, *, coarser: float = 1) -> float:
    """Return an epsilon for which the composed groups are (epsilon, delta)-DP under add-or-remove-one.

    Guarantee: an upper bound of the true epsilon, for any `coarser` >= 1 (a power of ten by which the grid is
    widened: ten times faster, for a search that is checked afterwards). Never NaN or negative. If the
    computation fails the result is inf, with a warning.
    Reference: Doroshenko et al. 2022 (arXiv:2207.04380v1), Alg. 1; as implemented by dp-accounting.
    """
    size = rdp_epsilon(groups, delta, SIZING_ORDERS)
    reachable = delta - FFT_ERROR_BASE - FFT_ERROR_PER_STEP * sum(group.steps for group in groups)
    if size > LARGEST_PLD_EPSILON or reachable < delta / 2:
        return rdp_epsilon(groups, delta)
    interval = _interval(groups, size) * coarser
    try:
        with np.errstate(all="ignore"):
            total = _compose(groups, interval)
            epsilon = _verified_epsilon(total, reachable, interval)
    except (ArithmeticError, ValueError, MemoryError) as failure:
        warnings.warn(
            f"the PLD accountant failed on {list(groups)} ({failure}); epsilon is reported as infinite",
            stacklevel=2,
        )
        return math.inf
    return epsilon


def pld_deltas(groups: Sequence[Group], epsilons: Sequence[float], *, coarser: float = 1) -> list[float]:
    """Return for each epsilon a delta for which the composed groups are (epsilon, delta)-DP under add-or-remove-one.

    Guarantee: upper bounds, as of `pld_epsilon`; the floor of its convolutions is added to each delta.
    """
    interval = _interval(groups, rdp_epsilon(groups, 1e-5, SIZING_ORDERS)) * coarser
    floor = FFT_ERROR_BASE + FFT_ERROR_PER_STEP * sum(group.steps for group in groups)
    with np.errstate(all="ignore"):
        total = _compose(groups, interval)
        return [min(1.0, float(delta) + floor) for delta in total.get_delta_for_epsilon(list(epsilons))]


def _interval(groups: Sequence[Group], size: float) -> float:
    """Return the grid's interval; see the module's docstring."""
    if size > 1e3:
        return 1e-2 if size <= 1e4 else 1e-1
    largest = max(_largest_loss(group) for group in groups)
    if size > 100 or largest > 40:
        return 1e-3
    return 1e-5 if largest <= 0.5 else 1e-4


def _largest_loss(group: Group) -> float:
    """Return the privacy loss of one step at ten standard deviations, beyond which the tail is cut."""
    exponent = 10 / group.noise_multiplier + 0.5 / group.noise_multiplier**2
    return math.log1p(group.sampling_rate * math.expm1(exponent)) if exponent < 100 else math.inf


def _compose(groups: Sequence[Group], interval: float) -> pld.PrivacyLossDistribution:
    total = pld.identity(value_discretization_interval=interval)
    for group in groups:
        step = _single_step(group.sampling_rate, group.noise_multiplier, interval)
        total = total.compose(step.self_compose(group.steps) if group.steps > 1 else step)
    return total


@lru_cache(maxsize=16)
def _single_step(sampling_rate: float, noise_multiplier: float, interval: float) -> pld.PrivacyLossDistribution:
    """Return the loss distribution of one step: the slow part, cached."""
    return pld.from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=True,
        value_discretization_interval=interval,
        sampling_prob=sampling_rate,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _verified_epsilon(total: pld.PrivacyLossDistribution, delta: float, interval: float) -> float:
    """Return the distribution's epsilon at `delta`, moved up until the divergence itself says so.

    dp-accounting sums exp(-loss), which loses its digits beyond losses of 700; the divergence is stable
    there.
    """
    epsilon = max(0.0, float(total.get_epsilon_for_delta(delta)))
    if math.isnan(epsilon):
        raise ValueError("epsilon is not a number")
    epsilon += 1e-9 * max(1.0, epsilon)
    for _ in range(200):
        if math.isinf(epsilon) or float(total.get_delta_for_epsilon(epsilon)) <= delta:
            return epsilon
        epsilon += max(interval, 1e-3 * epsilon)
    raise ValueError("the divergence stays above delta")
