"""Bounds on a mean of [0, 1] values (votes or scores) that hold with probability at least 1 − failure_prob.

====================  ===========================  ==================================================================
bound                 for                          holds
====================  ===========================  ==================================================================
`hoeffding_bounds`    scores or votes, all classes at one fixed number of draws, for all classes and sides at once
`clopper_pearson_*`   votes                        at one fixed number of draws, one side
`anytime_bounds`      scores or votes              at *every* number of draws at once: stop whenever you like
====================  ===========================  ==================================================================

Draws must be independent of each other, and the class a one-sided bound is about must not have been chosen by looking
at the same draws. Every bound is rounded outwards.
"""

__all__ = [
    "anytime_bounds",
    "anytime_log_evidence",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "hoeffding_bounds",
    "wilson_interval",
]

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, betaln, ndtri, xlog1py, xlogy

from securesgd.errors import InvalidInputError
from securesgd.validate import (
    Array,
    broadcast,
    like_input,
    nonnegative_array,
    open_probability_array,
    positive_array,
    probability_array,
)

_ROUNDING = 1e-12


def hoeffding_bounds(means: ArrayLike, draws: ArrayLike, failure_prob: float) -> tuple[Array, Array]:
    """Return (lower, upper) for the expected score of every class, the classes along the last axis of `means`.

    Guarantee: with probability >= 1 − failure_prob all classes are inside at once, so the top class may be read off
    the same means. Reference: Hoeffding 1963, Theorem 1, with a union bound over classes and sides.
    """
    mean = probability_array("means", means)
    if mean.ndim == 0:
        raise InvalidInputError("means must have the classes along its last axis, got a single number")
    n, alpha = _draws(draws), open_probability_array("failure_prob", failure_prob)
    if np.any(n < 1):
        raise InvalidInputError(f"draws must be >= 1, got {np.min(n):g}")
    half_width = np.sqrt(np.log(2 * mean.shape[-1] / alpha) / (2 * n)) + _ROUNDING
    half_width = half_width[..., None] if n.ndim else half_width
    return np.clip(mean - half_width, 0, 1), np.clip(mean + half_width, 0, 1)


def clopper_pearson_lower(successes: ArrayLike, draws: ArrayLike, failure_prob: ArrayLike) -> Array:
    """Return p with P(true probability >= p) >= 1 − failure_prob, exactly valid for any number of draws.

    Reference: Clopper & Pearson 1934.
    """
    k, n, alpha = _counts(successes, draws, failure_prob)
    with np.errstate(invalid="ignore"):
        bound = np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, alpha), 0.0)
    return like_input(np.clip(bound * (1 - _ROUNDING), 0, 1))


def clopper_pearson_upper(successes: ArrayLike, draws: ArrayLike, failure_prob: ArrayLike) -> Array:
    """Return q with P(true probability <= q) >= 1 − failure_prob."""
    k, n, alpha = _counts(successes, draws, failure_prob)
    # 1 − lower bound of the failures; the complement is formed last so that tiny q keep their digits.
    fewer = np.where(k < n, betaincinv(np.maximum(n - k, 1), k + 1, alpha), 0.0)
    return like_input(np.clip(np.nextafter(1 - fewer * (1 - _ROUNDING), 2), 0, 1))


def anytime_log_evidence(
    total: ArrayLike, draws: ArrayLike, mean: ArrayLike, prior: tuple[ArrayLike, ArrayLike] = (0.5, 0.5)
) -> Array:
    """Return the log of the wealth of a bet against "the expected value is `mean`", after draws adding up to `total`.

    Guarantee: if the expected value is `mean`, then with probability >= 1 − α this never exceeds log(1/α), at any
    number of draws. A decision "the expected value is above m" needs only this number, not the whole interval.

    Why: for x in [0, 1] and every θ, (θ/m)^x ((1−θ)/(1−m))^(1−x) is convex in x, so below its chord, whose expectation
    is 1 when E x = m. Products of such factors are supermartingales, and so is their Beta(a, b) mixture over θ, which
    is the expression below; Ville's inequality does the rest. `prior` = (a, b) is where the bet is placed: any values
    are valid that do not depend on the counted draws, and the nearer to the truth, the fewer draws are needed.
    Reference: Robbins 1970; Howard, Ramdas, McAuliffe & Sekhon 2021, arXiv:1810.08240v5, Section 3 (sub-Bernoulli
    beta-binomial mixture).
    """
    s, n = _total(total, draws)
    m, a, b = probability_array("mean", mean), positive_array("prior", prior[0]), positive_array("prior", prior[1])
    return like_input(np.asarray(_mixture(s, n, a, b) - _log_likelihood(s, n, m)))


def anytime_bounds(
    total: ArrayLike,
    draws: ArrayLike,
    failure_prob: float,
    prior: tuple[ArrayLike, ArrayLike] = (0.5, 0.5),
) -> tuple[Array, Array]:
    """Return (lower, upper) for the expected value, from `draws` values in [0, 1] that add up to `total`.

    Guarantee: with probability >= 1 − failure_prob the expected value is inside the bounds at all numbers of draws
    simultaneously, both sides together. No draws give (0, 1). `prior`: see `anytime_log_evidence`.
    """
    alpha = float(open_probability_array("failure_prob", failure_prob))
    s, n = _total(total, draws)
    a, b = positive_array("prior", prior[0]), positive_array("prior", prior[1])
    s, n, a, b = broadcast(total=s, draws=n, a=a, b=b)
    centre = np.divide(s, n, out=np.full(np.shape(s), 0.5), where=n > 0)
    threshold = -np.log(alpha) + 1e-9 + 2e-14 * (n + a + b)  # rounding of betaln, which grows with the counts
    least = _mixture(s, n, a, b) - threshold  # a mean is excluded if it makes the draws less likely than this
    bounds = []
    for end in (0.0, 1.0):
        outside, inside = np.full(np.shape(s), end), centre
        for _ in range(60):
            middle = 0.5 * (outside + inside)
            excluded = _log_likelihood(s, n, middle) < least
            outside, inside = np.where(excluded, middle, outside), np.where(excluded, inside, middle)
        bounds.append(like_input(np.asarray(outside)))
    return bounds[0], bounds[1]


def _mixture(s: Array, n: Array, a: Array, b: Array) -> Array:
    """Return the log of the average likelihood of the draws over θ ~ Beta(a, b)."""
    return np.asarray(betaln(s + a, n - s + b) - betaln(a, b))


def _log_likelihood(s: Array, n: Array, m: Array) -> Array:
    return np.asarray(xlogy(s, m) + xlog1py(n - s, -m))


def _draws(draws: ArrayLike) -> Array:
    n = nonnegative_array("draws", draws)
    if np.any(n != np.floor(n)):
        raise InvalidInputError("draws must be whole numbers")
    return n


def _total(total: ArrayLike, draws: ArrayLike) -> tuple[Array, Array]:
    s, n = broadcast(total=nonnegative_array("total", total), draws=_draws(draws))
    if np.any(s > n * (1 + 1e-6)):
        raise InvalidInputError(
            f"total of values in [0, 1] cannot exceed the number of draws, got {np.max(s - n):g} more"
        )
    return np.minimum(s, n), n


def _counts(successes: ArrayLike, draws: ArrayLike, failure_prob: ArrayLike) -> tuple[Array, Array, Array]:
    k, n, alpha = broadcast(
        successes=_draws(successes),
        draws=_draws(draws),
        failure_prob=open_probability_array("failure_prob", failure_prob),
    )
    if np.any(k > n) or np.any(n < 1):
        raise InvalidInputError("successes must be between 0 and draws, and draws >= 1")
    return k, n, alpha


def wilson_interval(successes: ArrayLike, n: ArrayLike, failure_prob: ArrayLike = 0.05) -> tuple[Array, Array]:
    """Return (lower, upper) of the true share, from `successes` out of `n` independent examples.

    Guarantee: approximate. Over true shares the coverage averages 1 − failure_prob; it never leaves [0, 1], contains
    successes/n, and is not of zero width at 0 or n successes.
    Raises: InvalidInputError unless 0 <= successes <= n, n >= 1 and 0 < failure_prob < 1.
    Reference: Wilson 1927; Brown, Cai & DasGupta 2001, Eq. 4.
    """
    k, total, alpha = broadcast(
        successes=nonnegative_array("successes", successes),
        n=nonnegative_array("n", n),
        failure_prob=open_probability_array("failure_prob", failure_prob),
    )
    if np.any(total < 1) or np.any(k > total):
        raise InvalidInputError("successes must be between 0 and n, and n >= 1")
    z = -ndtri(alpha / 2)
    share, weight = k / total, z**2 / total
    centre = (share + weight / 2) / (1 + weight)
    half_width = np.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    # At the ends the formula gives share itself up to rounding; the minimum and maximum make it exactly that.
    lower, upper = np.minimum(centre - half_width, share), np.maximum(centre + half_width, share)
    return like_input(np.clip(lower, 0, 1)), like_input(np.clip(upper, 0, 1))
