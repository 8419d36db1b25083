"""Is one method better than another? Gains as the paper states them, with paired tests over seeds.

The paper gives an average gain and "p < … (2 tail t-test)" over the points of its figures. Two points of one trained
model are not independent evidence about *training*, so here the points of a seed are averaged first: a pair is a seed.
"""

__all__ = ["PairedTest", "gain_rows", "paired_t_test"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError
from securesgd.validate import finite_array, open_probability_array


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """Ours minus theirs over the pairs."""

    pairs: int
    gain: float
    """Mean difference."""
    lower: float
    upper: float
    """Confidence interval of the mean difference."""
    t: float
    p_value: float
    """Two-tailed; 1 if there is no difference at all."""


def paired_t_test(ours: ArrayLike, theirs: ArrayLike, failure_prob: float = 0.05) -> PairedTest:
    """Return the two-tailed paired t-test of two lists of measurements, pair by pair.

    Assumes: differences that are independent and roughly normal.
    Raises: InvalidInputError for lists of different length, or fewer than two pairs.
    """
    from scipy.stats import ttest_rel  # half a second to load

    a, b = finite_array("ours", ours), finite_array("theirs", theirs)
    alpha = float(open_probability_array("failure_prob", failure_prob))
    if a.ndim != 1 or a.shape != b.shape or a.size < 2:
        raise InvalidInputError(f"a paired test needs two lists of equal length >= 2, got {a.shape} and {b.shape}")
    difference = a - b
    gain = float(difference.mean())
    if np.ptp(difference) <= 1e-12 * max(1.0, float(np.abs(difference).max())):  # no spread: the test divides by zero
        sure = abs(gain) > 1e-12
        t = float(np.copysign(np.inf, gain)) if sure else 0.0
        return PairedTest(pairs=a.size, gain=gain, lower=gain, upper=gain, t=t, p_value=0.0 if sure else 1.0)
    result = ttest_rel(a, b)
    lower, upper = result.confidence_interval(1 - alpha)
    return PairedTest(
        pairs=a.size,
        gain=gain,
        lower=float(lower),
        upper=float(upper),
        t=float(result.statistic),
        p_value=float(result.pvalue),
    )


def gain_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    ours: str,
    value: str,
    points: Sequence[str],
    per: Sequence[str] = (),
    method: str = "method",
) -> list[dict[str, Any]]:
    """Return a row per other method (and per value of the columns `per`): the average gain of `ours` and its test.

    The measurements of a seed are averaged over its `points` (columns like attack and budget), those that both methods
    have. The paired test is over seeds: interval and p-value are None with fewer than two. `gain` and its interval are
    in the units of `value`, `relative_gain` is against the other method's mean.
    Raises: InvalidInputError if `ours` has no rows, or a method has two rows for the same seed and point.
    """
    by_method: dict[str, dict[tuple[Any, ...], float]] = {}
    for row in rows:
        if row[value] is None:
            continue
        key = (tuple(row[name] for name in per), row["seed"], tuple(row[name] for name in points))
        measured = by_method.setdefault(str(row[method]), {})
        if key in measured:
            raise InvalidInputError(f"{row[method]} has two rows for seed {row['seed']} and {(*key[0], *key[2])}")
        measured[key] = float(row[value])
    if ours not in by_method:
        raise InvalidInputError(f"no rows of {ours!r}; there are: {', '.join(sorted(by_method)) or 'none'}")
    gains = []
    for other in sorted(set(by_method) - {ours}):
        shared = [key for key in by_method[ours] if key in by_method[other]]
        for group in sorted({key[0] for key in shared}, key=str):
            keys = [key for key in shared if key[0] == group]
            seeds = sorted({key[1] for key in keys})
            a, b = (_seed_means(by_method[name], keys, seeds) for name in (ours, other))
            test = paired_t_test(a, b) if len(seeds) > 1 else None
            gain, base = float(np.mean(a) - np.mean(b)), float(np.mean(b))
            gains.append(
                {
                    **dict(zip(per, group, strict=True)),
                    "ours": ours,
                    "against": other,
                    "value": value,
                    "points": len({key[2] for key in keys}),
                    "seeds": len(seeds),
                    "gain": gain,
                    "lower": test and test.lower,
                    "upper": test and test.upper,
                    "relative_gain": gain / base if base else None,
                    "t": test and test.t,
                    "p_value": test and test.p_value,
                }
            )
    return gains


def _seed_means(measured: Mapping[tuple[Any, ...], float], keys: Sequence[Any], seeds: Sequence[Any]) -> list[float]:
    """Return the mean over the keys of each seed."""
    return [float(np.mean([measured[key] for key in keys if key[1] == seed])) for seed in seeds]
