"""Verified testing (Algorithm 1, lines 17–22): certificates of many inputs at once."""

__all__ = ["CertifyProgress", "certify", "draws_needed"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor, nn

from securesgd.certificates.bounds import Pilot, anytime, fixed
from securesgd.certificates.record import Certificates, CertifySettings, published_whitened_sensitivity, sensitivity_of
from securesgd.certificates.sampling import Question, Sampled, sample
from securesgd.certificates.validate import admitted, indices_of, require_same_function
from securesgd.certificates.votes import NoiseSource, Votes, stream_of
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import CutNetwork
from securesgd.runtime.processes import Processes
from securesgd.theory import Sensitivity
from securesgd.theory.certificates import radii_by_rule
from securesgd.validate import Array

_UP = 1 + 1e-9  # more than certified_radius rounds down, so that an answer "yes" and its radius agree
_FARTHEST = 1e6  # a layer of almost zero weights has almost infinite radii, around which nothing can be computed
_CHUNK, _CHUNK_BYTES = 512, 2**27  # examples drawn together, and what their first layer's outputs may take


@dataclass(frozen=True, kw_only=True)
class CertifyProgress:
    """How far this process is."""

    examples: float
    """Done, with parts of those under way."""
    of: int
    draws: int
    """Made so far, selection included."""


def certify(
    model: nn.Module,
    inputs: Tensor,
    settings: CertifySettings | None = None,
    *,
    indices: ArrayLike | None = None,
    on_progress: Callable[[CertifyProgress], None] | None = None,
    sensitivity: Sensitivity | None = None,
) -> Certificates:
    """Return a certificate for every input.

    Guarantee: that of `Certificates`, for each example; with a seed, only for inputs chosen without regard to it.
    With a seed, an example's result depends on the model, the settings and its index alone: not on the other examples,
    their order, the chunks they are drawn in or the number of processes. If torch.distributed is initialised, processes
    share the work, and all return the whole.
    Assumes: a sensitivity, if given, is the model's own (`model.sensitivity(norm)`, kept from an earlier call).
    Raises: InvalidInputError if the model cannot be certified, inputs do not fit, or the draws cannot prove anything.

    `indices` are the examples' places in their data set, 0, 1, … if not given; they choose the noise.
    """
    settings = settings or CertifySettings()
    network = admitted(model, inputs, settings.input_range)
    assert isinstance(model, NoisyNetwork)
    chosen = indices_of(indices, len(inputs))
    bound = sensitivity_of(model, settings.norm, sensitivity)
    _require_enough_draws(settings, bound)
    reach = _largest_radius(settings, bound)
    source = NoiseSource.of(settings.seed)
    processes = Processes()
    order = np.lexsort((chosen, stream_of(chosen)))  # neighbours share their noise
    mine = np.array_split(order, processes.count)[processes.rank]
    report = _Reporter(len(mine), settings.draws, on_progress)
    most = max(1, min(_CHUNK, _CHUNK_BYTES // (math.prod(network.shape) * network.dtype.itemsize)))

    def work() -> list[_Piece]:
        chunks = [mine[start : start + most] for start in range(0, len(mine), most)]
        rounding = [require_same_function(model, inputs[c], reach) for c in chunks]  # a refusal comes before the work
        return [
            (c, r, *_certified(network, inputs[c], chosen[c], _whitened(settings, bound, r), settings, source, report))
            for c, r in zip(chunks, rounding, strict=True)
        ]

    return _joined(_gathered(processes.together(work), processes), chosen, model, settings, bound)


_Piece = tuple[NDArray[np.int64], Array, Pilot, Sampled]  # where, the rounding there, what was chosen and what is known


def draws_needed(p: float, settings: CertifySettings) -> float:
    """Return how many draws, all for one class, prove that its probability is above `p`; inf if too many."""
    few, many = 0, 1
    while not _unanimous(many, settings) > p:
        few, many = many, 2 * many
        if many > 2**40:
            return math.inf
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _unanimous(middle, settings) > p else (middle, many)
    return many


def _unanimous(draws: int, settings: CertifySettings) -> float:
    """Return the best lower bound of p that `draws` draws can give."""
    soft = settings.scores == "soft"
    totals, before = np.array([[draws, 0.0]]), np.array([[settings.selection_draws, 0.0]])
    pilot = Pilot.of(before, settings.selection_draws, "rest", draws, settings.failure_prob)
    share = settings.failure_prob / (2 if settings.adaptive and not soft else 1)
    return float((anytime if soft else fixed)(totals, draws, pilot, share).p_lower[0])


def _largest_radius(settings: CertifySettings, bound: Sensitivity) -> float:
    """Return the radius that unanimous votes would prove, in the units of the input: no certificate is larger."""
    return min(float(ndtri(_unanimous(settings.draws, settings))) / max(bound.upper, 1e-300), _FARTHEST)


def _require_enough_draws(settings: CertifySettings, bound: Sensitivity) -> None:
    target = float(ndtr((settings.radius or 0.0) * bound.upper * _UP))
    if _unanimous(settings.draws, settings) > target:
        return
    needed = draws_needed(target, settings)
    what = "any radius" if settings.radius is None else f"the {settings.norm} radius {settings.radius:g}"
    enough = f"at least {needed:,} draws are needed" if math.isfinite(needed) else "no number of draws is enough"
    raise InvalidInputError(
        f"{settings.draws:,} draws cannot prove {what} with failure_prob {settings.failure_prob:g}, even if all agree; "
        f"{enough}"
    )


def _whitened(settings: CertifySettings, sensitivity: Sensitivity, rounding: Array) -> Question:
    return Question(
        radius=None if settings.radius is None else (settings.radius * sensitivity.upper + rounding) * _UP,
        tolerance=None if settings.tolerance is None else settings.tolerance * sensitivity.upper,
    )


def _certified(
    network: CutNetwork,
    inputs: Tensor,
    indices: NDArray[np.int64],
    question: Question,
    settings: CertifySettings,
    source: NoiseSource,
    report: "_Reporter",
) -> tuple[Pilot, Sampled]:
    """Return what the selection draws chose for some examples, and what the counted draws prove."""
    scores: Any = settings.scores
    first = Votes(network, inputs, indices, source=source, purpose="selection", scores=scores)
    totals = first.draw(np.arange(len(inputs)), settings.selection_draws, report.selected)
    pilot = Pilot.of(totals, settings.selection_draws, settings.others, settings.draws, settings.failure_prob)
    counted = Votes(network, inputs, indices, source=source, purpose="counted", scores=scores)
    sampled = sample(counted, pilot, question, settings, report.drawn)
    report.finished(len(inputs))
    return pilot, sampled


def _gathered(mine: list[Any], processes: Processes) -> list[Any]:
    if processes.count == 1:
        return mine
    everything: list[Any] = [None] * processes.count
    dist.all_gather_object(everything, mine)
    return [piece for pieces in everything for piece in pieces]


def _joined(
    pieces: list[_Piece],
    indices: NDArray[np.int64],
    model: NoisyNetwork,
    settings: CertifySettings,
    bound: Sensitivity,
) -> Certificates:
    back = np.argsort(np.concatenate([where for where, *_ in pieces]))
    columns = {
        name: np.concatenate([getattr(sampled, name) for *_, sampled in pieces])[back]
        for name in ("p_lower", "q_upper", "draws", "answer")
    }
    published = published_whitened_sensitivity(model, bound)
    rounding = np.concatenate([rounding for _, rounding, *_ in pieces])[back]
    radius = radii_by_rule(columns["p_lower"], columns["q_upper"], bound.upper, published, rounding)
    return Certificates(
        settings=settings,
        sensitivity=bound,
        published_sensitivity=published,
        index=indices,
        prediction=np.concatenate([pilot.top for _, _, pilot, _ in pieces])[back],
        rounding=rounding,
        input_path=model.input_path,
        abstained=radius["tight"] == 0,
        radius=radius,
        **columns,
    )


class _Reporter:
    """Turns numbers of draws into progress reports."""

    def __init__(self, of: int, most: int, on_progress: Callable[[CertifyProgress], None] | None) -> None:
        self._of, self._most, self._on_progress = of, most, on_progress
        self._finished, self._under_way, self._draws = 0, 0, 0

    def selected(self, draws: int) -> None:
        self._tell(draws, counted=0)

    def drawn(self, draws: int) -> None:
        self._tell(draws, counted=draws)

    def finished(self, examples: int) -> None:
        self._finished, self._under_way = self._finished + examples, 0
        self._tell(0, counted=0)

    def _tell(self, draws: int, counted: int) -> None:
        self._draws, self._under_way = self._draws + draws, self._under_way + counted
        if self._on_progress is not None:
            done = self._finished + self._under_way / self._most
            self._on_progress(CertifyProgress(examples=done, of=self._of, draws=self._draws))
