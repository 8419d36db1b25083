"""The first layer as one linear map of the whole input: a matrix, or a 2-D convolution with all its positions.

Bias is left out (it does not change sensitivities). Both kinds answer the same few questions, so the bounds in
`sensitivity.py` are written once; a convolution answers them without ever building its matrix, which for a
3×224×224 input would not fit.
"""

__all__ = ["Convolution", "LinearMap", "Matrix", "as_linear_map"]

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from securesgd.errors import InvalidInputError
from securesgd.validate import Array, finite_array, validate_count


class LinearMap(Protocol):
    """A linear map from `input_size` to `output_size` numbers."""

    @property
    def input_size(self) -> int:
        """Number of inputs d."""

    @property
    def output_size(self) -> int:
        """Number of outputs K."""

    @property
    def nonzeros(self) -> int:
        """Upper bound on the number of non-zero entries of the matrix."""

    @property
    def exponent(self) -> int:
        """Binary exponent of the largest entry: max |W| is in [2^(e−1), 2^e); 0 for the zero map."""

    def scaled(self, exponent: int) -> "LinearMap":
        """Return 2^exponent · W, exactly."""

    def apply(self, x: Array) -> Array:
        """Return W x for the columns of x, shape (d, m)."""

    def apply_transposed(self, y: Array) -> Array:
        """Return Wᵀ y for the columns of y, shape (K, m)."""

    def row_sums(self) -> Array:
        """Return Σ_i |W_ki| for each output k."""

    def weighted_column_sums(self, power: int, weights: Array) -> Array:
        """Return Σ_k weights_k |W_ki|^power for each input i."""

    def sparse(self) -> sp.csr_array:
        """Return the matrix W."""


@dataclass(frozen=True)
class Matrix:
    """A dense or sparse matrix W of shape (outputs, inputs)."""

    values: sp.csr_array

    @property
    def input_size(self) -> int:
        return int(self.values.shape[1])

    @property
    def output_size(self) -> int:
        return int(self.values.shape[0])

    @property
    def nonzeros(self) -> int:
        return int(self.values.nnz)

    @property
    def exponent(self) -> int:
        return _exponent(self.values.data)

    def scaled(self, exponent: int) -> "Matrix":
        values = self.values.copy()
        values.data = np.ldexp(values.data, exponent)
        return Matrix(values)

    def apply(self, x: Array) -> Array:
        return np.asarray(self.values @ x)

    def apply_transposed(self, y: Array) -> Array:
        return np.asarray(self.values.T @ y)

    def row_sums(self) -> Array:
        return np.asarray(abs(self.values) @ np.ones(self.input_size))

    def weighted_column_sums(self, power: int, weights: Array) -> Array:
        return np.asarray((abs(self.values) ** power).T @ weights)

    def sparse(self) -> sp.csr_array:
        return self.values


@dataclass(frozen=True)
class Convolution:
    """A zero-padded 2-D convolution (cross-correlation, as in torch) of one whole image.

    kernel: (out channels, in channels / groups, height, width); input_shape: (channels, height, width).
    Inputs and outputs are flattened in C order, as torch's `flatten` does.
    """

    kernel: Array
    input_shape: tuple[int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", finite_array("kernel", self.kernel))
        object.__setattr__(self, "input_shape", tuple(int(n) for n in self.input_shape))
        for name, minimum in (("stride", 1), ("padding", 0), ("dilation", 1)):
            value = getattr(self, name)
            pair = (value, value) if np.isscalar(value) else tuple(value)
            if len(pair) != 2:
                raise InvalidInputError(f"{name} must be a number or a pair, got {value!r}")
            object.__setattr__(self, name, tuple(validate_count(name, v, minimum) for v in pair))
        validate_count("groups", self.groups, 1)
        if self.kernel.ndim != 4 or self.kernel.size == 0:
            raise InvalidInputError(f"kernel must have shape (out, in/groups, height, width), got {self.kernel.shape}")
        if len(self.input_shape) != 3 or min(self.input_shape) < 1:
            raise InvalidInputError(f"input_shape must be (channels, height, width), got {self.input_shape}")
        out, per_group = self.kernel.shape[:2]
        if out % self.groups or self.input_shape[0] != per_group * self.groups:
            raise InvalidInputError(
                f"kernel {self.kernel.shape} with groups={self.groups} needs {per_group * self.groups} input "
                f"channels and out channels divisible by groups, got input {self.input_shape}"
            )
        if min(self.output_shape) < 1:
            raise InvalidInputError(f"kernel {self.kernel.shape} does not fit the input {self.input_shape}")

    @cached_property
    def output_shape(self) -> tuple[int, int, int]:
        """(out channels, height, width)."""
        spans = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(
                self.input_shape[1:],
                self.padding,
                self.dilation,
                self.kernel.shape[2:],
                self.stride,
                strict=True,
            )
        )
        return (self.kernel.shape[0], *spans)

    @property
    def input_size(self) -> int:
        return int(np.prod(self.input_shape))

    @property
    def output_size(self) -> int:
        return int(np.prod(self.output_shape))

    @property
    def nonzeros(self) -> int:
        return int(self.kernel.size * np.prod(self.output_shape[1:]))

    @property
    def exponent(self) -> int:
        return _exponent(self.kernel)

    def scaled(self, exponent: int) -> "Convolution":
        return replace(self, kernel=np.ldexp(self.kernel, exponent))

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice], tuple[slice, slice]]]:
        """Yield (i, j, output window, input window): where kernel tap (i, j) reads inside the image."""
        for i in range(self.kernel.shape[2]):
            rows = self._windows(0, i)
            for j in range(self.kernel.shape[3]):
                columns = self._windows(1, j)
                if rows and columns:
                    yield i, j, (rows[0], columns[0]), (rows[1], columns[1])

    def _windows(self, axis: int, tap: int) -> tuple[slice, slice] | None:
        """Return the output positions at which `tap` falls inside the image, and the input positions it reads."""
        n, s = self.input_shape[1 + axis], self.stride[axis]
        offset = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // s))
        last = min(self.output_shape[1 + axis] - 1, (n - 1 - offset) // s)
        if first > last:
            return None
        return slice(first, last + 1), slice(first * s + offset, last * s + offset + 1, s)

    def _grouped_kernel(self, i: int, j: int) -> Array:
        """Return tap (i, j) as (groups, out per group, in per group)."""
        out, per_group = self.kernel.shape[:2]
        return np.asarray(self.kernel[:, :, i, j]).reshape(self.groups, out // self.groups, per_group)

    def _group(self, images: Array) -> Array:
        """Split the channel axis: (channels, h, w, m) to (groups, channels per group, h, w, m), a view."""
        return images.reshape(self.groups, images.shape[0] // self.groups, *images.shape[1:])

    def apply(self, x: Array) -> Array:
        images = self._group(x.reshape(*self.input_shape, -1))
        out = np.zeros((*self.output_shape, images.shape[-1]))
        view = self._group(out)
        for i, j, (oy, ox), (iy, ix) in self.taps():
            view[:, :, oy, ox] += np.einsum(
                "goc,gcyxm->goyxm", self._grouped_kernel(i, j), images[:, :, iy, ix], optimize=True
            )
        return out.reshape(self.output_size, -1)

    def apply_transposed(self, y: Array) -> Array:
        return self._transposed(y, lambda kernel: kernel)

    def _transposed(self, y: Array, entrywise: Any) -> Array:
        maps = self._group(y.reshape(*self.output_shape, -1))
        image = np.zeros((*self.input_shape, maps.shape[-1]))
        view = self._group(image)
        for i, j, (oy, ox), (iy, ix) in self.taps():
            view[:, :, iy, ix] += np.einsum(
                "goc,goyxm->gcyxm", entrywise(self._grouped_kernel(i, j)), maps[:, :, oy, ox], optimize=True
            )
        return image.reshape(self.input_size, -1)

    def row_sums(self) -> Array:
        total = np.zeros(self.output_shape)
        for i, j, (oy, ox), _ in self.taps():
            total[:, oy, ox] += np.abs(self.kernel[:, :, i, j]).sum(axis=1)[:, None, None]
        return total.ravel()

    def weighted_column_sums(self, power: int, weights: Array) -> Array:
        return self._transposed(weights, lambda kernel: np.abs(kernel) ** power).ravel()

    def sparse(self) -> sp.csr_array:
        outputs = np.arange(self.output_size).reshape(self.output_shape)
        inputs = np.arange(self.input_size).reshape(self.input_shape)
        out_per_group, in_per_group = self.kernel.shape[0] // self.groups, self.kernel.shape[1]
        rows, columns, values = [], [], []
        for i, j, (oy, ox), (iy, ix) in self.taps():
            for g in range(self.groups):
                o = outputs[g * out_per_group : (g + 1) * out_per_group, oy, ox][:, None]
                c = inputs[g * in_per_group : (g + 1) * in_per_group, iy, ix][None]
                o, c = np.broadcast_arrays(o, c)
                rows.append(o.ravel())
                columns.append(c.ravel())
                tap = self._grouped_kernel(i, j)[g][:, :, None, None]
                values.append(np.broadcast_to(tap, o.shape).ravel())
        if not rows:  # every tap reads padding only
            return sp.csr_array((self.output_size, self.input_size))
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return sp.csr_array(entries, shape=(self.output_size, self.input_size))


def _exponent(entries: Array) -> int:
    return int(np.frexp(np.max(np.abs(entries), initial=0.0))[1])


def as_linear_map(query: "LinearMap | ArrayLike | sp.sparray") -> LinearMap:
    """Return `query` as a LinearMap: one already, a scipy sparse matrix or anything numpy reads as a matrix."""
    if isinstance(query, Convolution | Matrix):
        return query
    if sp.issparse(query):
        values = sp.csr_array(query, dtype=np.float64)
        finite_array("matrix", values.data)
    else:
        dense = finite_array("matrix", query)  # type: ignore[arg-type]
        if dense.ndim != 2 or dense.size == 0:
            raise InvalidInputError(f"a linear query must be a matrix (outputs × inputs), got shape {dense.shape}")
        values = sp.csr_array(dense)
    return Matrix(values)
