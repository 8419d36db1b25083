"""Confidence intervals for a share of examples: the interval beside every accuracy.

The Wilson score interval is about the *population* the test examples were drawn from, and close to its stated coverage
on average over the true share. It is for comparing and plotting; a certificate needs the exact bounds of
`confidence.py`.
"""

__all__ = ["wilson_interval"]

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from securesgd.errors import InvalidInputError
from securesgd.theory.validation import Array, broadcast, like_input, nonnegative, open_probability


def wilson_interval(successes: ArrayLike, n: ArrayLike, failure_prob: ArrayLike = 0.05) -> tuple[Array, Array]:
    """Return (lower, upper) of the true share, from `successes` out of `n` independent examples.

    Guarantee: approximate. Over true shares the coverage averages 1 − failure_prob; it never leaves [0, 1], contains
    successes/n, and is not of zero width at 0 or n successes.
    Raises: InvalidInputError unless 0 <= successes <= n, n >= 1 and 0 < failure_prob < 1.
    Reference: Wilson 1927; Brown, Cai & DasGupta 2001, Eq. 4.
    """
    k, total, alpha = broadcast(
        successes=nonnegative("successes", successes),
        n=nonnegative("n", n),
        failure_prob=open_probability("failure_prob", failure_prob),
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
