"""The geometry of a two-dimensional convolution: which input pixel meets which kernel tap at which output."""

__all__ = ["Geometry"]

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[int, int]
Window = tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Output (i, j) meets input (i·stride + a·dilation − before) under kernel tap (a, b), likewise in columns.

    Padding is zero padding: any other mode is applied to the input beforehand (see `from_layer`).
    """

    kernel: Pair
    stride: Pair
    dilation: Pair
    before: Pair
    after: Pair
    groups: int

    @classmethod
    def from_layer(cls, layer: nn.Conv2d, x: Tensor) -> tuple["Geometry", Tensor]:
        """Return the geometry of `layer`, and its input `x` after any padding that is not zero padding."""
        kernel, stride, dilation = (cast(Pair, tuple(v)) for v in (layer.kernel_size, layer.stride, layer.dilation))
        before: Pair
        after: Pair
        if layer.padding == "valid":
            before = after = (0, 0)
        elif layer.padding == "same":
            total = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
            before = (total[0] // 2, total[1] // 2)
            after = (total[0] - before[0], total[1] - before[1])
        else:
            before = after = cast(Pair, tuple(layer.padding))
        if layer.padding_mode != "zeros":
            x = functional.pad(x, (before[1], after[1], before[0], after[0]), mode=layer.padding_mode)
            before = after = (0, 0)
        return cls(kernel, stride, dilation, before, after, layer.groups), x

    def padded(self, images: Tensor, rows: bool) -> Tensor:
        """Return zero-padded images of shape [..., height, width, channels]; `rows` says whether to pad rows too."""
        top, bottom = (self.before[0], self.after[0]) if rows else (0, 0)
        left, right = self.before[1], self.after[1]
        if not (top or bottom or left or right):
            return images
        return functional.pad(images, (0, 0, left, right, top, bottom))

    def windows(self, axis: int, inputs: int, outputs: int) -> list[Window]:
        """Return, for each kernel tap along `axis`, the outputs that meet a real pixel and those pixels.

        Outputs that meet padding under a tap are left out: they would add zero. A window may be empty.
        """
        stride, dilation, before = self.stride[axis], self.dilation[axis], self.before[axis]
        windows = []
        for tap in range(self.kernel[axis]):
            shift = tap * dilation - before
            first = max(0, -(shift // stride))  # smallest output with output·stride + shift >= 0
            last = min(outputs - 1, (inputs - 1 - shift) // stride)
            if first <= last:
                start, stop = first * stride + shift, last * stride + shift + 1
                windows.append((slice(first, last + 1), slice(start, stop, stride)))
            else:
                windows.append((slice(0, 0), slice(0, 0)))
        return windows
