"""From bounds on class probabilities to a proven radius.

The smoothed classifier averages f over noise N(0, σ² K r) in the first layer. Let p be a lower bound of the top
class's expected score and q an upper bound of every other class's. `whitened_radius` returns ρ: no change that moves
the whitened first layer by ρ or less (in l2) makes another class's expected score reach the top one's. A change of the
input of l_p size μ moves it by at most Δ_p·μ/σ, hence μ_max = ρ·σ/Δ_p (`certified_radius`).

=========  ==========================================================================================================
rule       whitened radius
=========  ==========================================================================================================
classic    max over ε in (0, 1] of 1/c_classic(ε, d), d = (p − e^{2ε} q)/(1 + e^ε): the DP argument of PixelDP
extended   the same with c_extended and any ε > 0: the paper's rule, done right
analytic   the same with c_analytic: the best the DP argument gives
tight      (Φ⁻¹(p) − Φ⁻¹(q))/2: Neyman–Pearson; the largest radius p and q allow (Cohen et al. 2019, Theorem 1;
           for scores in [0, 1] by the same argument, Levine et al. 2019, Salman et al. 2019)
=========  ==========================================================================================================

Choosing ε after seeing p and q is allowed: the mechanism satisfies all pairs (ε, δ(ε)) at once.

`CERTIFICATE_RULES` lists what is computed, stored, summarised and drawn for every certificate. One more row there is
one more rule everywhere: `CERTIFICATE_RULES["mine"] = CertificateRule(radius=function, is_guarantee=False)`.
"""

__all__ = [
    "BUILT_IN_RULES",
    "CERTIFICATE_RULES",
    "RULES",
    "CertificateRule",
    "as_published_radius",
    "certified_radius",
    "radii_by_rule",
    "rule_caveat",
    "whitened_radius",
]

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.gaussian import noise_multiplier
from securesgd.validate import (
    Array,
    broadcast,
    like_input,
    nonnegative_array,
    open_probability_array,
    positive_array,
    probability_array,
)

Rule = Literal["classic", "extended", "analytic", "tight"]
RULES: tuple[str, ...] = get_args(Rule)

_DOWN = 1 - 1e-12
_ULP = float(np.finfo(np.float64).eps)
_CLOSEST = 2.0**-52
_LARGEST_EPSILON = 350.0  # e^{2ε} stays finite
# (ε, δ) to 1/c, elementwise
InverseMultiplier = Callable[[Array, Array], Array]


def whitened_radius(p: ArrayLike, q: ArrayLike, rule: Rule = "tight", delta: float | None = None) -> Any:
    """Return ρ >= 0 for each (p, q); 0 where nothing is certified. Never above the exact value of the rule.

    Guarantee: if E f_k >= p and E f_i <= q for all i ≠ k, then E f_k > E f_i still holds after any move of the
    whitened first layer by less than ρ in l2.
    `delta` fixes δ_r of the first three rules, as the paper does, instead of searching for the best one.
    """
    if rule not in RULES:
        raise InvalidInputError(f"unknown rule {rule!r}: {nearest(str(rule), RULES)}")
    top, other = _bounds(p, q)
    if rule == "tight":
        if delta is not None:
            raise InvalidInputError(f"the tight rule has no delta, got {delta!r}; use classic, extended or analytic")
        return like_input(_tight(top, other))
    mechanism: Any = rule
    limit = 1.0 if rule == "classic" else _LARGEST_EPSILON
    return like_input(_dp_radius(top, other, lambda e, d: 1 / noise_multiplier(e, d, mechanism), limit, delta))


def as_published_radius(p: ArrayLike, q: ArrayLike, delta: float | None = None) -> Any:
    """Return the radius of the paper's printed Eq. RobustCon4 (`as-published`). **No guarantee.**

    The equation divides by ε_r twice, where Theorem 3 has one division, so it overstates the radius by ε_r when
    ε_r > 1; it also leaves out Condition 1 of the theorem's proof (docs/reference/errata.md).
    """
    top, other = _bounds(p, q)

    def published(eps: Array, dlt: Array) -> Array:
        s = 0.5 * np.log(2 / np.pi) - np.log(dlt)
        return eps * np.sqrt(2) * eps / (np.sqrt(s) + np.sqrt(s + eps))

    return like_input(_dp_radius(top, other, published, _LARGEST_EPSILON, delta))


def certified_radius(
    p: ArrayLike,
    q: ArrayLike,
    *,
    sigma: ArrayLike,
    sensitivity: ArrayLike,
    rule: Rule = "tight",
    delta: float | None = None,
    rounding: ArrayLike = 0.0,
) -> Any:
    """Return μ_max = (ρ − rounding)·σ/Δ_p: the proven radius in the units of the input; 0 where rounding takes it all.

    Assumes: `sensitivity` is an upper bound of Δ_p of the layer that gets the noise N(0, sigma² K r), under the same r
    (`Sensitivity.upper`), and p, q are bounds of this very noisy classifier. `rounding` bounds what the layer as it is
    computed may move besides, in standard deviations.
    """
    scale = positive_array("sigma", sigma) / positive_array("sensitivity", sensitivity)
    proven = np.asarray(whitened_radius(p, q, rule, delta)) - nonnegative_array("rounding", rounding)
    return like_input(np.asarray(np.maximum(proven, 0) * scale * _DOWN))


@dataclass(frozen=True, kw_only=True)
class CertificateRule:
    """How a radius in the units of the input follows from bounds on votes, and whether it is proven."""

    radius: Callable[[Array, Array, float, Array], ArrayLike]
    """Called with p_lower, q_upper, Δ and rounding; returns a radius >= 0 for each example. Δ is in standard
    deviations of the noise per unit of input. `rounding`, also in standard deviations, is what the layer as it is
    computed may move besides."""
    is_guarantee: bool
    """Whether the radius is proven. For a rule that is not one of this package, this is the word of who added it."""
    sensitivity: Literal["proven", "published"] = "proven"
    """Which Δ the rule takes: the proven upper bound, or the paper's, which is not proven."""
    style: Mapping[str, Any] = field(default_factory=dict)
    """The line in plots, as matplotlib's keywords; if empty, plots choose one."""


def _certified(rule: Rule, p: Array, q: Array, sensitivity: float, rounding: Array) -> Any:
    return certified_radius(p, q, sigma=1.0, sensitivity=sensitivity, rule=rule, rounding=rounding)


def _as_published(p: Array, q: Array, sensitivity: float, rounding: Array) -> Any:
    return np.asarray(as_published_radius(p, q)) / sensitivity  # the paper knows no rounding


# In the order of the columns of certificates.csv. Colours by Okabe and Ito; what proves nothing is dotted.
CERTIFICATE_RULES: dict[str, CertificateRule] = {
    "tight": CertificateRule(
        radius=partial(_certified, "tight"),
        is_guarantee=True,
        style={"color": "#0072B2", "linestyle": "-", "linewidth": 2.2},
    ),
    "analytic": CertificateRule(
        radius=partial(_certified, "analytic"), is_guarantee=True, style={"color": "#009E73", "linestyle": "-"}
    ),
    "extended": CertificateRule(
        radius=partial(_certified, "extended"), is_guarantee=True, style={"color": "#E69F00", "linestyle": "--"}
    ),
    "classic": CertificateRule(
        radius=partial(_certified, "classic"), is_guarantee=True, style={"color": "#CC79A7", "linestyle": "-."}
    ),
    "as-published": CertificateRule(
        radius=_as_published,
        is_guarantee=False,
        sensitivity="published",
        style={"color": "#D55E00", "linestyle": ":"},
    ),
}
BUILT_IN_RULES = tuple(CERTIFICATE_RULES)
"""The rules of this package; rows that are added to the table later are somebody else's."""
_BUILT_IN = dict(CERTIFICATE_RULES)


def rule_caveat(name: str) -> str:
    """Return what must be said beside radii by a rule; empty if they are proven.

    A rule that is not in the table came from outside (an import path, or a row added elsewhere): this package can
    neither prove nor recheck its radii.
    """
    if name not in CERTIFICATE_RULES:
        return "from outside, not rechecked, without guarantee"
    if not CERTIFICATE_RULES[name].is_guarantee:
        return "without guarantee"
    return "" if CERTIFICATE_RULES[name] is _BUILT_IN.get(name) else "from outside, without guarantee of this package"


def radii_by_rule(
    p: ArrayLike,
    q: ArrayLike,
    sensitivity: float,
    published: float,
    rounding: ArrayLike,
    rules: Mapping[str, CertificateRule] | None = None,
) -> dict[str, Array]:
    """Return the radius of each (p, q) by every rule of the table, or of `rules`, for noise of one standard deviation.

    `published` is the Δ of rules that take the paper's.
    Raises: InvalidInputError if a rule does not return a radius >= 0 for each pair, or has the name of one of this
    package.
    """
    top, other = np.atleast_1d(np.asarray(p, dtype=np.float64)), np.atleast_1d(np.asarray(q, dtype=np.float64))
    taken = np.atleast_1d(np.asarray(rounding, dtype=np.float64))
    radii: dict[str, Array] = {}
    for name, rule in (CERTIFICATE_RULES if rules is None else rules).items():
        if name in _BUILT_IN and rule is not _BUILT_IN[name]:
            raise InvalidInputError(f"the certificate rule {name} is one of this package; give yours another name")
        delta = published if rule.sensitivity == "published" else sensitivity
        bounds = top.copy(), other.copy(), delta, taken.copy()  # a rule from outside may write into what it gets
        radii[name] = np.atleast_1d(np.array(rule.radius(*bounds), dtype=np.float64))
        if radii[name].shape != top.shape or not bool((radii[name] >= 0).all()):
            raise InvalidInputError(
                f"the certificate rule {name} returned an array of shape {radii[name].shape}, or numbers that are no "
                f"radii; valid: shape {top.shape}, all >= 0"
            )
    return radii


def _bounds(p: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    """Return p and q kept off 1 and 0: a bound that close may be rounding, and would certify an infinite radius."""
    top, other = broadcast(p=probability_array("p", p), q=probability_array("q", q))
    return np.minimum(top, 1 - _CLOSEST), np.maximum(other, _CLOSEST)


def _tight(p: Array, q: Array) -> Array:
    upper, lower = ndtri(p), ndtri(q)
    radius = (upper - lower) / 2 - 1e-14 * (np.abs(upper) + np.abs(lower))
    return np.where(p > q, np.maximum(radius, 0), 0.0)


def _dp_radius(p: Array, q: Array, inverse: InverseMultiplier, limit: float, delta: float | None) -> Array:
    """Return the best 1/c(ε, δ) over the pairs for which p > e^{2ε} q + (1 + e^ε) δ (the paper's Eq. RobustCon2)."""
    # Votes are counts, so a test set has few distinct pairs.
    pairs, back = np.unique(np.stack([p.ravel(), q.ravel()]), axis=1, return_inverse=True)
    radius = np.zeros(pairs.shape[1])
    certified = pairs[0] > pairs[1]
    if certified.any():
        top, other = pairs[:, certified]
        if delta is None:
            radius[certified] = _searched(top, other, inverse, limit)
        else:
            radius[certified] = _at_delta(top, other, inverse, limit, float(open_probability_array("delta", delta)))
    return np.asarray(radius[back.ravel()].reshape(p.shape) * _DOWN)


def _searched(p: Array, q: Array, inverse: InverseMultiplier, limit: float) -> Array:
    """Return the maximum over ε by a grid refined around its best point; every grid point is itself a valid radius."""
    largest = np.minimum(limit, 0.5 * (np.log(p) - np.log(q)))
    low, high = np.zeros_like(largest), largest
    best = np.zeros_like(largest)
    for points in (33, 17, 17, 17):
        eps = low[:, None] + (high - low)[:, None] * np.arange(1, points + 1) / points
        taken = np.exp(2 * eps) * q[:, None]
        dlt = (p[:, None] - taken - 16 * _ULP * (p[:, None] + taken)) / (1 + np.exp(eps)) * _DOWN
        usable = (dlt > 1e-300) & (eps > 0)
        values = np.zeros_like(eps)
        values[usable] = inverse(eps[usable], dlt[usable])
        at = np.argmax(values, axis=1)
        best = np.maximum(best, np.max(values, axis=1))
        width = (high - low) / points
        low, high = low + width * at, np.minimum(low + width * (at + 2), largest)
    return best


def _at_delta(p: Array, q: Array, inverse: InverseMultiplier, limit: float, delta: float) -> Array:
    """Return 1/c at the largest ε that satisfies the condition for this delta: a quadratic in e^ε."""
    room = np.maximum(p - delta, 0)
    root = 2 * room / (delta + np.sqrt(delta**2 + 4 * q * room))
    with np.errstate(divide="ignore"):
        eps = np.minimum(np.log(root) * _DOWN - 16 * _ULP, limit)
    radius = np.zeros_like(eps)
    usable = eps > 1e-12
    radius[usable] = inverse(eps[usable], np.full(usable.sum(), delta))
    return radius
