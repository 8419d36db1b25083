"""Falsification of certificates: a search for counter-examples inside certified balls.

A certificate says that no change of size below its radius makes another class win. The search follows averaged
gradients towards a change that does; a point counts only if fresh draws prove that another class wins there. So a flip
means that the certificate is wrong, or is one of the few that its failure probability allows; no flip means only that
none was found.
"""

__all__ = ["Falsification", "climb_from_starts", "falsify_certificates", "falsify_run", "shrunk"]

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securesgd.attacks.ball import Ball, per_image, sizes
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.projected_gradient import BestPoints, Progress, projected_gradient
from securesgd.attacks.settings import AttackSettings
from securesgd.certificates.votes import smoothed_votes
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.randomness import seeded_generator
from securesgd.runtime.run_folder import FALSIFIED
from securesgd.runtime.storage import write_json
from securesgd.theory.confidence import clopper_pearson_lower
from securesgd.theory.majority import allowed_failures
from securesgd.validate import Array, open_probability_array, validate_count

RULES = ("tight", "as-published")
_ROUNDING = 6e-8  # of a pixel near 1 in single precision
_HOPE = -0.2  # margin in mean probability, below which a point is not worth fresh draws


@dataclass(frozen=True, kw_only=True, eq=False)
class Falsification:
    """An entry per example, in the order of the inputs.

    Guarantee: if every certificate holds, then with probability >= 1 − failure_prob no entry at all is `flipped`.
    """

    points: Tensor
    """The most promising point inside each ball, the input itself where there is no ball."""
    searched: NDArray[np.bool_]
    """Where there was a ball: a radius above 0."""
    tested: NDArray[np.bool_]
    """Where the point was worth fresh draws."""
    flipped: NDArray[np.bool_]
    """Where fresh draws prove that another class wins at the point."""
    winner: NDArray[np.int64]
    """The other class that came nearest, or won."""
    votes: NDArray[np.int64]
    """Fresh draws won by the predicted class and by the other, [examples, 2]; 0 where not tested."""
    share: Array
    """Size of the change over the radius."""
    failure_prob: float

    @property
    def in_words(self) -> str:
        """The result in one sentence."""
        count, of = int(self.flipped.sum()), int(self.searched.sum())
        if not count:
            return f"searched {of} certified balls and proved no counter-example ({int(self.tested.sum())} came near)"
        first = int(self.flipped.nonzero()[0][0])
        own, other = self.votes[first]
        return (
            f"{count} of {of} certificates are WRONG: at example {first} class {self.winner[first]} wins {other} draws "
            f"to {own} within {self.share[first]:.3f} of the radius"
        )


def falsify_certificates(
    model: nn.Module,
    inputs: Tensor,
    predicted: ArrayLike,
    radii: ArrayLike,
    norm: str,
    *,
    restarts: int = 2,
    steps: int = 20,
    eot: int = 50,
    proof_draws: int = 10_000,
    failure_prob: float = 1e-3,
    seed: int = 0,
    direction: NDArray[np.float64] | None = None,
    on_progress: Progress | None = None,
) -> Falsification:
    """Return the result of searching each ball around an input for a point where the predicted class does not win.

    Each ball is climbed from `restarts` random points and from both ends of `direction`, an input change of norm 1 such
    as `Sensitivity.direction`, with gradients averaged over `eot` draws. Balls are whole: a certificate does not
    depend on the pixel range. Each candidate point gets `proof_draws` fresh draws, and failure_prob divided by the
    number of points that get them.
    Raises: InvalidInputError if the model has no noise, or shapes, radii or numbers do not fit.
    """
    _require_fit(model, inputs, steps, restarts, eot, proof_draws)
    alpha = float(open_probability_array("failure_prob", failure_prob))
    radius = np.asarray(radii, dtype=np.float64)
    labels = torch.as_tensor(np.asarray(predicted), dtype=torch.long)
    if radius.shape != (len(inputs),) or labels.shape != (len(inputs),):
        raise InvalidInputError(f"{len(inputs)} inputs need as many predictions and radii")
    if not (np.isfinite(radius) & (radius >= 0)).all():
        raise InvalidInputError("radii must be finite and >= 0")
    searched = radius > 0
    points, margin = inputs.clone(), np.full(len(inputs), -np.inf)
    winner = np.zeros(len(inputs), dtype=np.int64)
    rows = searched.nonzero()[0]
    if len(rows):
        ball = Ball(
            centre=inputs[rows], radius=shrunk(radius[rows], norm, inputs[0].numel()).to(inputs), norm=norm, box=None
        )
        settings = AttackSettings(attack="apgd-ce", budget=1.0, steps=steps, restarts=1, adaptive=True, eot=eot)
        with evaluation_mode(model):
            objective = Objective(model, "smoothed", eot, seeded_generator(seed, "ball search"))
            best_points = climb_from_starts(
                objective, ball, labels[rows], settings, restarts, seed, direction, on_progress
            )
            values = objective.confirm(best_points.points, labels[rows])
        points[rows] = best_points.points.cpu()
        margin[rows] = torch.maximum(best_points.margin, values.margin).cpu().numpy()
        others = values.votes.scatter(1, labels[rows][:, None], -1)
        winner[rows] = others.argmax(1).cpu().numpy()
    change = sizes(points.double() - inputs.double(), norm).numpy()
    tested = searched & (margin > _HOPE) & (change < radius)
    votes, flipped = _prove_flips(model, points, labels.numpy(), winner, tested, proof_draws, alpha, seed)
    return Falsification(
        points=points,
        searched=searched,
        tested=tested,
        flipped=flipped,
        winner=winner,
        votes=votes,
        share=np.divide(change, radius, out=np.zeros_like(radius), where=searched),
        failure_prob=alpha,
    )


def shrunk(radius: Array, norm: str, size: int) -> Tensor:
    """Return slightly smaller radii, so that rounding of pixels does not carry a point out of its ball."""
    rounding = _ROUNDING * {"linf": 1.0, "l2": size**0.5}.get(norm, float(size))
    return torch.from_numpy(np.maximum(radius * (1 - 1e-6) - rounding, 0))


def climb_from_starts(
    objective: Objective,
    ball: Ball,
    labels: Tensor,
    settings: AttackSettings,
    restarts: int,
    seed: int,
    direction: NDArray[np.float64] | None,
    on_progress: Progress | None,
) -> BestPoints:
    """Return the best points over all starts; a ball that is settled is left alone by later starts."""
    best_points, starts = BestPoints.start(ball.centre), list(_starts(ball, restarts, seed, direction))
    for number, start in enumerate(starts):
        # The start itself is a candidate: for a nearly linear network the worst direction is all there is to find.
        open_rows = (~best_points.settled).nonzero()[:, 0]
        if len(open_rows):
            best_points.update(open_rows, start[open_rows], objective.confirm(start[open_rows], labels[open_rows]))
        best_points = projected_gradient(
            objective, ball, labels, settings, objective.generator, start=start, best_points=best_points
        )
        if on_progress is not None:
            on_progress((number + 1) / len(starts))
    return best_points


def _starts(ball: Ball, restarts: int, seed: int, direction: NDArray[np.float64] | None) -> Iterator[Tensor]:
    """Yield the centre, both ends of the direction, and random points."""
    yield ball.centre.clone()
    if direction is not None:
        along = torch.from_numpy(np.array(direction, dtype=np.float64)).to(ball.centre)
        if along.numel() != ball.centre[0].numel():
            raise InvalidInputError(f"direction has {along.numel()} numbers, an input {ball.centre[0].numel()}")
        for sign in (1, -1):
            step = sign * along.reshape(ball.centre.shape[1:]) * per_image(ball.radius, ball.centre)
            yield ball.project(ball.centre + step)
    generator = seeded_generator(seed, "ball search starts")
    for _ in range(restarts):
        yield ball.random(generator)


def _prove_flips(
    model: nn.Module,
    points: Tensor,
    predicted: NDArray[np.int64],
    winner: NDArray[np.int64],
    tested: NDArray[np.bool_],
    draws: int,
    failure_prob: float,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return fresh votes of (predicted, other) and where they prove that the other class is the more probable one.

    Of the draws that go to one of the two, the other class gets more than half: Clopper–Pearson, one side. Which class
    that is was chosen by the search's draws, not by these.
    """
    votes = np.zeros((len(points), 2), dtype=np.int64)
    flipped = np.zeros(len(points), dtype=np.bool_)
    rows = tested.nonzero()[0]
    if len(rows):
        with evaluation_mode(model):
            counts = smoothed_votes(model, points[rows], draws, seed=seed, indices=rows)
        at = np.arange(len(rows))
        votes[rows] = np.stack([counts[at, predicted[rows]], counts[at, winner[rows]]], axis=1)
        both = np.maximum(votes[rows].sum(1), 1)
        flipped[rows] = np.asarray(clopper_pearson_lower(votes[rows, 1], both, failure_prob / len(rows))) > 0.5
    return votes, flipped


def _require_fit(model: nn.Module, inputs: Tensor, steps: int, restarts: int, eot: int, proof_draws: int) -> None:
    if not isinstance(model, NoisyNetwork):
        raise InvalidInputError(f"{type(model).__name__} has no noise, so it has no certified balls to search")
    if tuple(inputs.shape[1:]) != model.input_shape or not len(inputs):
        raise InvalidInputError(
            f"inputs have shape {list(inputs.shape[1:])}, the model takes {list(model.input_shape)}"
        )
    for name, value, least in (("steps", steps, 1), ("restarts", restarts, 0), ("eot", eot, 1)):
        validate_count(name, value, least)
    validate_count("proof_draws", proof_draws, 1)


def falsify_run(
    folder: Path,
    model: NoisyNetwork,
    inputs: Tensor,
    rows: Sequence[dict[str, Any]],
    *,
    certificate_failure_prob: float,
    direction: np.ndarray | None = None,
    restarts: int = 2,
    steps: int = 20,
    eot: int = 50,
    seed: int = 0,
    failure_prob: float = 1e-3,
    on_progress: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Search the certified balls of `rows` (of one norm, as in certificates.csv); write and return the result.

    Guarantee: if the certificates are what they claim, `sound` is True with probability >= 1 − failure_prob, besides
    the failures that the certificates' own probability explains (`allowed`; counted as if examples failed
    independently, though some share their noise: an alarm too many is the safer side).
    """
    if not rows:
        raise InvalidInputError(f"{folder} has no certificates to search; run securesgd certify first")
    norm = str(rows[0]["norm"])
    certified = [row for row in rows if not row["abstained"]]
    effort = {"restarts": restarts, "steps": steps, "eot": eot, "seed": seed}
    result: dict[str, Any] = {"norm": norm, "examples": len(rows), **effort, "rules": {}}
    for rule in RULES if certified else ():
        falsification = falsify_certificates(
            model,
            inputs[[int(row["index"]) for row in certified]],
            [int(row["prediction"]) for row in certified],
            [float(row[f"radius_{rule}"]) for row in certified],
            norm,
            restarts=restarts,
            steps=steps,
            eot=eot,
            failure_prob=failure_prob,
            seed=seed,
            direction=direction,
            on_progress=None if on_progress is None else lambda share, rule=rule: on_progress(rule, share),  # type: ignore[misc]
        )
        broken = [int(row["index"]) for row, wrong in zip(certified, falsification.flipped, strict=True) if wrong]
        result["rules"][rule] = {
            "searched": int(falsification.searched.sum()),
            "near": int(falsification.tested.sum()),
            "violations": len(broken),
            "broken": broken,
            "in_words": falsification.in_words,
        }
    tight = result["rules"].get("tight", {"searched": 0, "violations": 0})
    result["allowed"] = allowed_failures(tight["searched"], certificate_failure_prob)
    result["sound"] = tight["violations"] <= result["allowed"]
    write_json(folder / FALSIFIED.format(norm=norm), result)
    return result
