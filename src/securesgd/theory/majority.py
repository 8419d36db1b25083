"""What vote counts prove about the larger of two probabilities, and how many failures chance allows."""

__all__ = ["ahead_log_p_value", "allowed_failures", "proven_ahead"]

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, betainc

from securesgd.errors import InvalidInputError
from securesgd.validate import Array, broadcast, like_input, nonnegative_array, open_probability_array, validate_count


def ahead_log_p_value(first: ArrayLike, second: ArrayLike) -> Array:
    """Return the log of the probability of `first` or more votes, out of first + second, if both are equally likely.

    Guarantee: a valid p-value against "the second class is at least as probable as the first", at any number of
    classes: given that a draw goes to one of the two, it goes to the first with probability at most ½. No votes: 0.
    Reference: the conditional (sign) test; Cohen et al. 2019, Appendix B, for noisy classifiers.
    """
    k, other = broadcast(first=nonnegative_array("first", first), second=nonnegative_array("second", second))
    if np.any(k != np.floor(k)) or np.any(other != np.floor(other)):
        raise InvalidInputError("votes must be whole numbers")
    with np.errstate(divide="ignore"):
        tail = np.where(k > 0, np.log(betainc(np.maximum(k, 1), other + 1, 0.5)), 0.0)
    return like_input(np.asarray(tail))


def proven_ahead(first: ArrayLike, second: ArrayLike, failure_prob: ArrayLike) -> NDArray[np.bool_]:
    """Return where the votes prove that the first class is more probable than the second.

    Guarantee: where it is not, the answer is True with probability at most failure_prob. Assumes: independent draws;
    classes that were not chosen by these votes, or failure_prob divided by the number of choices.
    """
    alpha = open_probability_array("failure_prob", failure_prob)
    return np.asarray(np.asarray(ahead_log_p_value(first, second)) <= np.log(alpha))


def allowed_failures(claims: int, failure_prob: float, level: float = 1e-3) -> int:
    """Return the largest number of failures that chance explains, if each claim fails with at most `failure_prob`.

    More than this has probability at most `level` if the claims are independent: then something else is wrong.
    """
    validate_count("claims", claims, 0)
    alpha, least = (
        float(open_probability_array("failure_prob", failure_prob)),
        float(open_probability_array("level", level)),
    )
    count = 0
    while count < claims and bdtrc(count, claims, alpha) > least:
        count += 1
    return count
