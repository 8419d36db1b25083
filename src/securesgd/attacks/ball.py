"""The set an attack may search: a norm ball around each image, cut by the valid pixel range."""

__all__ = ["PIXELS", "Ball", "per_image", "sizes"]

from dataclasses import dataclass

import torch
from torch import Tensor

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.sensitivity import NORMS

PIXELS = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ball:
    """A ball per example: its centre (the clean image), its radius, and the box that pixels must stay in.

    `box=None` is the whole ball, as a certificate speaks of it.
    """

    centre: Tensor
    radius: Tensor
    """One per example, shape [n]."""
    norm: str = "linf"
    box: tuple[float, float] | None = PIXELS
    widths: Tensor | None = None
    """For linf: how far each number may be off at radius 1, in the shape of the centre; None: all alike."""

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InvalidInputError(f"unknown norm {self.norm!r}: {nearest(self.norm, NORMS)}")

    @classmethod
    def around(cls, centre: Tensor, radius: float, norm: str, box: tuple[float, float] | None = PIXELS) -> "Ball":
        """Return balls of one radius around the images `centre`."""
        return cls(centre=centre, radius=torch.full((len(centre),), radius).to(centre), norm=norm, box=box)

    def take(self, rows: Tensor) -> "Ball":
        """Return the balls of some of the examples."""
        widths = None if self.widths is None else self.widths[rows]
        return Ball(centre=self.centre[rows], radius=self.radius[rows], norm=self.norm, box=self.box, widths=widths)

    def project(self, x: Tensor) -> Tensor:
        """Return the points moved into the ball and the box.

        The nearest point for linf; for l2 and l1 the change is scaled down. The centre is in the box, so clipping to
        the box never makes a change longer.
        """
        change = x - self.centre
        limit = self._reach(self.radius)
        if self.norm == "linf":
            change = torch.minimum(torch.maximum(change, -limit), limit)
        else:
            change = change * (limit / per_image(sizes(change, self.norm).clamp_min(1e-12), x)).clamp(max=1)
        inside = self.centre + change.to(x)
        return inside if self.box is None else inside.clamp(*self.box)

    def step(self, gradient: Tensor, length: Tensor | float) -> Tensor:
        """Return the change of size `length` radii (one, or one per example) that gains most along the gradient."""
        if self.norm == "linf":
            direction = gradient.sign()
        elif self.norm == "l2":
            direction = gradient / per_image(sizes(gradient, "l2").clamp_min(1e-12), gradient).to(gradient)
        else:  # the whole step goes into the pixel that gains most
            flat = gradient.flatten(1)
            best = flat.abs().argmax(1, keepdim=True)
            direction = torch.zeros_like(flat).scatter(1, best, flat.gather(1, best).sign()).reshape(gradient.shape)
        return direction * self._reach(self.radius * length)

    def random(self, generator: torch.Generator) -> Tensor:
        """Return random points of the balls: uniform for linf and l2, of random size and direction for l1."""
        like = self.centre
        if self.norm == "linf":
            direction = 2 * torch.rand(like.shape, generator=generator, dtype=like.dtype) - 1
        else:
            direction = torch.randn(like.shape, generator=generator, dtype=like.dtype)
            direction = direction / per_image(sizes(direction, self.norm), direction).to(direction)
            share = torch.rand(len(like), generator=generator, dtype=like.dtype)
            direction = direction * per_image(share ** (1 / direction[0].numel()), direction)
        return self.project(like + direction.to(like.device) * self._reach(self.radius))

    def _reach(self, radius: Tensor) -> Tensor:
        """Return how far each number may be off at these radii, shaped to multiply images."""
        reach = per_image(radius, self.centre)
        return reach if self.widths is None else reach * self.widths


def sizes(change: Tensor, norm: str) -> Tensor:
    """Return the norm of each example's change, in double precision."""
    flat = change.detach().flatten(1).double()
    return {
        "linf": lambda: flat.abs().amax(1),
        "l2": lambda: flat.square().sum(1).sqrt(),
        "l1": lambda: flat.abs().sum(1),
    }[norm]()


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per example, shaped to multiply images."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
