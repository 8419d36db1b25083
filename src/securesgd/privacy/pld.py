"""Epsilon by privacy loss distributions (PLD): tight, computed on a grid, rounded to the safe side.

The grid. dp-accounting replaces the privacy loss of one step by a distribution on multiples of an interval
that dominates it ("connect the dots"), so every interval gives an upper bound; a smaller one a closer bound.
With T steps the excess is about T·interval² (measured: T=20,000, q=0.002, c=1.1: 1e-3 -> +0.020, 1e-4 ->
+0.0002), the cost grows with range/interval. Therefore
    1e-5  if one step's loss stays below 0.5 (much noise or little sampling, hence many steps: cheap and
    needed), 1e-4  otherwise (700 steps at q=0.017, c=0.9: excess below 1e-5, 0.1 s the first time, 0.05 s
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
from functools import reduce

import numpy as np

from securesgd.privacy.composition import Group
from securesgd.privacy.loss_distribution import LossCurve, LossDistribution, step_distribution
from securesgd.privacy.rdp import rdp_epsilon

SIZING_ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
LARGEST_PLD_EPSILON = 1e5
FFT_ERROR_PER_STEP = 1e-15
FFT_ERROR_BASE = 1e-14


def pld_epsilon(groups: Sequence[Group], delta: float, *, coarser: float = 1, removal_only: bool = False) -> float:
    """Return an epsilon for which the composed groups are (epsilon, delta)-DP under add-or-remove-one.

    Guarantee: an upper bound of the true epsilon, for any `coarser` >= 1 (a power of ten by which the grid is
    widened: ten times faster, for a search that is checked afterwards). With `removal_only`, also for such a
    search, it holds for removing one only: never above the epsilon of both, and nearly always equal. Never NaN or
    negative. If the computation fails the result is inf, with a warning.
    Reference: Doroshenko et al. 2022 (arXiv:2207.04380v1), Alg. 1; as implemented by dp-accounting.
    """
    size = rdp_epsilon(groups, delta, SIZING_ORDERS)
    reachable = delta - FFT_ERROR_BASE - FFT_ERROR_PER_STEP * sum(group.steps for group in groups)
    if size > LARGEST_PLD_EPSILON or reachable < delta / 2:
        return rdp_epsilon(groups, delta)
    interval = _interval(groups, size) * coarser
    try:
        with np.errstate(all="ignore"):
            total = _compose(groups, interval, removal_only)
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
        curves = _compose(groups, interval, removal_only=False)
        return [min(1.0, max(curve.divergence(epsilon) for curve in curves) + floor) for epsilon in epsilons]


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


def _compose(groups: Sequence[Group], interval: float, removal_only: bool) -> list[LossCurve]:
    """Return the divergences of all groups together when an example is removed, and (if they differ) when one is added.

    The loss of one step is kept, so that another number of the same steps costs one convolution.
    """
    one_way = removal_only or all(group.sampling_rate == 1 for group in groups)
    return [
        reduce(
            LossDistribution.plus,
            (
                step_distribution(group.sampling_rate, group.noise_multiplier, interval, removal=removal).repeated(
                    group.steps
                )
                for group in groups
            ),
        ).curve()
        for removal in ((True,) if one_way else (True, False))
    ]


def _verified_epsilon(curves: Sequence[LossCurve], delta: float, interval: float) -> float:
    """Return the epsilon of all these curves at `delta`, moved up until their divergences say so."""
    epsilon = max(curve.epsilon(delta) for curve in curves)
    if math.isnan(epsilon):
        raise ValueError("epsilon is not a number")
    epsilon += 1e-9 * max(1.0, epsilon)
    for _ in range(200):
        if math.isinf(epsilon) or all(curve.divergence(epsilon) <= delta for curve in curves):
            return epsilon
        epsilon += max(interval, 1e-3 * epsilon)
    raise ValueError("the divergence stays above delta")
