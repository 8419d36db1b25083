"""The l2 radius within which no change of an image can change the class of a network of wavelets and a linear head.

Theorem. Let the network be as in `linear_head`, y its class at x and j another one, and m the difference of their exact
scores at x. Of a group g of n features let u_g be the standardised ones less their mean, s_g = √(|u_g|² + n·eps), w_g
the difference of the head's rows y and j (times the weights of channels) less its mean, a_g = w_g·u_g/s_g and
b_g = √(|w_g|² − a_g²), and let the features of the group move by at most ℓ_g r while the image moves by r. Then at
every x' with ‖x' − x‖₂ <= r the exact difference of scores is at least
    m − K r − Σ_g √n c_g t_g²,      t_g = ℓ_g r/s_g < 1,   c_g = a_g⁺/(1 + √(1 − t_g²)) + b_g/(2(1 − t_g)),
where K bounds, per r, how the functional Σ_g √n/s_g (w_g − a_g u_g/s_g)·(features of g) of the image changes.

Proof. Lemma 2 of `theory/group_norm.py` for every group, added up; K and ℓ_g are those of `transform_bounds`. The sum
is also at most Q² r², where Q² bounds Σ_g √n c_g/s_g²·(change of group g)² by the transform as a whole, since not all
groups can move by all of r at once: the smaller of the two counts. A group with t_g > 1/2 is left out of K and of the
sum; it loses what lemma 3 leaves of it.

Rounding. The features computed at x' are the exact ones up to ρ = rounding·u·(‖x‖ + r) + 1e-10 in l2. So the
standardised ones of group g are off by at most η_g, which adds to ℓ_g r, and √n b_g η_g/s_g to K r. The computed
variance is off by at most 4γ(n + 8) of the mean square, however it is added up. The normalised group is then off by at
most ζ_g, and the difference of scores by Σ_g |w_g|ζ_g and γ(N + 4)(Σ|W||z| + |b|), N features in all (`_rounding`).
Numbers so large that something overflows, or enlarges what underflow has lost, are refused or have the radius 0.

Assumes: IEEE arithmetic without TF32; convolutions and matrix products as sums of products, in any order; of
Scattering, whose Fourier transforms have no a-priori bound in torch, that each is off by at most 8 log₂N units of
rounding, relative in l2 (`tests/certificates/test_lipschitz.py` measures a hundredth of what all of them are allowed).
"""

__all__ = ["LipschitzRadii", "lipschitz_radius"]

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.certificates.interval.arithmetic import UNIT64, gamma
from securesgd.certificates.lipschitz.linear_head import LinearHeadNetwork, read_linear_head
from securesgd.errors import InvalidInputError
from securesgd.theory.group_norm import least_alignment, linear_remainder
from securesgd.validate import Array

_TOGETHER = 2**22  # numbers of one array
_HALVINGS = 24
_LARGEST = 1e12  # of images and features, whose squares are then far from overflow
_LARGEST_WAVE = 1e18  # of what is squared in a modulus: float32 ends at 3e38
_ABSOLUTE = 1e-10  # what underflow and the number under the root of a modulus lose in l2
_OWN = 1e-12  # relative error of the float64 numbers here


@dataclass(frozen=True, kw_only=True)
class LipschitzRadii:
    """For each input the class that the network gives it, and the proven l2 radius; 0 says that nothing is proven."""

    prediction: NDArray[np.int64]
    radius: Array


def lipschitz_radius(network: nn.Module, inputs: Tensor) -> LipschitzRadii:
    """Return the network's class at each input, and an l2 radius within which it is proven not to change.

    Guarantee: for every x' with ‖x' − x‖₂ <= radius, in or out of the range of images, the network, with x' rounded to
        its type, gives the predicted class the strictly highest score. No votes, no failure probability.
    Assumes: IEEE arithmetic without TF32 and sums of products in any order; for `scatter-linear` also that torch's
        Fourier transforms of N numbers are off by at most 8 log₂N units of rounding, relative in l2. The network is the
        one that is deployed, and stays as it is.
    Raises: InvalidInputError naming a layer without a rule (valid: `wavelet-linear`, `scatter-linear` for one colour
        and what is built of the same layers), and for inputs that are not finite images of the network's shape.
    """
    head = read_linear_head(network)
    if (
        not isinstance(inputs, Tensor)
        or not inputs.dtype.is_floating_point
        or tuple(inputs.shape[1:]) != head.input_shape
    ):
        found = list(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        shape = str(list(head.input_shape))[1:]
        raise InvalidInputError(f"inputs are {found}; valid: floating-point numbers of shape [examples, {shape}")
    if not bool(torch.isfinite(inputs).all()):
        raise InvalidInputError("inputs hold a number that is not finite; valid: finite numbers")
    lengths = _GroupLengths(head)
    prediction, radius = np.zeros(len(inputs), dtype=np.int64), np.zeros(len(inputs))
    together = max(1, _TOGETHER // head.weight.size)
    for start in range(0, len(inputs), together):
        part, images = slice(start, start + together), inputs.detach()[start : start + together]
        prediction[part] = head.scores(images).argmax(1)
        known = images.double().flatten(1).norm(dim=1).cpu() <= _LARGEST
        if bool(known.any()):
            margins = _Margins(head, lengths, images[known], prediction[part][known.numpy()])
            radius[part][known.numpy()] = _proven(margins)
    return LipschitzRadii(prediction=prediction, radius=radius)


def _proven(margins: "_Margins") -> Array:
    """Return for each example the largest radius found at which the margins of all rivals are proven positive."""
    # Beyond m/K the theorem proves nothing; every radius that counts is proven at itself.
    most = np.nan_to_num(np.maximum(margins.margin, 0) / margins.slope, nan=0.0, posinf=_LARGEST)
    low, high = np.zeros_like(most), np.minimum(most, _LARGEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        proven = margins.lower_bound(middle) > 0
        low, high = np.where(proven, middle, low), np.where(proven, high, middle)
    return np.asarray(np.where(margins.is_rival, low, np.inf).min(1))


class _GroupLengths:
    """What the groups have in common at all inputs: ℓ_g, and lengths of the rows of the head in each group."""

    def __init__(self, head: LinearHeadNetwork) -> None:
        groups = head.groups
        of_group = np.kron(np.eye(groups), np.ones(head.weight.shape[1] // groups))
        self.change = np.sqrt(head.bound.squares(of_group * head.inverse_std**2))
        self.scale = np.abs(head.inverse_std).reshape(groups, -1).max(1)
        rows = head.weight.reshape(len(head.weight), groups, -1)
        self.rows = np.linalg.norm(rows, axis=-1)
        differences = rows[:, None] - rows
        self.between = np.linalg.norm(differences, axis=-1)
        self.centred = np.linalg.norm(differences - differences.mean(-1, keepdims=True), axis=-1)


class _Margins:
    """Lower bounds of the margins z_y − z_j of a few examples, [examples, classes], as functions of the radius."""

    def __init__(self, head: LinearHeadNetwork, lengths: _GroupLengths, images: Tensor, y: NDArray[np.int64]) -> None:
        self._head, self._lengths, self._y = head, lengths, y
        self._root = math.sqrt(head.group_size)
        self._image_norm = np.linalg.norm(images.double().flatten(1).cpu().numpy(), axis=1)[:, None]
        features = head.standardised(images).reshape(len(y), head.groups, -1)
        self._feature_norm = np.linalg.norm(features, axis=-1)[:, None]
        features -= features.mean(-1, keepdims=True)
        floor = head.group_size * head.eps
        self._floor = math.sqrt(floor)
        self._norm = np.sqrt(np.square(features).sum(-1) + floor)[:, None]  # s_g, [examples, 1, groups]
        unit = features[:, None] / self._norm[..., None]
        rows = (head.weight[y][:, None] - head.weight).reshape(len(y), -1, *features.shape[1:])
        rows -= rows.mean(-1, keepdims=True)
        self._length, self._between = lengths.centred[y], lengths.between[y]
        self._along = (rows * unit).sum(-1)
        self._across = np.sqrt(np.maximum(self._length**2 - self._along**2, 0) + 1e-14 * self._length**2)
        self.margin = self._root * self._along.sum(-1) + head.bias[y][:, None] - head.bias
        rows -= self._along[..., None] * unit
        rows *= (self._root / self._norm)[..., None]
        shape = (*self.margin.shape, len(head.mean), head.input_shape[1] // 4, head.input_shape[2] // 4)
        self._energies = head.bound.energies(rows.reshape(shape) * head.inverse_std[:, None, None])
        self.is_rival = np.arange(len(head.weight)) != y[:, None]
        self.slope = np.sqrt(head.bound.functional(self._energies)) + 1e-300

    def lower_bound(self, radius: Array) -> Array:
        """Return the least margins, as the network computes them, within these radii [examples, classes]."""
        root, r = self._root, radius[..., None]
        moved, off = self._lengths.change * r, self._features_off(r)
        t = (moved + off) / self._norm
        kept = t <= 0.5
        factor = (
            np.where(kept, linear_remainder(self._along, self._across, np.minimum(t, 0.5)), 0) * root / self._norm**2
        )
        by_group = (factor * (moved + off) ** 2).sum(-1)
        together = radius * np.sqrt(self._head.bound.squares(self._per_channel(factor) * self._head.inverse_std**2))
        remainder = np.minimum(by_group, (together + np.sqrt((factor * off**2).sum(-1))) ** 2)
        linear = radius * np.sqrt(self._head.bound.functional(self._energies * self._per_channel(kept)))
        linear += root * np.where(kept, self._across * off / self._norm, 0).sum(-1)
        worst = least_alignment(self._along, self._length, t)
        lost = root * np.where(kept, 0, self._along - worst).sum(-1)
        return np.asarray(self.margin - linear - remainder - lost - self._rounding(r, moved + off))

    def _per_channel(self, by_group: Array) -> Array:
        return np.repeat(by_group, len(self._head.mean) // self._head.groups, axis=-1)

    def _features_off(self, r: Array) -> Array:
        """Return η_g, how far the computed standardised features of a group may be off, [examples, classes, groups]."""
        unit = self._head.arithmetic.unit + UNIT64
        of_transform = self._head.bound.rounding * unit * (self._image_norm[..., None] + r) + _ABSOLUTE
        exact = self._feature_norm + self._lengths.change * r
        return np.asarray(1.01 * self._lengths.scale * of_transform + 8 * unit * exact + _ABSOLUTE)

    def _rounding(self, r: Array, moved: Array) -> Array:
        """Return how much of a margin the normalisation and the head may lose by rounding, infinite if unknown."""
        unit, n, root = self._head.arithmetic.unit + UNIT64, self._head.group_size, self._root
        largest = self._feature_norm + moved
        smallest = np.maximum(self._norm - moved, self._floor)
        of_variance = 4 * gamma(n + 8, unit) * (largest / smallest) ** 2 + 16 * unit
        off = root * of_variance + 2 * root / smallest * gamma(n + 16, unit) * largest  # ζ_g
        rows = self._lengths.rows[self._y][:, None] + self._lengths.rows
        bias = np.abs(self._head.bias)
        relative, features = gamma(n * self._head.groups + 4, unit), n * self._head.groups
        lost = (self._between * off).sum(-1) + relative * (
            (rows * (root + off)).sum(-1) + bias[self._y][:, None] + bias
        )
        lost = lost * (1 + 1e-9) + _OWN * (root * self._length.sum(-1) + bias[self._y][:, None] + bias)
        stored = rows.sum(-1) + self._head.own_lengths[self._y][:, None] + self._head.own_lengths
        lost = lost + 8 * features * self._head.arithmetic.tiny * (1 + stored)
        known = (of_variance <= 0.5).all(-1) & (largest <= _LARGEST).all(-1) & (rows.sum(-1) <= _LARGEST)
        image = self._image_norm + r[..., 0]
        known &= (image <= _LARGEST) & (self._head.bound.growth * image <= _LARGEST_WAVE)
        return np.where(known, lost, np.inf)
