"""How far the features of a fixed transform move in l2 when the image does: two bounds by energies of channels.

For a transform T and images x, x' with ‖x' − x‖₂ <= r, and for any numbers G and q >= 0,
    ⟨G, T(x') − T(x)⟩ <= r·√functional(energies(G))      and      Σ_c q_c‖T_c(x') − T_c(x)‖² <= r²·squares(q).

Both rest on three facts. A modulus is non-expansive: ||a| − |b|| <= |a − b|. A channel is a map m, |·| of a filtered
image, under an average A: ⟨G_c, A m⟩ = ⟨Aᵀ G_c, m⟩ <= ‖ν^{-1/2} Aᵀ G_c‖·‖ν^{1/2} m‖ for any positive ν at the places
of the map, and energies(G)_c is the square of the first. Last, all filters Ψ_c together are one linear map, of which a
norm is proven: Σ_c ‖ν^{1/2} Ψ_c d‖² <= Λ‖d‖². Then Cauchy–Schwarz over the channels.

The filters are read from the buffers of the module, so that whatever they hold the bound is one of theirs.
"""

__all__ = ["ScatteringBound", "TransformBound", "WaveletBound"]

import math
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from securesgd.models.scattering import ORDERS, Scattering
from securesgd.models.wavelets import WAVELET_CHANNELS, Wavelets
from securesgd.theory.linear_maps import Convolution
from securesgd.theory.spectral import dominating_shift, symbol_norm
from securesgd.validate import Array

_UP = 1 + 1e-9  # more than float64 loses in the sums here
_FOURIER = 8  # units of rounding that a Fourier transform may be off, per log₂ of its size
_MOST_PLACES = 3200  # of an image whose matrix of filters is formed


class TransformBound(Protocol):
    """Bounds of a transform, as the module's docstring has them."""

    rounding: float
    """The transform computed in floating point is off by rounding·u·‖x‖₂ at most, in l2; u is its unit of rounding."""
    growth: float
    """What a modulus squares and adds up is in size growth·‖x‖₂ at most."""

    def energies(self, functional: Array) -> Array:
        """Return a number per channel, [..., channels], of linear functionals [..., channels, height, width]."""

    def functional(self, energies: Array) -> Array:
        """Return the squared norm, as functions of the image, of functionals with these energies."""

    def squares(self, weights: Array) -> Array:
        """Return the bound of weighted squares of the channels' changes, of weights [..., channels]."""


class ScatteringBound:
    """Of `Scattering`. Channels of a colour are those of order 0, 1 at the fine and 1 at the coarse scale, and 2.

    ν is 1 / (copies of a pixel in the padded image), so that Λ is about 1, and not 4 as at the corners it would be.
    A fine map drives the 8 maps of order 2 made of it: together they are bounded by what the fine map is, where Λ₂ is
    the norm of the coarse filters on it. The order 0 has no modulus. To share Λ evenly, order 0 counts 16 times and the
    coarse scale 4 times, which undoes the subsampling.

    Assumes, in `rounding`: torch's Fourier transforms of N numbers are off by at most 8 log₂N units of rounding,
    relative in l2. That is what is proven of the textbook's transform (Higham 2002, Theorem 24.2: 6.7 log₂N, for powers
    of 2); torch's libraries mix other factors in.
    """

    def __init__(self, transform: Scattering) -> None:
        fine, coarse = _numbers(transform.fine)[..., 0], _numbers(transform.coarse)[..., ::2]
        rows, columns = fine.shape[1:]
        self._angles = len(fine)
        coarse = 4 * coarse.reshape(-1, 2, 2, rows // 2, columns // 2).transpose(0, 1, 3, 2, 4).reshape(fine.shape)
        explicit = transform.height * transform.width <= _MOST_PLACES
        sides = [
            _Side(transform, name, n, explicit)
            for name, n in (("rows", transform.height), ("columns", transform.width))
        ]
        self._averages = [[side.grams[level] for side in sides] for level in (0, 1)]
        self._average_norms = [
            math.prod(float(np.linalg.eigvalsh(g)[-1]) * _UP for g in pair) for pair in self._averages
        ]
        self._outputs = np.outer(*(side.outputs for side in sides))  # ν where the averages are taken
        if explicit:
            nu = np.outer(*(side.nu for side in sides))
            sampled = np.zeros_like(nu)
            sampled[::2, ::2] = nu[::2, ::2]
            padding = np.kron(sides[0].padding, sides[1].padding)
            low = np.kron(*(side.low for side in sides)) * np.sqrt(self._outputs.reshape(-1, 1))
            gram = 16 * low.T @ low + _filter_gram(padding, [(fine, nu), (coarse, 4 * sampled)])
            self._norm = _largest_eigenvalue(gram)
            self._second = _largest_eigenvalue(_filter_gram(np.diag(1 / np.sqrt(nu.ravel())), [(coarse, sampled)]))
        copies = math.prod(int(side.copies.max()) for side in sides)
        aliases = coarse.reshape(-1, 2, rows // 2, 2, columns // 2).transpose(2, 4, 0, 1, 3)
        aliases = aliases.reshape(rows * columns // 4, self._angles, 4)
        second = float(np.linalg.norm(aliases, 2, axis=(1, 2)).max()) ** 2 / 4 * _UP
        first = float(np.square(fine).sum(0).max())
        if not explicit:
            self._second = second
            self._norm = copies * (16 * self._average_norms[0] + first + 4 * second) * _UP
        # The image and its maps of order 1 and 2 have (1 + first)(1 + second) times the square of the padded image at
        # most. A map has gone through 4 Fourier transforms, filters and moduli; an average adds its sums of products.
        transforms = 4 * _FOURIER * math.log2(rows * columns) + 32
        average = max(math.prod(side.norms[level][0] for side in sides) for level in (0, 1)) * transforms
        average += max(math.prod(side.norms[level][1] for side in sides) for level in (0, 1)) * (rows + columns + 8)
        self.growth = math.sqrt(copies * (1 + first) * (1 + second)) * _UP
        self.rounding = self.growth * average

    def energies(self, functional: Array) -> Array:
        by_colour = functional.reshape(*functional.shape[:-3], -1, sum(ORDERS), *functional.shape[-2:])
        first = 1 + self._angles
        parts = [(np.square(by_colour[..., :1, :, :]) / self._outputs).sum((-2, -1))]
        for level, part in ((0, by_colour[..., 1:first, :, :]), (1, by_colour[..., first:, :, :])):
            rows, columns = self._averages[level]
            parts.append(np.maximum((part * (rows @ part @ columns)).sum((-2, -1)), 0))
        return np.concatenate(parts, axis=-1).reshape(*functional.shape[:-2]) * _UP

    def functional(self, energies: Array) -> Array:
        low, fine, coarse, second = self._by_order(energies)
        driven = np.sqrt(fine) + np.sqrt(self._second * second.sum(-1))
        total = low.sum(-1) / 16 + np.square(driven).sum(-1) + coarse.sum(-1) / 4
        return self._norm * total.sum(-1) * _UP

    def squares(self, weights: Array) -> Array:
        low, fine, coarse, second = self._by_order(weights)
        by_fine = self._average_norms[0] * fine + self._average_norms[1] * self._second * second.max(-1)
        at_outputs = 1 / self._outputs.min()
        largest = np.maximum(low.max(-1) * at_outputs / 16, self._average_norms[1] * coarse.max(-1) / 4)
        return self._norm * np.maximum(largest, by_fine.max(-1)).max(-1) * _UP

    def _by_order(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """Return [..., colours, 1], twice [..., colours, 8], and [..., colours, 8, 8]: of each fine map its own."""
        by_colour = values.reshape(*values.shape[:-1], -1, sum(ORDERS))
        low, fine, coarse, second = np.split(by_colour, np.cumsum([1, self._angles, self._angles]), axis=-1)
        return low, fine, coarse, second.reshape(*second.shape[:-1], self._angles, self._angles)


class _Side:
    """One axis of the padded image of a scattering transform, and its averages."""

    def __init__(self, transform: Scattering, name: str, size: int, weighted: bool) -> None:
        averages = [_numbers(getattr(transform, f"average_{name}_{level}")) for level in (0, 1)]
        padded = averages[0].shape[1]
        more = padded - size
        source = np.pad(np.arange(size), (more // 2, more - more // 2), mode="reflect")
        self.padding = np.eye(size)[source]
        self.copies = np.bincount(source, minlength=size)
        self.nu = 1 / self.copies[source] if weighted else np.ones(padded)
        self.low = averages[0] @ self.padding
        self.outputs = self.nu[::4][1 : 1 + len(averages[0])]
        self.norms = [[float(np.linalg.norm(a, 2)) for a in (average, np.abs(average))] for average in averages]
        self.grams = [average / nu @ average.T for average, nu in zip(averages, (self.nu, self.nu[::2]), strict=True)]


class WaveletBound:
    """Of `Wavelets`. The filters at full size and at half are one linear map, a convolution with stride 4.

    Channels are scaled to norm 1 there, and those at half size weighted by a further ρ: Λ(ρ) is the norm of that
    convolution's symbol. Each ρ of a short list gives a bound, and the least of them counts. Colours other than light
    are seen at half size only. An image of odd height or width has a row that half its size leaves out: there
    Λ(ρ) is the sum of the two. Averages over 2×2 have norm 1/2.
    """

    def __init__(self, transform: Wavelets) -> None:
        filters, planes = _numbers(transform.filters)[:, 0], _numbers(transform.planes)
        colours, *sides = transform.shape
        waves = WAVELET_CHANNELS - 1
        full = [np.stack([filters[c], filters[waves + c]]) for c in range(waves)] + [filters[2 * waves :]]
        half = [np.kron(own, np.full((1, 2, 2), 0.25)) for own in full]
        height, width = (4 * math.ceil(n / 4) + 16 for n in sides)

        def norm(kernels: Array, stride: int) -> float:
            padding = 3 if stride == 2 else 6
            map_ = Convolution(kernels[:, None], (1, height, width), (stride, stride), (padding, padding))
            return symbol_norm(map_, np.ones(len(kernels))) ** 2 * _UP

        self._full = np.array([norm(own, 2) for own in full])
        self._half = np.array([norm(own, 4) for own in half])
        full_kernels = np.concatenate([own / math.sqrt(n) for own, n in zip(full, self._full, strict=True)])
        half_kernels = np.concatenate([own / math.sqrt(n) for own, n in zip(half, self._half, strict=True)])
        self._half_norm = norm(half_kernels, 4)
        self._shares = 4.0 ** np.arange(-3, 4)  # ρ
        if any(n % 2 for n in sides):
            self._norms = norm(full_kernels, 2) + self._shares * self._half_norm
        else:
            # A step of 4 has the kernel of stride 2 at 2×2 places.
            steps = [np.pad(full_kernels, ((0, 0), (3 + i, 5 - i), (3 + j, 5 - j))) for i in (0, 2) for j in (0, 2)]
            self._norms = np.array(
                [norm(np.concatenate([*steps, math.sqrt(r) * half_kernels]), 4) for r in self._shares]
            )
        self._planes = max(float(np.linalg.norm(part, 2)) ** 2 for part in (planes, planes[:1])) * _UP
        # |Ψ| has at most the norm of its filters' sums; terms of a sum: 64, and 4, 4 and the colours around it.
        absolute = float(np.linalg.norm(np.abs(filters).sum((1, 2))))
        self.growth = absolute * float(np.linalg.norm(np.abs(planes), 2)) * _UP
        self.rounding = self.growth * math.sqrt(1 + colours) / 2 * (64 + 32)

    def energies(self, functional: Array) -> Array:
        squares = np.square(functional).sum((-2, -1)) * _UP
        squares[..., :WAVELET_CHANNELS] /= 4
        return np.asarray(squares)

    def functional(self, energies: Array) -> Array:
        full, light, colours = self._by_plane(energies)
        at_full, at_half = (full * self._full).sum(-1), (light * self._half).sum(-1)
        of_light = ((at_full[..., None] + at_half[..., None] / self._shares) * self._norms).min(-1)
        return self._planes * (of_light + (colours * self._half).sum((-2, -1)) * self._half_norm) * _UP

    def squares(self, weights: Array) -> Array:
        full, light, colours = self._by_plane(weights)
        at_full, at_half = (full * self._full).max(-1) / 4, (light * self._half).max(-1)
        of_light = (np.maximum(at_full[..., None], at_half[..., None] / self._shares) * self._norms).min(-1)
        of_colours = (colours * self._half).max((-2, -1), initial=0) * self._half_norm
        return self._planes * np.maximum(of_light, of_colours) * _UP

    def _by_plane(self, values: Array) -> tuple[Array, Array, Array]:
        """Return the channels at full size [..., 17], those of light at half size, and [..., colours, 17]."""
        by_plane = values.reshape(*values.shape[:-1], -1, WAVELET_CHANNELS)
        return by_plane[..., 0, :], by_plane[..., 1, :], by_plane[..., 2:, :]


def _numbers(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy())


def _filter_gram(basis: NDArray[Any], parts: list[tuple[Array, Array]]) -> Array:
    """Return Bᵀ Σ Ψᵀ ν Ψ B for the columns of B, images on a torus, and parts (spectra Ψ̂ of filters, ν)."""
    gram = np.zeros((basis.shape[1], basis.shape[1]))
    shape = parts[0][1].shape
    for start in range(0, basis.shape[1], 32):
        images = basis[:, start : start + 32].T.reshape(-1, *shape)
        spectrum, back = np.fft.fft2(images)[:, None], np.zeros(images.shape)
        for filters, nu in parts:
            weighted = np.fft.fft2(nu * np.fft.ifft2(spectrum * filters))
            back += np.fft.ifft2((weighted * filters).sum(1)).real
        gram[:, start : start + 32] = basis.T @ back.reshape(len(images), -1).T
    return (gram + gram.T) / 2


def _largest_eigenvalue(gram: Array) -> float:
    """Return an upper bound of the largest eigenvalue, proven by a factorisation; the matrix may be off by rounding."""
    guess = float(np.linalg.eigvalsh(gram)[-1])
    error = 1e-11 * float(np.trace(gram))
    shift, _ = dominating_shift(np.full(len(gram), guess), sp.csr_array(gram), error)
    return (guess + shift) * _UP
