"""Squared norms of per-example convolution gradients from Gram matrices of pixels, without unfolding the input.

With G_p the output gradient at position p and U_p the patch under it, the weight gradient is sum_p G_p U_pᵀ and

    |gradient|² = sum_{p,q} (G_p·G_q)(U_p·U_q).

U_p·U_q = sum over kernel taps (a, b) of the product of two *pixels*, x[p + (a, b)]·x[q + (a, b)]: the Gram matrix of
the patches is the Gram matrix of the pixels, summed along its diagonals. That sum is done first over row taps, then
over column taps, so its cost is (kernel rows + kernel columns) additions per entry, not their product.
"""

__all__ = ["gram_cost", "gram_squares"]

import torch
from torch import Tensor

from securesgd.clipping.rules.geometry import Geometry, Window

CHUNK_ELEMENTS = 2**19  # entries of one chunk's Gram matrices: 2 MB of float32, in cache while it is shifted
ADDITION = 35.0  # cost of one addition of the diagonal sums, in multiply-adds of a matrix product (measured)


def gram_cost(x: Tensor, g: Tensor, geometry: Geometry, copies: int) -> float:
    """Return the multiply-adds per example of `gram_squares`, additions included at their measured cost."""
    (channels, height, width), (maps, rows, columns) = x.shape[1:], g.shape[1:]
    pixels, positions = copies * height * width, copies * rows * columns
    products = pixels**2 * channels + positions**2 * maps
    additions = geometry.kernel[0] * (copies * rows * width) ** 2 + geometry.kernel[1] * positions**2
    return products + ADDITION * geometry.groups * additions


def gram_squares(x: Tensor, g: Tensor, geometry: Geometry, copies: int) -> tuple[Tensor, Tensor]:
    """Return the squared gradient norm of each example and the scale of its rounding error.

    Args:
        x: input, shape [examples · copies, channels, height, width], padded by anything but zeros already.
        g: gradient of the output, shape [examples · copies, maps, rows, columns].
        geometry: of the convolution.
        copies: rows that belong to one example; their gradients are added before the norm is taken.

    Returns:
        (squares, scale), both of shape [examples]. `scale` is sum_p |G_p|² · sum_p |U_p|² / positions, the size
        `squares` has without cancellation between positions; a much smaller result has lost digits.
    """
    examples = len(x) // copies
    height, width, rows, columns = *x.shape[2:], *g.shape[2:]
    row_windows = geometry.windows(0, height, rows)
    column_windows = geometry.windows(1, width, columns)
    squares, scale = x.new_empty(examples), x.new_empty(examples)
    step = max(1, CHUNK_ELEMENTS // (geometry.groups * (copies * max(height * width, rows * columns)) ** 2))
    for start in range(0, examples, step):
        part = slice(start * copies, (start + step) * copies)
        gram = _products(_pixels(x[part], geometry.groups, copies))
        gram = gram.view(-1, copies, height, width, copies, height, width)
        gram = _diagonal_sum(gram, 2, 5, row_windows, rows)
        gram = _diagonal_sum(gram, 3, 6, column_windows, columns)
        patches = gram.view(-1, copies * rows * columns, copies * rows * columns)
        gradients = _products(_pixels(g[part], geometry.groups, copies))
        count = len(patches) // geometry.groups
        sizes = [t.diagonal(dim1=1, dim2=2).sum(dim=1).view(count, -1) for t in (patches, gradients)]
        scale[start : start + step] = (sizes[0] * sizes[1]).sum(dim=1) / patches.shape[1]
        # not a dot product: `sum` adds pairwise, which keeps two more digits over this many entries
        squares[start : start + step] = patches.mul_(gradients).view(count, -1).sum(dim=1)
    return squares, scale


def _pixels(images: Tensor, groups: int, copies: int) -> Tensor:
    """Return images as [examples · groups, copies · positions, channels of a group]."""
    rows, channels = images.shape[:2]
    if groups == 1:
        return images.permute(0, 2, 3, 1).reshape(rows // copies, -1, channels)
    split = images.reshape(rows // copies, copies, groups, channels // groups, -1)
    return split.permute(0, 2, 1, 4, 3).reshape(rows // copies * groups, -1, channels // groups)


def _products(vectors: Tensor) -> Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2))


def _diagonal_sum(gram: Tensor, first: int, second: int, windows: list[Window], outputs: int) -> Tensor:
    """Return the sum over kernel taps of `gram` shifted by the tap in dimensions `first` and `second` at once."""
    shape = list(gram.shape)
    shape[first] = shape[second] = outputs
    total = gram.new_zeros(shape)
    for target, source in windows:
        into, taken = [slice(None)] * gram.dim(), [slice(None)] * gram.dim()
        into[first] = into[second] = target
        taken[first] = taken[second] = source
        total[tuple(into)] += gram[tuple(taken)]
    return total
