"""Proven bounds on spectra: a diagonal that dominates a Gram matrix, and the norm of a convolution by its symbol.

Power iteration and Lanczos give *lower* bounds of the largest eigenvalue, so they never certify anything here; they
only guess where the proof should start.
"""

__all__ = ["dominating_shift", "largest_eigenvalue_guess", "symbol_norm"]

import itertools

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from threadpoolctl import threadpool_limits

from securesgd.theory.linear_maps import Convolution
from securesgd.validate import Array

_UNIT = float(np.finfo(np.float64).eps) / 2


def dominating_shift(diagonal: Array, gram: sp.csr_array, gram_error: float, first: int = 0) -> tuple[float, int]:
    """Return s >= 0 such that diag(diagonal + s) − G is positive semidefinite, proven, and the trial that proved it.

    Trials take larger and larger s; with `first`, those before it are left out, as if they had failed.

    Guarantee: holds for every symmetric G within `gram_error` of `gram` in spectral norm. The proof is a Cholesky
    factorisation that runs to its end: then the matrix it was given has no eigenvalue below −γ·trace, whatever
    rounding did inside (Rump 2006, "Verification of positive definiteness", BIT 46, Theorem 2.3).
    """
    n = diagonal.size
    scale = float(np.mean(diagonal))
    if not (np.isfinite(scale) and scale > 0):
        return float("inf"), first
    dense = -gram.toarray()
    for exponent in itertools.count(first):
        shift = scale * 1e-8 * 4.0**exponent
        trace = float(np.sum(diagonal) + n * shift)
        # Factorisation error plus the rounding of the entries written below, each doubled.
        slack = gram_error + (4 * n + 16) * _UNIT * trace
        np.fill_diagonal(dense, diagonal + shift - slack - gram.diagonal())
        if _has_cholesky(dense):
            return shift, exponent
        if not np.isfinite(shift):
            return float("inf"), exponent
    raise AssertionError("unreachable")


def _has_cholesky(matrix: Array) -> bool:
    # One thread: two that wait for each other are ten times slower when the second core is busy.
    with threadpool_limits(limits=1, user_api="blas"):
        _, info = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=0)
    return bool(info == 0)


def largest_eigenvalue_guess(gram: sp.csr_array) -> tuple[float, Array]:
    """Return an estimate of the largest eigenvalue of a symmetric matrix from below, and its vector. No guarantee."""
    n = gram.shape[0]
    if n <= 64:
        values, vectors = np.linalg.eigh(gram.toarray())
        return float(values[-1]), vectors[:, -1]
    start = np.cos(np.arange(n) * 1.234) + 1.1  # deterministic, with no symmetry an image could be orthogonal to
    try:
        values, vectors = scipy.sparse.linalg.eigsh(gram, k=1, which="LA", v0=start, tol=1e-8, maxiter=3000)
        return float(values[0]), vectors[:, 0]
    except scipy.sparse.linalg.ArpackNoConvergence:
        vector = start
        for _ in range(200):
            vector = gram @ vector
            vector /= np.linalg.norm(vector)
        return float(vector @ (gram @ vector)), vector


def symbol_norm(convolution: Convolution, channel_scale: Array) -> float:
    """Return an upper bound on the spectral norm of diag(channel_scale) · convolution, for any image size.

    Guarantee: the zero-padded convolution of an n×n image is a block of the circular one on a torus large enough
    that nothing wraps onto the image; a circular convolution is diagonalised by the Fourier transform, so its norm is
    the largest norm of its symbol (a small matrix) over the torus' frequencies. A stride s turns into s² input
    phases, each a channel of a stride-1 convolution. Tight up to the effect of the border.
    """
    out = convolution.kernel.shape[0]
    scaled = convolution.kernel * channel_scale[:, None, None, None]
    vertical = _phase_waves(convolution, 0)
    horizontal = _phase_waves(convolution, 1)
    # The symbol of a real kernel at −ω is the conjugate of that at ω: half of the vertical frequencies suffice.
    vertical = vertical[:, :, : vertical.shape[2] // 2 + 1]
    largest = 0.0
    for group in np.split(scaled, convolution.groups):
        for f in range(vertical.shape[2]):
            rows = np.einsum("ocij,ip->ocpj", group, vertical[:, :, f])
            symbol = np.einsum("ocpj,jqf->focpq", rows, horizontal, optimize=True)
            symbol = symbol.reshape(symbol.shape[0], out // convolution.groups, -1)
            adjoint = symbol.conj().transpose(0, 2, 1)
            gram = adjoint @ symbol if symbol.shape[2] <= symbol.shape[1] else symbol @ adjoint
            largest = max(largest, float(np.linalg.eigvalsh(gram)[:, -1].max()))
    return float(np.sqrt(largest) * (1 + 1e-10))


def _phase_waves(convolution: Convolution, axis: int) -> np.ndarray:
    """Return e^{iω·m} of each tap, at its input phase (zero at the others): shape (taps, stride, frequencies)."""
    taps, stride = convolution.kernel.shape[2 + axis], convolution.stride[axis]
    offset = np.arange(taps) * convolution.dilation[axis] - convolution.padding[axis]
    shift, phase = offset // stride, offset % stride
    inputs = -(-convolution.input_shape[1 + axis] // stride)
    outputs = convolution.output_shape[1 + axis]
    size = max(inputs - 1, outputs - 1 + int(shift.max())) - min(0, int(shift.min())) + 1
    omega = 2 * np.pi * np.arange(size) / size
    waves = np.zeros((taps, stride, size), dtype=complex)
    waves[np.arange(taps), phase] = np.exp(1j * shift[:, None] * omega)
    return waves
