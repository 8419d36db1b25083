"""Per-example convolution gradients themselves, from patches of the input laid out for a matrix product."""

__all__ = ["joint_gradients", "kept_gradients", "measured_gradients", "product_cost"]

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from securesgd.clipping.rules.forms import Kept, Scratch
from securesgd.clipping.rules.geometry import Geometry

NARROW = 48  # taps × channels below which whole patches are cheaper than one product per kernel row (measured)
MANY = 128  # positions from which one product per tap, without unfolding, is cheaper than one per kernel row (measured)
FEW_TAPS = 9  # of a kernel for which that holds
VECTOR = 16  # float32 numbers of a vector register: torch's kernel for groups wants channels and maps in multiples
JOINT_NUMBERS = 2**23  # of gradients made in one call of that kernel: 32 MB, which the allocator keeps for the next
Kind = Literal["patches", "rows", "taps", "groups"]


def product_cost(x: Tensor, g: Tensor, geometry: Geometry, copies: int) -> float:
    """Return the multiply-adds per example of `kept_gradients`."""
    positions = copies * g.shape[2] * g.shape[3]
    taps = geometry.kernel[0] * geometry.kernel[1]
    return positions * taps * x.shape[1] / geometry.groups * g.shape[1]


def kept_gradients(
    x: Tensor, g: Tensor, geometry: Geometry, copies: int, chunk: int, scratch: Scratch | None = None
) -> Kept:
    """Return the weight gradients of all examples.

    Args:
        x: input, shape [examples · copies, channels, height, width].
        g: gradient of the output, shape [examples · copies, maps, rows, columns].
        geometry: of the convolution.
        copies: rows that belong to one example; their gradients are added.
        chunk: examples to unfold at once.
        scratch: memory for the result; None for new memory.
    """
    layout = _Layout.choose(x, g, geometry)
    if layout.kind == "groups":
        chunk = max(1, JOINT_NUMBERS // (copies * math.prod(layout.shape)))
        if copies == 1 and len(g) <= chunk:
            return Kept(_by_groups(x, g, geometry), layout.restore)
    shape = (layout.parts, len(g) // copies, *layout.shape)
    raw = g.new_empty(shape) if scratch is None else scratch.empty(shape, like=g)
    for examples in _chunks(len(raw[0]), chunk):
        rows = slice(examples.start * copies, examples.stop * copies)
        if copies == 1:
            layout.fill(raw[:, examples], x[rows], g[rows], geometry)
        else:
            each = g.new_empty(layout.parts, rows.stop - rows.start, *layout.shape)
            layout.fill(each, x[rows], g[rows], geometry)
            raw[:, examples] = each.view(layout.parts, -1, copies, *layout.shape).sum(dim=2)
    return Kept(raw, layout.restore)


def joint_gradients(x: Tensor, g: Tensor, geometry: Geometry, together: int, scratch: Scratch) -> Kept:
    """Return the *sums* of the weight gradients of every `together` images in a row, as if each sum were one example.

    One product over the positions of all of them: faster than one each if an image has few. For one group of channels.
    """
    layout = _Layout("rows", 1, x.shape[1], g.shape[1], geometry.kernel)
    raw = scratch.empty((layout.parts, -(-len(g) // together), *layout.shape), like=g)
    for place, images in enumerate(_chunks(len(g), together)):
        _row_by_row_together(raw[:, place, 0], x[images].permute(2, 0, 3, 1), g[images].permute(1, 2, 0, 3), geometry)
    return Kept(raw, layout.restore)


def measured_gradients(x: Tensor, g: Tensor, geometry: Geometry, copies: int, chunk: int) -> Tensor:
    """Return the squared norms of the weight gradients, dropping the gradients. Arguments as `kept_gradients`."""
    squares = []
    for examples in _chunks(len(x) // copies, chunk):
        rows = slice(examples.start * copies, examples.stop * copies)
        squares.append(kept_gradients(x[rows], g[rows], geometry, copies, chunk).squared_norms())
    return torch.cat(squares)


def _chunks(examples: int, chunk: int) -> Iterator[slice]:
    for start in range(0, examples, chunk):
        yield slice(start, min(start + chunk, examples))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the gradients of one convolution lie in memory: [parts, images, groups, *matrix].

    patches: one part, [channels · kernel rows · kernel columns, maps]: whole patches, best for few channels.
    rows: one part per kernel row, [maps, kernel columns · channels].
    taps: one part per kernel tap, [channels, maps].
    groups: one part, [maps, channels · kernel rows · kernel columns], as torch's own kernel writes it.
    """

    kind: Kind
    groups: int
    channels: int  # of one group
    maps: int  # of one group
    kernel: tuple[int, int]

    @classmethod
    def choose(cls, x: Tensor, g: Tensor, geometry: Geometry) -> "_Layout":
        channels, maps = x.shape[1] // geometry.groups, g.shape[1] // geometry.groups
        kind: Kind = "rows"
        if _suits_groups(x, g, geometry):
            kind = "groups"
        elif geometry.kernel[1] * channels < NARROW:
            kind = "patches"
        elif geometry.stride == (1, 1) and x.shape[2:] == g.shape[2:]:  # else no tap is a mere shift
            few = geometry.kernel[0] * geometry.kernel[1] <= FEW_TAPS
            kind = "taps" if few and g.shape[2] * g.shape[3] >= MANY else "rows"
        return cls(kind, geometry.groups, channels, maps, geometry.kernel)

    @property
    def parts(self) -> int:
        kh, kw = self.kernel
        return {"patches": 1, "groups": 1, "rows": kh, "taps": kh * kw}[self.kind]

    @property
    def shape(self) -> tuple[int, int, int]:
        kh, kw = self.kernel
        if self.kind in ("rows", "groups"):
            return self.groups, self.maps, self.channels * (kw if self.kind == "rows" else kh * kw)
        return self.groups, self.channels * (kh * kw if self.kind == "patches" else 1), self.maps

    def fill(self, into: Tensor, x: Tensor, g: Tensor, geometry: Geometry) -> None:
        """Write the gradient of each image into `into`, shape [parts, images, *shape]."""
        if self.kind == "groups":
            into.copy_(_by_groups(x, g, geometry))
            return
        product = {"patches": _from_patches, "rows": _row_by_row, "taps": _tap_by_tap}[self.kind]
        product(into.flatten(1, 2), _by_group(x, self.groups), _by_group(g, self.groups), geometry)

    def restore(self, stack: Tensor) -> Tensor:
        """Return a stack of this layout as [images, maps · groups, channels, kernel rows, kernel columns]."""
        if self.kind == "groups":
            return stack.view(-1, self.maps, self.channels, *self.kernel)
        if self.kind == "patches":
            split = stack.view(-1, self.groups, self.channels, *self.kernel, self.maps).permute(0, 1, 5, 2, 3, 4)
        elif self.kind == "taps":
            shape = (*self.kernel, -1, self.groups, self.channels, self.maps)
            split = stack.view(shape).permute(2, 3, 5, 4, 0, 1)
        else:
            shape = (self.parts, -1, self.groups, self.maps, self.kernel[1], self.channels)
            split = stack.view(shape).permute(1, 2, 3, 5, 0, 4)
        return split.flatten(1, 2)


def _suits_groups(x: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Return whether torch's kernel for the weights of a convolution in groups, one for each image, is the fastest.

    It is where it has vectors of 512 bits and matrix products have shorter ones: 130 against 85 billion operations a
    second for the second layer of the paper's MNIST network, on a processor of AMD (measured). It is not where images
    are small or are read in steps, nor with few channels.
    """
    maps, rows, columns = g.shape[1:]
    return (
        geometry.groups == 1
        and geometry.stride == geometry.dilation == (1, 1)
        and geometry.before == geometry.after
        and min(geometry.kernel) > 1
        and x.shape[1] % VECTOR == maps % VECTOR == 0
        and rows * columns >= MANY
        and x.dtype == g.dtype == torch.float32
        and x.device.type == "cpu"
        and bool(torch.backends.mkldnn.enabled)
        and _processor_has_long_vectors()
    )


@cache
def _processor_has_long_vectors() -> bool:
    has_kernel: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_kernel and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _by_groups(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradients of all images, [1, images, 1, maps, entries]: the images as groups of channels of one."""
    images, channels, maps = len(x), x.shape[1], g.shape[1]
    weight = g.new_empty(1).expand(images * maps, channels, *geometry.kernel)  # only its shape counts
    as_groups = (t.contiguous().view(1, -1, *t.shape[2:]) for t in (g, x))
    options = geometry.stride, geometry.before, geometry.dilation, False, (0, 0), images, (False, True, False)
    gradients: Tensor = torch.ops.aten.convolution_backward(*as_groups, weight, None, *options)[1]
    return gradients.reshape(1, images, 1, maps, -1)


def _by_group(images: Tensor, groups: int) -> Tensor:
    """Return images as [images · groups, height, width, channels of a group]."""
    rows, channels, height, width = images.shape
    if groups > 1:
        images = images.reshape(rows * groups, channels // groups, height, width)
    return images.permute(0, 2, 3, 1)


def _from_patches(into: Tensor, x: Tensor, g: Tensor, geometry: Geometry) -> None:
    images, rows, columns, maps = g.shape
    (kh, kw), (sh, sw), (dh, dw) = geometry.kernel, geometry.stride, geometry.dilation
    source = geometry.padded(x, rows=True).permute(0, 3, 1, 2).contiguous()
    image, channel, row, column = source.stride()
    patches = source.as_strided(
        (images, source.shape[1], kh, kw, rows, columns),
        (image, channel, dh * row, dw * column, sh * row, sw * column),
    ).reshape(images, -1, rows * columns)
    torch.bmm(patches, g.reshape(images, rows * columns, maps), out=into[0])


def _row_by_row(into: Tensor, x: Tensor, g: Tensor, geometry: Geometry) -> None:
    """Only columns are unfolded; a kernel row is a shift of whole image rows, which a product takes as a view.

    The unfolded input is smaller by the number of kernel rows and stays in cache; rows of padding are skipped.
    """
    images, rows, columns, maps = g.shape
    (sw, dw, kw), channels = (geometry.stride[1], geometry.dilation[1], geometry.kernel[1]), x.shape[3]
    source = geometry.padded(x, rows=False).contiguous()
    image, row, column, channel = source.stride()
    unfolded = source.as_strided(
        (images, source.shape[1], columns, kw, channels), (image, row, sw * column, dw * column, channel)
    ).reshape(images, source.shape[1], columns, kw * channels)
    windows = geometry.windows(0, x.shape[1], rows)
    left = g.reshape(images, rows * columns, maps).transpose(1, 2).contiguous()  # the product is faster from it
    for tap, (outputs, inputs) in enumerate(windows):
        if outputs.start == outputs.stop:
            into[tap].zero_()
            continue
        torch.bmm(
            left[:, :, outputs.start * columns : outputs.stop * columns],
            unfolded[:, inputs].flatten(1, 2),
            out=into[tap],
        )


def _tap_by_tap(into: Tensor, x: Tensor, g: Tensor, geometry: Geometry) -> None:
    """Nothing is unfolded: under one tap, input and output are the same rows of numbers, one of them shifted.

    Input and output have one size, and a stride of 1. With pixels in one line, output q meets pixel q + shift, unless
    the columns of a tap lie beside the image, where the shift would end in a neighbouring row. The gradients of those
    outputs are set to zero in a copy; columns to the right first, then those to the left, each tap one column more.
    """
    images, height, width, channels = x.shape
    (kh, kw), (dh, dw), (top, left) = geometry.kernel, geometry.dilation, geometry.before
    size = height * width
    pixels, gradients = x.reshape(images, size, channels), g.reshape(images, size, -1)
    copy = gradients.clone() if kw > 1 else gradients
    columns = copy.view(g.shape)
    shifts = {tap: tap * dw - left for tap in range(kw)}
    right = max(0, *shifts.values()) if kw > 1 else 0
    restored = False
    for column_tap in sorted(shifts, key=lambda tap: (shifts[tap] < 0, abs(shifts[tap]))):
        shift = shifts[column_tap]
        if shift < 0 and not restored:
            columns[:, :, max(0, width - right) :] = g[:, :, max(0, width - right) :]
            restored = True
        if shift:
            beside = slice(max(0, width - shift), width) if shift > 0 else slice(0, min(width, -shift))
            columns[:, :, beside] = 0
        for row_tap in range(kh):
            offset = (row_tap * dh - top) * width + shift
            start, stop = max(0, -offset), min(size, size - offset)
            part = into[row_tap * kw + column_tap]
            if start >= stop:
                part.zero_()
                continue
            torch.bmm(
                pixels[:, start + offset : stop + offset].transpose(1, 2),
                (copy if shift else gradients)[:, start:stop],
                out=part,
            )


def _row_by_row_together(into: Tensor, x: Tensor, g: Tensor, geometry: Geometry) -> None:
    """`_row_by_row` with rows before images: a shift of whole rows then shifts those of all images at once.

    Args:
        into: shape [kernel rows, maps, kernel columns · channels].
        x: shape [height, images, width, channels].
        g: shape [maps, rows, images, columns].
        geometry: of the convolution.
    """
    maps, rows, images, columns = g.shape
    (sw, dw, kw), channels = (geometry.stride[1], geometry.dilation[1], geometry.kernel[1]), x.shape[3]
    source = geometry.padded(x, rows=False).contiguous()
    row, image, column, channel = source.stride()
    unfolded = source.as_strided(
        (len(source), images, columns, kw, channels), (row, image, sw * column, dw * column, channel)
    ).reshape(len(source), images * columns, kw * channels)
    left = g.reshape(maps, rows, images * columns)
    for tap, (outputs, inputs) in enumerate(geometry.windows(0, x.shape[0], rows)):
        if outputs.start == outputs.stop:
            into[tap].zero_()
            continue
        torch.mm(left[:, outputs].flatten(1), unfolded[inputs].flatten(0, 1), out=into[tap])
