"""The semidefinite relaxation of max xᵀGx over x in {−1, 1}^d, for the l_inf sensitivity.

Maximising over unit vectors v_i in place of signs x_i gives max Σ G_ij ⟨v_i, v_j⟩, whose dual is min Σ t_i subject to
diag(t) ⪰ G. The primal iterate V is a guess; a t read off it, once proven to dominate G (`spectral.dominating_shift`),
bounds the maximum no matter how the guess came about. Nesterov 1998 shows the relaxation is within π/2 of the truth;
on first layers it is within a few percent.
"""

__all__ = ["polished", "relaxed_diagonal", "sign_vector"]

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from securesgd.validate import Array


def relaxed_diagonal(gram: sp.csr_array, iterations: int = 300) -> tuple[Array, Array]:
    """Return t = ‖(GV)_i‖ at an (almost) optimal V, and V: diag(t) dominates G up to a small shift.

    V ← rownormalise(GV) never lowers the objective, because G is positive semidefinite.
    """
    d = gram.shape[0]
    rank = min(d, int(np.ceil(np.sqrt(2 * d))) + 1)  # enough for the relaxation to be exact (Barvinok, Pataki)
    vectors = np.random.default_rng(0).standard_normal((d, rank))  # any generic start; fixed, so results repeat
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # A dense Gram matrix is multiplied in single precision: the iterate is only a guess.
    operator = gram if gram.nnz < 0.2 * d * d else gram.toarray().astype(np.float32)
    vectors = vectors.astype(operator.dtype)
    objective = 0.0
    for _ in range(iterations):
        product = operator @ vectors
        lengths = np.linalg.norm(product, axis=1)
        vectors = product / np.maximum(lengths, np.finfo(lengths.dtype).tiny)[:, None]
        previous, objective = objective, float(lengths.sum(dtype=np.float64))
        if objective - previous <= 1e-7 * objective:
            break
    vectors = vectors.astype(np.float64)
    return np.linalg.norm(gram @ vectors, axis=1), vectors


def sign_vector(gram_product: Callable[[Array], Array], starts: Array, rounds: int = 100) -> Array:
    """Return x in {−1, 1}^d with large xᵀGx: signs of the starts, then x ← sign(Gx), which never lowers it."""
    signs = np.where(starts >= 0, 1.0, -1.0)
    for _ in range(rounds):
        product = gram_product(signs)
        improved = np.where(product >= 0, 1.0, -1.0)
        if np.array_equal(improved, signs):
            break
        signs = improved
    return np.asarray(signs[:, np.argmax(np.sum(signs * gram_product(signs), axis=0))])


def polished(gram: sp.csr_array, signs: Array) -> Array:
    """Return x after flipping, one at a time, the sign that raises xᵀGx most, until none does."""
    x, product, diagonal = signs.copy(), gram @ signs, gram.diagonal()
    for _ in range(2 * x.size):
        gain = diagonal - x * product  # a quarter of what flipping each sign adds
        i = int(np.argmax(gain))
        if gain[i] <= 1e-12 * diagonal[i]:
            break
        row = slice(gram.indptr[i], gram.indptr[i + 1])
        product[gram.indices[row]] -= 2 * x[i] * gram.data[row]
        x[i] = -x[i]
    return x
