"""The mathematics of the heterogeneous Gaussian mechanism: pure functions of floats and arrays, no torch, no I/O.

The names in `__all__` are for use from outside; modules here import `errors` and `validate` only.
"""

from securesgd.theory.certificates import RULES, as_published_radius, certified_radius, whitened_radius
from securesgd.theory.confidence import (
    anytime_bounds,
    anytime_log_evidence,
    clopper_pearson_lower,
    clopper_pearson_upper,
    hoeffding_bounds,
)
from securesgd.theory.gaussian import MECHANISMS, delta_from, epsilon_from, noise_multiplier
from securesgd.theory.linear_maps import Convolution
from securesgd.theory.redistribution import (
    component_std,
    expand_channels,
    from_scores,
    mix_with_uniform,
    uniform,
    validated,
)
from securesgd.theory.sensitivity import NORMS, Sensitivity, published_sensitivity, sensitivity

__all__ = [
    "MECHANISMS",
    "NORMS",
    "RULES",
    "Convolution",
    "Sensitivity",
    "anytime_bounds",
    "anytime_log_evidence",
    "as_published_radius",
    "certified_radius",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "component_std",
    "delta_from",
    "epsilon_from",
    "expand_channels",
    "from_scores",
    "hoeffding_bounds",
    "mix_with_uniform",
    "noise_multiplier",
    "published_sensitivity",
    "sensitivity",
    "uniform",
    "validated",
    "whitened_radius",
]
