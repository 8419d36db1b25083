"""Moduli of Gabor wavelets by small convolutions: fixed features in a tenth of the time of a scattering transform.

    |x ⋆ ψ_j,θ| at every 2nd pixel, averaged over 2×2       light
    the same of the image at half its size                  light, red–blue, green–purple

Two frequencies and 8 angles give 16 channels, the low frequencies one more: 17 for each plane. At half the size, waves
are twice as long: they are what noise leaves of an image. Votes run the whole network thousands of times for an image,
so that the time of a pass is what a certificate costs; a scattering transform (`scattering.py`) has a second order of
moduli, and takes ten times as long.
"""

__all__ = ["WAVELET_CHANNELS", "Wavelets"]

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.errors import InvalidInputError
from securesgd.validate import Array

_ANGLES, _SIZE = 8, 8
_WAVES = ((0.75 * math.pi, 1.0), (0.45 * math.pi, 1.7))  # frequency in radians a pixel, width of the envelope in pixels
_SLANT, _LOW = 0.5, 2.0  # of the envelope across the wave; width of the low-pass filter in pixels
WAVELET_CHANNELS = _ANGLES * len(_WAVES) + 1
"""Channels of a plane at one size."""
_SMALLEST = 8  # pixels of height or width
_TINY = 1e-12  # under the root of a modulus, whose gradient at 0 is then 0 and not NaN


class Wavelets(nn.Module):
    """Maps images [batch, colours, height, width] to [batch, 17·(1 + colours), height // 4, width // 4].

    Guarantee: nothing is learned, and each image is treated by itself.
    Raises: InvalidInputError for another number of colours, or less than 8 pixels of height or width.
    """

    filters: Tensor
    """Even filters, then odd ones, then the low-pass."""
    planes: Tensor

    def __init__(self, colours: int, height: int, width: int) -> None:
        super().__init__()
        if colours not in (1, 3) or min(height, width) < _SMALLEST:
            raise InvalidInputError(
                f"images have {colours} colours and {height}×{width} pixels; valid for wavelets: 1 or 3 colours, at "
                f"least {_SMALLEST} pixels each way"
            )
        self.shape = colours, height, width
        even, odd = np.stack([_gabor(wave, width, angle) for wave, width in _WAVES for angle in range(_ANGLES)], axis=1)
        basis = np.array([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]]) if colours == 3 else np.ones((1, 1))
        low = _envelope(_LOW, 1.0, 0.0)[0]
        for name, values in (
            ("filters", np.concatenate([even, odd, low[None] / np.linalg.norm(low)])[:, None]),
            ("planes", basis / np.linalg.norm(basis, axis=1, keepdims=True)),
        ):
            # Not in the weights of a run: the sizes say it all.
            values = torch.as_tensor(values, dtype=torch.get_default_dtype())
            self.register_buffer(name, values, persistent=False)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of light, then those of all planes at half the size."""
        if x.dim() != 4 or tuple(x.shape[1:]) != self.shape:
            raise InvalidInputError(f"inputs have shape {list(x.shape)}; valid: [batch, {str(list(self.shape))[1:-1]}]")
        height, width = self.shape[1] // 4, self.shape[2] // 4
        light = functional.avg_pool2d(self._moduli(self._in_planes(x, self.planes[:1])), 2)[..., :height, :width]
        half = self._moduli(self._in_planes(functional.avg_pool2d(x, 2), self.planes))[..., :height, :width]
        return torch.cat([light, half.reshape(len(x), -1, height, width)], dim=1)

    def _in_planes(self, x: Tensor, planes: Tensor) -> Tensor:
        """Return the images in these planes, [images · planes, 1, height, width]."""
        return (planes @ x.flatten(2)).reshape(-1, 1, *x.shape[2:])

    def _moduli(self, planes: Tensor) -> Tensor:
        """Return the channels [planes, 17, ·, ·] at every second pixel."""
        waves = functional.conv2d(planes, self.filters, stride=2, padding=_SIZE // 2 - 1)
        even, odd, low = waves.tensor_split([WAVELET_CHANNELS - 1, 2 * (WAVELET_CHANNELS - 1)], dim=1)
        return torch.cat([torch.addcmul(even.square() + _TINY, odd, odd).sqrt(), low], dim=1)


def _envelope(width: float, slant: float, theta: float) -> tuple[Array, Array]:
    """Return an oval Gaussian around the middle of a filter, and the place along its short axis."""
    at = np.arange(_SIZE) - (_SIZE - 1) / 2
    u = at[:, None] * math.sin(theta) + at * math.cos(theta)
    v = at[:, None] * math.cos(theta) - at * math.sin(theta)
    return np.exp(-(u**2 + (slant * v) ** 2) / (2 * width**2)), u


def _gabor(wave: float, width: float, angle: int) -> Array:
    """Return the even and the odd filter of a wave in an oval Gaussian, of mean 0 and together of norm √2."""
    envelope, u = _envelope(width, _SLANT, angle * math.pi / _ANGLES)
    even, odd = envelope * np.cos(wave * u), envelope * np.sin(wave * u)
    even = even - envelope * (even.sum() / envelope.sum())
    return np.stack([even, odd]) * math.sqrt(2 / (even**2 + odd**2).sum())
