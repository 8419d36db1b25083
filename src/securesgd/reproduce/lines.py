"""Cells of figures 2–5: a line of a figure is a trained model's settings, and a cell is such a line with its seed."""

__all__ = ["COLUMNS", "cells_of", "pixeldp_lines", "secure_lines"]

from collections.abc import Iterable, Sequence
from typing import Any

from securesgd.theory import noise_multiplier
from securesgd.theory.gaussian import Mechanism

_ROBUST_DELTA = 0.05  # the authors'

COLUMNS = (
    "dataset", "network", "method", "way", "place", "robust_epsilon", "unit", "epsilon", "batch_size", "steps",
    "learning_rate", "copies", "seed", "shown", "examples", "votes", "eot", "attack_steps", "budgets", "certify_draws",
)  # fmt: skip
"""`shown`: the protocol a line is measured by, or both. What a method does not have is None."""


def cells_of(common: dict[str, Any], lines: Iterable[dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the cells: each line over `common`, for each seed. Raises: KeyError for a column that is not there."""
    found = []
    for seed in seeds:
        for line in lines:
            values = {**common, **line, "seed": seed}
            if unknown := set(values) - set(COLUMNS):
                raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
            found.append({name: values.get(name) for name in COLUMNS})
    return found


def pixeldp_lines(attack_size: float, learned: str, learned_epsilon: float) -> list[dict[str, Any]]:
    """Return PixelDP, HGM_PixelDP at three robust_epsilon, and a further line with r learned and noise at the input.

    `learned` says where learning starts: a prior that looks away from the border suits digits, not photographs.
    """
    hgm = [
        {"method": "hgm-pixeldp", "way": "as-published", **_noise("extended", epsilon, attack_size)}
        for epsilon in (2.0, 4.0, 8.0)
    ]
    ours = {"method": "hgm-pixeldp", "way": learned, **_noise("extended", learned_epsilon, attack_size)}
    lines = [{"method": "pixeldp", "way": "uniform", **_noise("classic", 1.0, attack_size)}, *hgm]
    return [*({"place": "first-layer", "shown": "both", **line} for line in lines),
            {"place": "input", "shown": "sound", **ours}]  # fmt: skip


def secure_lines(attack_size: float, robust_epsilon: float, learned: str) -> list[dict[str, Any]]:
    """Return DP-SGD, and Secure-SGD with and without redistribution: as the paper has them, and soundly."""
    published = {"place": "first-layer", "shown": "as-published", "copies": 1}
    sound = {"place": "input", "shown": "sound", "copies": 1}
    extended, analytic = (_noise(mechanism, robust_epsilon, attack_size) for mechanism in ("extended", "analytic"))
    return [
        {"method": "dpsgd", "shown": "both"},
        {"method": "secure-sgd", "way": "as-published", **published, **extended},
        {"method": "secure-sgd-agm", "way": "uniform", **published, **analytic},
        {"method": "secure-sgd", "way": learned, **sound, **analytic},
        {"method": "secure-sgd-agm", "way": "uniform", **sound, **analytic},
    ]


def _noise(mechanism: Mechanism, robust_epsilon: float, attack_size: float) -> dict[str, float]:
    """Return the noise of the paper's construction: the input radius that one standard deviation of it is worth."""
    scale = float(noise_multiplier(robust_epsilon, _ROBUST_DELTA, mechanism))
    return {"robust_epsilon": robust_epsilon, "unit": round(scale * attack_size, 6)}
