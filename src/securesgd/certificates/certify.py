"""Verified testing (Algorithm 1, lines 17–22): the certificates of many inputs at once.

A noisy network is certified by votes (below), any other by interval bounds (`intervals.py`); both give the same record.

For each example: choose the class by the votes of the selection draws, count votes of other draws, bound the expected
scores by them, and divide the whitened radius that follows by Δ, the sensitivity of the noisy layer.
"""

__all__ = ["CertifyProgress", "certify", "draws_needed"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor, nn

from securesgd.certificates.bounds import fixed_bounds, running_bounds, select_class
from securesgd.certificates.intervals import certify_by_intervals
from securesgd.certificates.parts import gather
from securesgd.certificates.record import Certificates, CertifySettings
from securesgd.certificates.rules import INTERVAL, certificate_rules
from securesgd.certificates.sampling import SampledBounds, StoppingRule, count_votes
from securesgd.certificates.sensitivity import model_sensitivity, published_whitened_sensitivity
from securesgd.certificates.validate import require_same_function, validate_indices, validate_model
from securesgd.certificates.votes import NoiseSource, Votes, stream_number
from securesgd.errors import InvalidInputError
from securesgd.models.predict import Scores
from securesgd.models.split_network import SplitNetwork
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
    rules: Sequence[str] = (),
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
    Reference: Cohen et al. 2019, algorithm CERTIFY; docs/reference/certificates.md for noise that varies by unit.

    `indices` are the examples' places in their data set, 0, 1, … if not given; they choose the noise. `rules` are
    import paths of certificate rules from outside, computed besides those of `CERTIFICATE_RULES`; intervals have none.
    """
    settings = (settings or CertifySettings()).for_model(model)
    if settings.family == INTERVAL:
        _require_no_rules(rules)
        return certify_by_intervals(
            model, inputs, settings, validate_indices(indices, len(inputs)), _count_examples(len(inputs), on_progress)
        )
    all_rules = certificate_rules(rules)
    noisy, network = validate_model(model, inputs, settings.input_range)
    places = validate_indices(indices, len(inputs))
    delta = model_sensitivity(noisy, settings.norm, sensitivity)
    _require_enough_draws(settings, delta)
    reach = _largest_radius(settings, delta)
    noise, processes = NoiseSource.from_seed(settings.seed), Processes()
    order = np.lexsort((places, stream_number(places)))  # neighbours share their noise
    own_share = np.array_split(order, processes.count)[processes.rank]
    progress = _ProgressReporter(len(own_share), settings.draws, on_progress)

    def bound_own_share() -> list[_ChunkBounds]:
        chunks = _split_into_chunks(own_share, network)
        # All inputs are validated before the first draw, so that a refusal comes before the work.
        rounding = [require_same_function(noisy, inputs[chunk], reach) for chunk in chunks]
        return [
            _ChunkBounds(chunk, taken, *_bound_chunk(
                network, inputs[chunk], places[chunk], _stopping_rule(settings, delta, taken), settings, noise, progress
            ))
            for chunk, taken in zip(chunks, rounding, strict=True)
        ]  # fmt: skip

    rounding, prediction, bounds = _join(gather(processes.together(bound_own_share), processes))
    published = published_whitened_sensitivity(noisy, delta)
    # The whitened radius by each rule over Δ, for all examples at once: so no bit depends on the chunks.
    radius = radii_by_rule(bounds.p_lower, bounds.q_upper, delta.upper, published, rounding, all_rules)
    return Certificates(
        settings=settings,
        sensitivity=delta,
        published_sensitivity=published,
        index=places,
        prediction=prediction,
        abstained=radius["tight"] == 0,
        answer=bounds.answer,
        draws=bounds.draws,
        votes=bounds.votes,
        p_lower=bounds.p_lower,
        q_upper=bounds.q_upper,
        rounding=rounding,
        input_path=noisy.input_path,
        radius=radius,
    )


def _bound_chunk(
    network: SplitNetwork,
    x: Tensor,
    places: NDArray[np.int64],
    stopping: StoppingRule,
    settings: CertifySettings,
    noise: NoiseSource,
    progress: "_ProgressReporter",
) -> tuple[NDArray[np.int64], SampledBounds]:
    """Return the class of the smoothed network at each input, and bounds on its expected score and the others'.

    The class is chosen by the votes of the selection draws, the bounds come from the votes of draws of their own.
    """
    scores = cast(Scores, settings.scores)
    selecting = Votes(network, x, places, source=noise, purpose="selection", scores=scores)
    totals = selecting.draw(np.arange(len(x)), settings.selection_draws, progress.add_selection)
    selection = select_class(totals, settings.selection_draws, settings.others, settings.draws, settings.failure_prob)
    votes = Votes(network, x, places, source=noise, purpose="counted", scores=scores)
    bounds = count_votes(votes, selection, stopping, settings, progress.add_counted)
    progress.finish(len(x))
    return selection.top, bounds


@dataclass(frozen=True)
class _ChunkBounds:
    """Some of the examples: where they are, and what their votes prove."""

    examples: NDArray[np.int64]
    rounding: Array
    prediction: NDArray[np.int64]
    bounds: SampledBounds


def _split_into_chunks(examples: NDArray[np.int64], network: SplitNetwork) -> list[NDArray[np.int64]]:
    size = max(1, min(_CHUNK, _CHUNK_BYTES // (math.prod(network.shape) * network.dtype.itemsize)))
    return [examples[start : start + size] for start in range(0, len(examples), size)]


def _join(chunks: list[_ChunkBounds]) -> tuple[Array, NDArray[np.int64], SampledBounds]:
    """Return rounding, predictions and bounds of all chunks, in the order of the inputs."""
    back = np.argsort(np.concatenate([chunk.examples for chunk in chunks]))

    def column(values: list[Any]) -> NDArray[Any]:
        return np.concatenate(values)[back]

    names = [field.name for field in fields(SampledBounds)]
    bounds = SampledBounds(**{name: column([getattr(chunk.bounds, name) for chunk in chunks]) for name in names})
    return column([chunk.rounding for chunk in chunks]), column([chunk.prediction for chunk in chunks]), bounds


def _stopping_rule(settings: CertifySettings, delta: Sensitivity, rounding: Array) -> StoppingRule:
    """Return when drawing may stop, in whitened units: a radius μ is proven if ρ ≥ Δ·μ + rounding."""
    return StoppingRule(
        radius=None if settings.radius is None else (settings.radius * delta.upper + rounding) * _UP,
        tolerance=None if settings.tolerance is None else settings.tolerance * delta.upper,
    )


def draws_needed(p: float, settings: CertifySettings) -> float:
    """Return how many draws, all for one class, prove that its probability is above `p`; inf if too many."""
    few, many = 0, 1
    while not _unanimous_bound(many, settings) > p:
        few, many = many, 2 * many
        if many > 2**40:
            return math.inf
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _unanimous_bound(middle, settings) > p else (middle, many)
    return many


def _unanimous_bound(draws: int, settings: CertifySettings) -> float:
    """Return the best lower bound of p that `draws` draws can give."""
    soft = settings.scores == "soft"
    totals, before = np.array([[draws, 0.0]]), np.array([[settings.selection_draws, 0.0]])
    selection = select_class(before, settings.selection_draws, "rest", draws, settings.failure_prob)
    share = settings.failure_prob / (2 if settings.adaptive and not soft else 1)
    return float((running_bounds if soft else fixed_bounds)(totals, draws, selection, share).p_lower[0])


def _largest_radius(settings: CertifySettings, delta: Sensitivity) -> float:
    """Return the radius that unanimous votes would prove, in the units of the input: no certificate is larger."""
    return min(float(ndtri(_unanimous_bound(settings.draws, settings))) / max(delta.upper, 1e-300), _FARTHEST)


def _require_enough_draws(settings: CertifySettings, delta: Sensitivity) -> None:
    target = float(ndtr((settings.radius or 0.0) * delta.upper * _UP))
    if _unanimous_bound(settings.draws, settings) > target:
        return
    needed = draws_needed(target, settings)
    what = "any radius" if settings.radius is None else f"the {settings.norm} radius {settings.radius:g}"
    enough = f"at least {needed:,} draws are needed" if math.isfinite(needed) else "no number of draws is enough"
    raise InvalidInputError(
        f"{settings.draws:,} draws cannot prove {what} with failure_prob {settings.failure_prob:g}, even if all agree; "
        f"{enough}"
    )


def _require_no_rules(rules: Sequence[str]) -> None:
    if rules:
        raise InvalidInputError(f"the rule {rules[0]!r} is about votes; interval certificates have none")


def _count_examples(of: int, on_progress: Callable[[CertifyProgress], None] | None) -> Callable[[int], None] | None:
    """Return a function of the number of examples that are done, which reports them as progress without draws."""
    if on_progress is None:
        return None
    return lambda done: on_progress(CertifyProgress(examples=done, of=of, draws=0))


class _ProgressReporter:
    """Turns numbers of draws into progress reports."""

    def __init__(self, of: int, most: int, on_progress: Callable[[CertifyProgress], None] | None) -> None:
        self._of, self._most, self._on_progress = of, most, on_progress
        self._finished, self._under_way, self._draws = 0, 0, 0

    def add_selection(self, draws: int) -> None:
        self._report(draws, counted=0)

    def add_counted(self, draws: int) -> None:
        self._report(draws, counted=draws)

    def finish(self, examples: int) -> None:
        self._finished, self._under_way = self._finished + examples, 0
        self._report(0, counted=0)

    def _report(self, draws: int, counted: int) -> None:
        self._draws, self._under_way = self._draws + draws, self._under_way + counted
        if self._on_progress is not None:
            done = self._finished + self._under_way / self._most
            self._on_progress(CertifyProgress(examples=done, of=self._of, draws=self._draws))
