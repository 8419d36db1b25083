"""Is one method better than another? Paired tests over seeds, attacks and budgets, and gains as the paper states them.

The paper gives an average gain and "p < … (2 tail t-test)" over the points of its figures. Pairs must be measurements
of the two methods under the same conditions; two points of one trained model are not independent evidence about
*training*, so a test over several seeds is worth more than one over several budgets of the same seed.
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
    pair_by: Sequence[str],
    per: Sequence[str] = (),
    method: str = "method",
) -> list[dict[str, Any]]:
    """Return a row per other method (and per value of the columns `per`): the average gain of `ours` and its test.

    Rows of two methods are a pair if they agree in all columns of `pair_by`; a measurement without a partner is left
    out. `gain` and its interval are in the units of `value`, `relative_gain` is against the other method's mean.
    Raises: InvalidInputError if `ours` has no rows, or a method has two rows for the same pair.
    """
    by_method: dict[str, dict[tuple[Any, ...], float]] = {}
    for row in rows:
        if row[value] is None:
            continue
        key = tuple(row[name] for name in (*per, *pair_by))
        there = by_method.setdefault(str(row[method]), {})
        if key in there:
            raise InvalidInputError(f"{row[method]} has two rows for {dict(zip((*per, *pair_by), key, strict=True))}")
        there[key] = float(row[value])
    if ours not in by_method:
        raise InvalidInputError(f"no rows of {ours!r}; there are: {', '.join(sorted(by_method)) or 'none'}")
    found = []
    for other in sorted(set(by_method) - {ours}):
        shared = [key for key in by_method[ours] if key in by_method[other]]
        for group in sorted({key[: len(per)] for key in shared}, key=str):
            keys = [key for key in shared if key[: len(per)] == group]
            if len(keys) < 2:
                continue
            a, b = ([by_method[name][key] for key in keys] for name in (ours, other))
            test, base = paired_t_test(a, b), float(np.mean(b))
            found.append(
                {
                    **dict(zip(per, group, strict=True)),
                    "ours": ours,
                    "against": other,
                    "value": value,
                    "pairs": test.pairs,
                    "gain": test.gain,
                    "lower": test.lower,
                    "upper": test.upper,
                    "relative_gain": test.gain / base if base else None,
                    "t": test.t,
                    "p_value": test.p_value,
                }
            )
    return found
