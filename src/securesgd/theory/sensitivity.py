"""How far the first layer can move: Δ_p = max ‖D⁻¹ W a‖₂ / ‖a‖_p with D = diag(√(K r)), for p = 1, 2 and ∞.

W is the *whole* linear map (`linear_maps.py`); the mechanism that adds N(0, σ² K r) to W x has noise multiplier
σ/(Δ_p·μ) against every change of the input of l_p size μ.

=====  ==================================================  ====================================================
norm   small input (d <= 4096)                             any size
=====  ==================================================  ====================================================
l1     `columns`: the largest column 2-norm, exact          the same
l2     `gram`: eigenvalue of the Gram matrix, verified      `symbol` (convolutions), `schur`, `frobenius`
linf   `sdp`: semidefinite relaxation with dual proof       `rows` √Σ‖W_k‖₁²/(K r_k), `l2` √d·Δ₂, `paper`
=====  ==================================================  ====================================================

Every valid bound that applies is computed and the smallest wins. Each upper bound is a proof, rounded up; the lower
bound is attained by `direction`, so the user sees how much is left.
"""

__all__ = ["NORMS", "Sensitivity", "absolute_sensitivity", "published_sensitivity", "sensitivity"]

import time
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.linear_maps import Convolution, LinearMap, as_linear_map
from securesgd.theory.linf_relaxation import polished, relaxed_diagonal, sign_vector
from securesgd.theory.redistribution import uniform, validated
from securesgd.theory.spectral import dominating_shift, largest_eigenvalue_guess, symbol_norm
from securesgd.validate import Array

Norm = Literal["l1", "l2", "linf"]
NORMS: tuple[str, ...] = get_args(Norm)

GRAM_LIMIT = 4096
_UP = 1 + 1e-10  # sums of non-negative numbers in double precision, with room to spare
_UNIT = float(np.finfo(np.float64).eps) / 2


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Δ_p of a linear map under r, with its proof method and how much slack is left."""

    norm: str
    upper: float
    """Proven: no change of the input of norm 1 moves the whitened output further (in l2)."""
    lower: float
    """Attained by `direction`."""
    method: str
    """Which proof gave `upper`."""
    seconds: float
    direction: Array
    """An input change of norm 1 that moves the whitened output by `lower`: the worst one known."""
    proof: Array = field(default_factory=lambda: np.zeros(0))
    """Of `sdp` and `gram`: the diagonal that dominates the Gram matrix, then the step at which the proof succeeded."""


def sensitivity(
    query: "LinearMap | ArrayLike | sp.sparray",
    norm: Norm,
    r: ArrayLike | None = None,
    gram_limit: int = GRAM_LIMIT,
    known: Sensitivity | None = None,
) -> Sensitivity:
    """Return proven bounds on Δ_p of a matrix or whole convolution under the redistribution vector r.

    Guarantee: lower <= Δ_p <= upper, rounding included, whatever r, stride, padding, dilation or groups.
    Assumes: inputs in the units of the query; a normalisation of the input must be part of the query.
    Raises: InvalidInputError for an unknown norm, a wrong shape, or r that is not valid for the query's outputs.
    `gram_limit` only trades time for tightness. `known` is an earlier result for the same arguments: its direction and
    proof are taken as guesses, so the result is the same, faster; nothing of it is believed.
    """
    started = time.perf_counter()
    if norm not in NORMS:
        raise InvalidInputError(f"unknown norm {norm!r}: {nearest(str(norm), NORMS)}")
    layer = as_linear_map(query)
    vector = uniform(layer.output_size) if r is None else validated(r, layer.output_size)
    whitening = 1 / np.sqrt(layer.output_size * vector)
    # Entries near 1, so that no square under- or overflows; powers of two, so that nothing is rounded.
    exponents = layer.exponent, int(np.frexp(whitening.max())[1])
    layer, whitening = layer.scaled(-exponents[0]), np.ldexp(whitening, -exponents[1])
    with np.errstate(all="ignore"):  # a bound that overflows proves nothing, and loses
        bounds, direction, proof = {"l1": _l1, "l2": _l2, "linf": _linf}[norm](layer, whitening, gram_limit, known)
    bounds = {name: bound if bound == bound else np.inf for name, bound in bounds.items()}
    method = min(bounds, key=lambda name: bounds[name])
    size = np.linalg.norm(direction, {"l1": 1, "l2": 2, "linf": np.inf}[norm])
    if known is None:
        direction = direction / size
    elif direction.shape != (layer.input_size,) or not abs(size - 1) <= 1e-9:
        raise InvalidInputError(f"the direction of Δ in {norm} is not {layer.input_size} numbers of norm 1")
    lower = float(np.linalg.norm(whitening * layer.apply(direction[:, None])[:, 0])) / _UP
    return Sensitivity(
        norm=norm,
        upper=_rescaled(max(bounds[method], lower), sum(exponents), up=True),
        lower=_rescaled(lower, sum(exponents), up=False),
        method=method,
        seconds=time.perf_counter() - started,
        direction=direction,
        proof=proof,
    )


def absolute_sensitivity(layer: LinearMap, norm: Norm, whitening: Array) -> float:
    """Return an upper bound on max ‖w·(|W||a|)‖₂/‖a‖_p, in closed form: how fast a bound on rounding can grow."""
    squares = layer.weighted_column_sums(2, whitening**2)
    if norm == "l1":
        return float(np.sqrt(squares.max()) * _UP)
    rows = whitening * layer.row_sums()
    if norm == "linf":
        return float(np.linalg.norm(rows) * _UP)
    columns = layer.weighted_column_sums(1, whitening)
    return float(np.sqrt(min(columns.max() * rows.max(), squares.sum())) * _UP)


def _rescaled(value: float, exponent: int, *, up: bool) -> float:
    """Return value · 2^exponent, rounded up or down where it leaves the range of normal numbers."""
    with np.errstate(over="ignore", under="ignore"):
        result = float(np.ldexp(value, exponent))
    if value == 0 or (np.isfinite(result) and result >= np.finfo(np.float64).tiny):
        return result
    if up:
        return float(np.nextafter(result, np.inf))
    return float(np.nextafter(result, 0.0)) if np.isfinite(result) else float(np.finfo(np.float64).max)


def published_sensitivity(query: "LinearMap | ArrayLike | sp.sparray", r: ArrayLike | None = None) -> float:
    """Return the paper's own l_inf sensitivity (`as-published`). **No guarantee**: it can be below the true one.

    Fully connected: √K·‖W/(K r)‖_∞, valid but loose. Convolution: the largest single feature map, which forgets that
    one change of the input moves every map at once (docs/reference/errata.md).
    """
    layer = as_linear_map(query)
    vector = uniform(layer.output_size) if r is None else validated(r, layer.output_size)
    if not isinstance(layer, Convolution):
        return float(np.sqrt(layer.output_size) * np.max(layer.row_sums() / (layer.output_size * vector)))
    per_unit = layer.row_sums() ** 2 / (layer.output_size * vector)
    return float(np.sqrt(per_unit.reshape(layer.output_shape[0], -1).sum(axis=1).max()))


_Bounds = tuple[dict[str, float], Array, Array]  # by method; the direction; the proof


def _l1(layer: LinearMap, whitening: Array, _: int, known: Sensitivity | None = None) -> _Bounds:
    columns = layer.weighted_column_sums(2, whitening**2)
    direction = np.zeros(layer.input_size)
    direction[np.argmax(columns)] = 1
    return {"columns": float(np.sqrt(columns.max()) * _UP)}, _guess(direction, known), np.zeros(0)


def _l2(layer: LinearMap, whitening: Array, gram_limit: int, known: Sensitivity | None = None) -> _Bounds:
    squares = layer.weighted_column_sums(2, whitening**2)
    columns, rows = layer.weighted_column_sums(1, whitening), whitening * layer.row_sums()
    bounds = {
        "schur": float(np.sqrt(columns.max() * rows.max()) * _UP),
        "frobenius": float(np.sqrt(squares.sum()) * _UP),
    }
    if squares.max() == 0:
        return bounds, _guess(np.ones(layer.input_size), known), np.zeros(0)
    if min(layer.input_size, layer.output_size) <= gram_limit:
        gram, error = _gram(layer, whitening, transposed=layer.output_size < layer.input_size)
        if known is None:
            eigenvalue, vector = largest_eigenvalue_guess(gram)
            if layer.output_size < layer.input_size:
                vector = layer.apply_transposed((whitening * vector)[:, None])[:, 0]
            proof = np.array([eigenvalue, 0.0])
        else:
            vector, proof = known.direction, _stored_proof(known, 1)
        shift, step = dominating_shift(np.full(gram.shape[0], proof[0]), gram, error, int(proof[1]))
        bounds["gram"] = float(np.sqrt(proof[0] + shift) * _UP)
        return bounds, vector, np.array([proof[0], step])
    if isinstance(layer, Convolution):
        per_channel = whitening.reshape(layer.output_shape[0], -1).max(axis=1)
        bounds["symbol"] = symbol_norm(layer, per_channel)
    if known is not None:
        return bounds, known.direction, np.zeros(0)
    vector = (np.cos(np.arange(layer.input_size) * 1.234) + 1.1)[:, None]
    for _ in range(20):
        vector = _gram_product(layer, whitening, vector)
        vector /= np.linalg.norm(vector)
    return bounds, vector[:, 0], np.zeros(0)


def _linf(layer: LinearMap, whitening: Array, gram_limit: int, known: Sensitivity | None = None) -> _Bounds:
    rows = layer.row_sums()
    bounds = {
        "rows": float(np.sqrt(np.sum((whitening * rows) ** 2)) * _UP),
        "paper": float(np.sqrt(np.sum(whitening**-2.0)) * np.max(whitening**2 * rows) * _UP),
    }
    if rows.max() == 0:
        return bounds, _guess(np.ones(layer.input_size), known), np.zeros(0)
    if layer.input_size <= gram_limit:
        gram, error = _gram(layer, whitening)
        if known is None:
            diagonal, vectors = relaxed_diagonal(gram)
            first, direction = 0, polished(gram, sign_vector(lambda x: gram @ x, vectors))
        else:
            stored = _stored_proof(known, layer.input_size)
            diagonal, first, direction = stored[:-1], int(stored[-1]), known.direction
        shift, step = dominating_shift(diagonal, gram, error, first)
        bounds["sdp"] = float(np.sqrt(np.sum(diagonal) + layer.input_size * shift) * _UP)
        return bounds, direction, np.append(diagonal, step)
    spectral, eigenvector, _ = _l2(layer, whitening, gram_limit)
    bounds["l2"] = float(np.sqrt(layer.input_size) * min(spectral.values()) * _UP)
    if known is not None:
        return bounds, known.direction, np.zeros(0)
    starts = np.stack([eigenvector, np.ones(layer.input_size), np.cos(np.arange(layer.input_size))], axis=1)
    return bounds, sign_vector(lambda x: _gram_product(layer, whitening, x), starts, rounds=10), np.zeros(0)


def _guess(direction: Array, known: Sensitivity | None) -> Array:
    return direction if known is None else known.direction


def _stored_proof(known: Sensitivity, size: int) -> Array:
    """Return `size` numbers of a diagonal and a step. Raises: InvalidInputError if they are not that."""
    proof = np.asarray(known.proof, dtype=np.float64)
    if proof.shape != (size + 1,) or not np.isfinite(proof).all() or not 0 <= proof[-1] < 100:
        raise InvalidInputError(f"the proof of Δ in {known.norm} is not {size} numbers and a step")
    return proof


def _gram_product(layer: LinearMap, whitening: Array, x: Array) -> Array:
    """Return G x for G = Wᵀ D⁻² W without building G."""
    return layer.apply_transposed(whitening[:, None] ** 2 * layer.apply(x))


def _gram(layer: LinearMap, whitening: Array, transposed: bool = False) -> tuple[sp.csr_array, float]:
    """Return G = MᵀM (or MMᵀ) for M = D⁻¹W, and a bound on its rounding error in spectral norm.

    An inner product of m terms is off by at most (m + 4) units of rounding times the product of absolute values,
    and the matrix of those has spectral norm at most ‖M‖_F² = trace G.
    """
    whitened = sp.csr_array(sp.diags_array(whitening) @ layer.sparse())
    if transposed:
        whitened = sp.csr_array(whitened.T)
    gram = sp.csr_array(whitened.T @ whitened)
    terms = whitened.shape[0]
    return gram, float((terms + 16) * _UNIT * gram.diagonal().sum() * 2)
