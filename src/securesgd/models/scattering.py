"""A scattering transform: wavelets, moduli and averages, with nothing to train and so nothing that costs privacy.

    S₀ = x ⋆ φ       S₁ = |x ⋆ ψ_j,θ| ⋆ φ       S₂ = ||x ⋆ ψ_0,θ| ⋆ ψ_1,θ'| ⋆ φ       (all sampled at every 4th pixel)

Two scales and 8 angles give 1 + 16 + 64 = 81 channels per colour, at a quarter of the height and width. A linear or
small head on them is what a private budget can train (Tramèr and Boneh 2021, "Differentially Private Learning Needs
Better Features"). Noise comes before the transform, so every certificate of a noisy input holds as it is.

The transform is that of kymatio 0.3.0 (Andreux et al. 2020) up to rounding and its π = 3.1415. It is written anew since
it takes a quarter of the time here: 0.35 ms of a core instead of 1.3 ms for 28×28 pixels, 1.4 ms instead of 5.8 ms for
3×32×32, which is most of a training step. What makes the difference: filtering and subsampling are one product per
quarter of the spectrum, all angles at once; averages are two small products of matrices and no Fourier transforms.
"""

__all__ = ["CHANNELS", "ORDERS", "Scattering"]

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.errors import InvalidInputError

_ANGLES = 8
ORDERS = (1, 2 * _ANGLES, _ANGLES**2)
"""Channels of order 0, 1 and 2 of a colour."""
CHANNELS = sum(ORDERS)
"""Channels of a colour."""
_STRIDE = 4  # two scales: 2²
_SMALLEST = 8  # pixels of height or width
_CHUNK = 12  # colour planes at once: what they take fits into the cache of a core
_TINY = 1e-24  # under the root of a modulus, whose gradient at 0 is then 0 and not NaN

Array = NDArray[np.float64]


class Scattering(nn.Module):
    """Maps images [batch, colours, height, width] to [batch, 81·colours, height // 4, width // 4].

    Guarantee: each image is treated by itself, and ‖S(x') − S(x)‖₂ ≤ ‖x' − x‖₂ if height and width are at least 10
    pixels (≤ 1.25·‖x' − x‖₂ if not). |φ̂|² + Σ|ψ̂|² ≤ 1 at every frequency, and moduli are non-expansive; reflecting the
    border repeats a pixel at most 4 times (9 in smaller images), which subsampling makes up for: `tests/models/
    test_scattering.py` has the sum.
    Raises: InvalidInputError if height or width is less than 8 pixels.
    """

    fine: Tensor
    """ψ̂_0,θ, [angles, height, width, 2]: each value for the real and the imaginary part."""
    coarse: Tensor
    """ψ̂_1,θ in quarters of the spectrum, [angles, 4, ·]: their weighted sum is filtered and subsampled by 2."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        if min(height, width) < _SMALLEST:
            raise InvalidInputError(
                f"images are {height}×{width} pixels; valid for a scattering transform: at least {_SMALLEST} each way"
            )
        self.height, self.width = height, width
        rows, columns = self._padded = _padded(height), _padded(width)
        fine = np.stack([_morlet(rows, columns, 0, angle) for angle in range(_ANGLES)])
        coarse = np.stack([_morlet(rows, columns, 1, angle) for angle in range(_ANGLES)])
        quarters = coarse.reshape(_ANGLES, 2, rows // 2, 2, columns // 2).transpose(0, 1, 3, 2, 4) / 4
        self._register("fine", np.repeat(fine[..., None], 2, axis=-1))
        self._register("coarse", np.repeat(quarters.reshape(_ANGLES, 4, -1), 2, axis=-1))
        for name, size in (("rows", rows), ("columns", columns)):
            for level in (0, 1):
                self._register(f"average_{name}_{level}", _average(size, level))

    def _register(self, name: str, values: Array) -> None:
        # Not in the weights of a run: the sizes say it all.
        self.register_buffer(name, torch.as_tensor(values, dtype=torch.get_default_dtype()), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.height}, {self.width}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the coefficients: by colour, those of order 0, 1 and 2."""
        if x.dim() != 4 or tuple(x.shape[2:]) != (self.height, self.width):
            raise InvalidInputError(
                f"inputs have shape {list(x.shape)}; valid: [batch, colours, {self.height}, {self.width}]"
            )
        planes = x.reshape(-1, self.height, self.width)
        coefficients = torch.cat([self._transform(part) for part in torch.split(planes, _CHUNK)])
        return coefficients.reshape(len(x), -1, *coefficients.shape[2:])

    def _transform(self, planes: Tensor) -> Tensor:
        """Return the coefficients [planes, 81, ·, ·] of a few colour planes."""
        x = _reflected(planes, *self._padded)[:, None]
        spectrum = torch.fft.fft2(x)
        fine = _modulus(torch.fft.ifft2(torch.view_as_complex(torch.view_as_real(spectrum) * self.fine)))
        coarse = self._coarse_modulus(spectrum)
        second = self._coarse_modulus(torch.fft.fft2(fine))
        averages = [self._average(x, 0), self._average(fine, 0), self._average(coarse, 1), self._average(second, 1)]
        return torch.cat(averages, dim=1)

    def _coarse_modulus(self, spectrum: Tensor) -> Tensor:
        """Return |· ⋆ ψ_1,θ| at every second pixel, for every map and then every angle, from the maps' spectra."""
        count, maps, rows, columns = spectrum.shape
        half = rows // 2, columns // 2
        parts = torch.view_as_real(spectrum).reshape(count, maps, 2, half[0], 2, half[1], 2)
        parts = parts.transpose(3, 4).reshape(count, maps, 1, 4, -1)
        folded = parts[:, :, :, 0] * self.coarse[:, 0]
        for quarter in (1, 2, 3):
            folded = folded.addcmul_(parts[:, :, :, quarter], self.coarse[:, quarter])
        folded = torch.view_as_complex(folded.view(count, maps * _ANGLES, *half, 2))
        return _modulus(torch.fft.ifft2(folded))

    def _average(self, maps: Tensor, level: int) -> Tensor:
        """Return maps ⋆ φ at every 4th pixel of the image, without its padding."""
        rows, columns = (getattr(self, f"average_{name}_{level}") for name in ("rows", "columns"))
        return rows @ (maps @ columns.T)


def _padded(size: int) -> int:
    """Return the size after padding: a multiple of 4, with at least 3 more pixels at either end."""
    return ((size + _STRIDE) // _STRIDE + 1) * _STRIDE


def _reflected(planes: Tensor, rows: int, columns: int) -> Tensor:
    """Return the planes with their borders reflected, up to this size."""
    more = [columns - planes.shape[-1], rows - planes.shape[-2]]
    padding = [end for extra in more for end in (extra // 2, extra - extra // 2)]
    return nn.functional.pad(planes, padding, mode="reflect")


def _modulus(maps: Tensor) -> Tensor:
    """Return |·| of complex maps; a root of squares takes a third of the time of torch's own."""
    return torch.addcmul(maps.real.square() + _TINY, maps.imag, maps.imag).sqrt()


def _morlet(rows: int, columns: int, scale: int, angle: int) -> Array:
    """Return ψ̂, the Fourier transform (real) of a Morlet wavelet on a torus: a wave in an oval Gaussian, of mean 0."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / _ANGLES
    theta = (_ANGLES // 2 - 1 - angle) * math.pi / _ANGLES
    images = np.arange(-2, 3)[:, None]  # of the torus: a filter goes around it
    u = (images * rows + np.arange(rows)).reshape(-1, 1)
    v = (images * columns + np.arange(columns)).reshape(1, -1)
    along, across = u * math.cos(theta) + v * math.sin(theta), v * math.cos(theta) - u * math.sin(theta)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)

    def transform(filter_: NDArray[np.complex128] | Array) -> Array:
        return np.real(np.fft.fft2(filter_.reshape(len(images), rows, len(images), columns).sum(axis=(0, 2))))

    wave, low = transform(envelope * np.exp(1j * frequency * along)), transform(envelope)
    return wave - wave[0, 0] / low[0, 0] * low


def _average(size: int, level: int) -> Array:
    """Return the matrix that averages by φ along one axis, subsampled by 2^level already, to every 4th pixel.

    φ is a Gaussian of standard deviation 1.6 pixels; at level 1 without the frequencies above that level's own. Its
    first and last value, which lie in the padding, are left out.
    """
    u = np.arange(-2, 3)[:, None] * size + np.arange(size)
    sigma = 0.8 * 2
    spectrum = np.real(np.fft.fft(np.exp(-(u**2) / (2 * sigma**2)).sum(axis=0) / (math.sqrt(2 * math.pi) * sigma)))
    if level:
        spectrum[size // 4 : size - size // 4] = 0
        spectrum = spectrum.reshape(2, -1).sum(axis=0)
    kernel = np.real(np.fft.ifft(spectrum))
    places, stride = np.arange(len(kernel)), _STRIDE // 2**level
    matrix = kernel[(places[::stride, None] - places) % len(kernel)]
    return np.asarray(matrix[1:-1])
