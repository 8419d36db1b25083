"""Square: an attack that only uses scores. It needs no gradient, so masked gradients do not stop it.

Reference: Andriushchenko, Croce, Flammarion & Hein 2020, arXiv:1912.00049v3, Algorithms 1 to 3.

For a noisy model the score of an image is its mean over noise draws. Candidates are compared with the best image on the
*same* draws, which are renewed from time to time: with fresh draws at each query a lucky draw would be kept forever.
"""

__all__ = ["square_search"]

import math

import torch
from torch import Tensor

from securesgd.attacks.ball import Ball, per_image, sizes
from securesgd.attacks.objective import Objective
from securesgd.attacks.projected_gradient import BestPoints, Progress

_FIRST_SHARE = 0.8  # of the pixels, changed by the first squares
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries: the paper's schedule
_RENEWALS = 10


def square_search(
    objective: Objective,
    ball: Ball,
    labels: Tensor,
    queries: int,
    generator: torch.Generator,
    *,
    best_points: BestPoints | None = None,
    on_progress: Progress | None = None,
) -> BestPoints:
    """Return the best points after `queries` evaluations per example; settled examples are left alone.

    Inputs that are not images [n, channels, height, width] are treated as images of one line.
    """
    best_points = BestPoints.start(ball.centre) if best_points is None else best_points
    rows = (~best_points.settled).nonzero()[:, 0]
    images = _as_images(ball.centre)
    best = ball.project(ball.centre + _first(ball, images, generator))
    score = torch.full((len(best),), -torch.inf).to(best)
    for query in range(queries):
        if not len(rows):
            break
        renewed = query % max(1, queries // _RENEWALS) == 0
        if renewed:  # the best image again, with new noise
            objective.fix_noise()
            candidates = best[rows]
        else:
            candidates = _proposal(ball.take(rows), best[rows], images[rows], _share(query, queries), generator)
        values = objective.evaluate(candidates, labels[rows], gradient=False)
        better = (values.loss > score[rows]) | renewed
        best[rows[better]], score[rows[better]] = candidates[better], values.loss[better]
        lucky = values.won.nonzero()[:, 0]  # on draws that were used to choose it: evaluate again
        if len(lucky):
            best_points.update(
                rows[lucky], candidates[lucky], objective.confirm(candidates[lucky], labels[rows[lucky]])
            )
            rows = rows[~best_points.settled[rows]]
        if on_progress is not None:
            on_progress((query + 1) / queries)
    if len(rows):
        best_points.update(rows, best[rows], objective.confirm(best[rows], labels[rows]))
    return best_points


def _as_images(x: Tensor) -> Tensor:
    """Return the inputs with axes [n, channels, height, width]; a feature row is an image of one line."""
    return x if x.dim() == 4 else x.flatten(1)[:, None, None, :]


def _share(query: int, queries: int) -> float:
    """Return the share of the pixels that a query changes: halved at the paper's schedule, scaled to `queries`."""
    scaled = query * 10_000 // queries
    return _FIRST_SHARE / 2 ** sum(scaled > at for at in _HALVINGS)


def _first(ball: Ball, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return vertical stripes of random sign, at full budget."""
    n, channels, _, width = images.shape
    signs = _signs((n, channels, 1, width), generator, images).expand_as(images)
    change = signs.reshape(ball.centre.shape) * per_image(ball.radius, ball.centre)
    return change if ball.norm == "linf" else change / math.sqrt(images[0].numel())


def _proposal(ball: Ball, best: Tensor, images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return the best points with one square changed, the same square for all examples, with signs of their own."""
    n, channels, height, width = images.shape
    side = max(1, round(math.sqrt(share * height * width)))
    tall, wide = min(height, side), min(width, side if height > 1 else max(1, round(share * width)))
    window = _window(height, width, tall, wide, generator)
    signs = _signs((n, channels, 1, 1), generator, images)
    change = (best - ball.centre).reshape(images.shape).clone()
    if ball.norm == "linf":
        change[(..., *window)] = signs * per_image(ball.radius, images)
    else:
        change = _move_mass(change, window, _window(height, width, tall, wide, generator), signs, ball.radius)
    return ball.project(ball.centre + change.reshape(best.shape))


def _move_mass(
    change: Tensor, window: tuple[slice, slice], source: tuple[slice, slice], signs: Tensor, radius: Tensor
) -> Tensor:
    """Return the l2 change with the squares of `source` and what is left of the budget gathered in `window`."""
    inside = change[(..., *window)].double()
    change[(..., *source)] = 0
    rest = change.clone()
    rest[(..., *window)] = 0
    free = (radius.double().square() - sizes(rest, "l2").square()).clamp_min(0)
    bump = _bump(*change[(..., *window)].shape[-2:]).to(inside) * signs
    pattern = bump + inside / per_image(sizes(inside, "l2").clamp_min(1e-12), inside)
    length = free.sqrt() / sizes(pattern, "l2").clamp_min(1e-12)
    change[(..., *window)] = (pattern * per_image(length, pattern)).to(change)
    return change


def _bump(tall: int, wide: int) -> Tensor:
    """Return a pattern of length 1 that is largest in the middle and falls off like 1/distance²."""
    down, across = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in (tall, wide))
    distance = torch.maximum(down.abs()[:, None], across.abs()[None]) + 1
    bump = 1 / distance.square()
    return bump / bump.norm()


def _window(height: int, width: int, tall: int, wide: int, generator: torch.Generator) -> tuple[slice, slice]:
    top = int(torch.randint(height - tall + 1, (), generator=generator))
    left = int(torch.randint(width - wide + 1, (), generator=generator))
    return slice(top, top + tall), slice(left, left + wide)


def _signs(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    return (2 * torch.randint(2, shape, generator=generator) - 1).to(like)
