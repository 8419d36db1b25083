"""How far the output of a group normalisation can fall when its input moves: bounds of one group, for margins.

A group of n numbers with mean 0, u, becomes √n·u/√(|u|² + n·eps). Write U = (u, √(n·eps)), one coordinate longer, and
s = |U|: then it is √n·U/s without its last coordinate. So a normalisation maps U to a point of a sphere, and when u
moves by d, U moves by D = (d, 0), to V = U + D. Let |D| <= t·s with t < 1, and θ the angle between U and V.

Lemma 1. sin θ <= t, θ < π/2, and the normalised group moves by at most √n·2 sin(θ/2) <= √n·√(2 − 2√(1 − t²)).
Proof. V·U >= s² − s|D| > 0. The line through 0 and V passes U at the distance s·sin θ; V lies on it, |D| away from U.
The chord of the angle θ is 2 sin(θ/2), and leaving out a coordinate shortens it.

Lemma 2. Let W = (w, 0), a = W·U/s and b = √(|w|² − a²), its parts along U and across. Then
    W·V/|V| >= a + W⟂·D/s − a⁺(1 − √(1 − t²)) − b·t²/(2(1 − t)),      W⟂ = W − a·U/s.
Proof. W·V/|V| = a cos θ + W⟂·D/|V|, since W⟂·U = 0. The first is at least a − a⁺(1 − √(1 − t²)). For the second take
s = 1, q = D·U, h² = |D|² − q² and p = |W⟂·D|/b <= h; it remains that p·|1/|V| − 1| <= t²/(2(1 − t)). Note h|q| <= t²/2.
|V|² = (1 + q)² + h², so |V| >= 1 − t, and |V| >= 1 + q. Where |V| < 1, q < 0 and 1/|V| − 1 <= |q|/(1 − |q|): done by
h|q| <= t²/2 and |q| <= t. Where |V| >= 1, 1 − 1/|V| <= |V| − 1: for q >= 0 this is at most q + h²/2, and h(q + h²/2) <=
t²/2 + t³/2 <= t²/(2(1 − t)); for q < 0 it is at most h²/2, and h³/2 <= t³/2.

Lemma 3. W·V/|V| >= |w|·cos(min(π, arccos(a/|w|) + arcsin t)), and >= −|w| whatever t is.
Proof. Angles between vectors obey the triangle inequality.
"""

__all__ = ["least_alignment", "linear_remainder"]

import math

import numpy as np

from securesgd.validate import Array


def linear_remainder(along: Array, across: Array, t: Array) -> Array:
    """Return c so that W·V/|V| is at least its linearisation less c·t² (lemma 2); infinite for t >= 1.

    `along` is a, `across` is b. c does not decrease with t, so that c at the largest t serves for all.
    """
    inside = np.minimum(t, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # 1 − √(1 − t²) = t²/(1 + √(1 − t²))
        factor = np.maximum(along, 0) / (1 + _cosine(inside)) + across / (2 * (1 - inside))
    return np.where(t < 1, factor, math.inf)


def least_alignment(along: Array, length: Array, t: Array) -> Array:
    """Return the least value of W·V/|V| (lemma 3), where `along` is a, off by 5e-15·`length` at most; that is |w|.

    Where a/|w| rounds to 1 the angle may be 1e-8: half of the guard is for `along`, the rest for arccos and arcsin.
    """
    cosine = np.clip(along / np.where(length > 0, length, 1) - 1e-14, -1, 1)
    angle = np.minimum(np.arccos(cosine) + np.arcsin(np.minimum(t, 1)), math.pi)
    return np.where(t < 1, length * np.cos(angle), -length)


def _cosine(t: Array) -> Array:
    """Return √(1 − t²) without cancellation."""
    inside = np.minimum(t, 1.0)
    return np.asarray(np.sqrt((1 - inside) * (1 + inside)))
