"""Channels of mean 0 and variance 1 without a look at data: means and deviations come from made-up images.

Photographs have amplitudes that fall as 1/f with the frequency f (Field 1987, "Relations between the statistics of
natural images and the response properties of cortical cells"). Random images with that spectrum stand for them: the
means and variances of wavelet coefficients over such images are near those over real ones, and cost no privacy.
"""

__all__ = ["Standardise", "made_up_images"]

import math

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.validate import Array

_IMAGES, _NUMBERS = 128, 2**21  # images; numbers in all of them, so that large images are fewer
_CONTRAST, _COLOUR = 0.4, 0.3  # most of a pixel's standard deviation; share of it that is the colour's own
_LEAST = 1e-3  # of the largest standard deviation: a channel that hardly moves is not blown up


def made_up_images(input_shape: tuple[int, int, int]) -> Array:
    """Return random images in [0, 1], [images, colours, height, width], with amplitudes that fall as 1/f.

    Colours share most of their structure, contrasts are between 0 and 0.4. Always the same images.
    """
    colours, height, width = input_shape
    count = max(1, min(_IMAGES, _NUMBERS // math.prod(input_shape)))
    random = np.random.RandomState(0)  # its numbers never change from version to version
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    amplitude = 1 / np.maximum(frequency, 1 / max(height, width))

    def fields(planes: int) -> Array:
        noise = np.fft.fft2(random.standard_normal((count, planes, height, width)))
        values = np.fft.ifft2(noise * amplitude).real
        return np.asarray(values / values.std(axis=(2, 3), keepdims=True))

    light = fields(1)
    values = light if colours == 1 else math.sqrt(1 - _COLOUR**2) * light + _COLOUR * fields(colours)
    contrast = _CONTRAST * random.uniform(size=(count, 1, 1, 1))
    return np.asarray(np.clip(0.5 + contrast * values, 0, 1))


class Standardise(nn.Module):
    """Subtracts from each channel the mean that `features` have over made-up images, and divides by their deviation.

    Guarantee: nothing is learned, and each image is treated by itself. The numbers are kept with the weights of a run,
    so that the network that is certified is the one that is loaded.
    """

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, features: nn.Module, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        images = torch.as_tensor(made_up_images(input_shape), dtype=torch.get_default_dtype())
        with torch.no_grad():
            values = features(images).double()
        std, mean = torch.std_mean(values, dim=(0, 2, 3), keepdim=True)
        self.channels = std.numel()
        self.register_buffer("mean", mean[0].to(images))
        self.register_buffer("inverse_std", (1 / (std + _LEAST * std.max()))[0].to(images))

    def extra_repr(self) -> str:
        return f"{self.channels}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised channels."""
        return (x - self.mean) * self.inverse_std
