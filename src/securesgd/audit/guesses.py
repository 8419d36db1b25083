"""From what a run released to guesses of its coins; the coins themselves are never looked at.

White box. Of every step t the auditor sees x_t, the part of the release along each canary's gradient. If canary and
step are independent and the engine is right, x_t is N(0, s²), or N(a, s²) with probability q if the canary is in the
data (a: clipping norm, s: noise). The log-likelihood ratio Σ_t log(1 − q + q·exp((a·x_t − a²/2)/s²)) is then the
strongest score there is. a and s are read off the releases themselves, which makes the same score strong against
engines that are wrong: without clipping, or with less noise. Noise that was used twice cancels in differences.

Black box. The loss of a canary after training, compared with that before.

Guessed are the canaries whose score is furthest from the middle. How many is fixed beforehand; everything else may
depend on the releases, and only on them: the theorems allow that (`theory.audit`).
"""

__all__ = ["count_right", "white_box_scores"]

import numpy as np
from numpy.typing import NDArray

from securesgd.validate import Array

_NORMAL_QUARTILE = 0.6744897501960817
_FAR = 8.0  # standard deviations of noise that no noise reaches
_SAME = 0.01  # of the noise: two steps whose releases are that close for many canaries have the same noise
_SAME_SHARE = 0.2  # of the canaries; by chance 0.6 % are
_LOOKED_AT = 512  # canaries that decide which steps share their noise
_CERTAIN = 1e6


def white_box_scores(traces: Array, *, sampling_rate: float, clipping_norm: float) -> Array:
    """Return a score for each canary of `traces`, shape [steps, canaries]: its log-odds to be in the data.

    `traces` are in units in which the honest contribution of a sampled canary is `clipping_norm`. They are of one kind
    of canaries.
    """
    noise = float(np.median(np.abs(traces - np.median(traces)))) / _NORMAL_QUARTILE
    noise = max(noise, 1e-6 * clipping_norm)
    far = traces[traces > clipping_norm + _FAR * noise]
    amplitude = float(np.median(far)) if len(far) else clipping_norm
    exponent = (amplitude * traces - amplitude**2 / 2) / noise**2
    if sampling_rate < 1:
        exponent = np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + exponent)
    groups = _steps_with_the_same_noise(traces, noise)
    alone = np.setdiff1d(np.arange(len(traces)), np.concatenate([*groups, np.zeros(0, dtype=np.intp)]))
    scores: Array = exponent[alone].sum(axis=0)
    for steps in groups:  # without noise: who is in some of them and not in others is in the data
        contributes = np.ptp(traces[steps], axis=0) > clipping_norm / 2
        absent = np.log(max((1 - sampling_rate) ** len(steps) + sampling_rate ** len(steps), 1e-300))
        scores = np.where(contributes, _CERTAIN, scores + absent)
    return scores


def _steps_with_the_same_noise(traces: Array, noise: float) -> list[NDArray[np.intp]]:
    """Return groups of steps, each of at least two, whose releases are the same for many canaries."""
    part = traces[:, :_LOOKED_AT]
    free = np.ones(len(part), dtype=bool)
    groups = []
    for step in range(len(part)):
        if not free[step]:
            continue
        same = np.mean(np.abs(part - part[step]) < _SAME * noise, axis=1) > _SAME_SHARE
        group = np.flatnonzero(same & free)
        free[group] = False
        if len(group) > 1:
            groups.append(group)
    return groups


def count_right(scores: Array, coins: NDArray[np.bool_], guesses: int) -> int:
    """Return how many of `guesses` guesses are right: those for the scores furthest from zero, in if positive.

    Scores are log-odds, or differences from the median of scores. The coins are looked at here, after all is decided.
    """
    guessed = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    return int(np.sum((scores[guessed] > 0) == coins[guessed]))
