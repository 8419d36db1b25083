"""What a search of hyper-parameters tries, by what it chooses, and what that costs: nothing here trains or writes."""

__all__ = ["TUNABLE", "Candidate", "Score", "candidates", "search_event", "validation_score"]

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from securesgd.build import build_model, redistribution_release
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.config import RunConfig
from securesgd.data.load import LoadedData, load_data
from securesgd.errors import InvalidInputError, PrivacyError, nearest
from securesgd.models.interval_network import IntervalSettings
from securesgd.models.predict import predicted_classes
from securesgd.privacy import GaussianRelease, RepeatAndSelect, SampledGaussianSteps, UnprotectedRelease, epsilon_spent
from securesgd.privacy.repeat_and_select import calibrated_repeat_and_select
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.validate import validate_positive

_TRAINING = (
    "learning_rate", "optimizer", "momentum", "schedule", "warmup_steps", "ema_decay", "copies", "max_grad_norm",
    "batch_size", "steps",
)  # fmt: skip
_ROBUSTNESS = ("norm", "place", "unit", "robust_epsilon", "robust_delta", "attack_size", "direction", "beta", "r_step")
TUNABLE: dict[str, str] = {
    **dict.fromkeys(_TRAINING, "training"),
    **dict.fromkeys(_ROBUSTNESS, "robustness"),
    **{field.name: "interval" for field in fields(IntervalSettings)},
    "network": "",
}
"""Settings that may be searched, with their tables: those that change neither the data nor the noise of a trial."""
MOST_CANDIDATES = 10_000


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One combination of the values that are tried, and the configuration with them."""

    values: dict[str, Any]
    config: RunConfig


def candidates(config: RunConfig, tries: Mapping[str, Sequence[Any]]) -> list[Candidate]:
    """Return the configurations of all combinations of the values in `tries`, by name of the setting.

    Raises: InvalidInputError for a setting that cannot be searched, no values, or a value that is not valid.
    """
    named: dict[str, list[Any]] = {}
    for name, values in tries.items():
        key = str(name).rpartition(".")[2]
        if key not in TUNABLE or name not in (key, f"{TUNABLE[key]}.{key}"):
            raise InvalidInputError(f"{name!r} cannot be searched: {nearest(str(name), TUNABLE)}")
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise InvalidInputError(f"the values of {name} are {values!r}; valid: a list with at least one")
        named[key] = [value.item() if hasattr(value, "item") else value for value in values]
    total = 1
    for values in named.values():
        total *= len(values)
    if not named or total > MOST_CANDIDATES:
        raise InvalidInputError(
            f"there are {total if named else 0} combinations to try; valid: 1 to {MOST_CANDIDATES:,}"
        )
    combinations = (dict(zip(named, values, strict=True)) for values in itertools.product(*named.values()))
    return [Candidate(values=values, config=_with(config, values)) for values in combinations]


def _with(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    for name, value in values.items():
        table = TUNABLE[name]
        if not table:
            config = replace(config, **{name: value})
        elif getattr(config, table) is None:
            raise InvalidInputError(f"{name} is not a setting of the method {config.method}; leave it out")
        else:
            config = replace(config, **{table: replace(getattr(config, table), **{name: value})})
    return config


@dataclass(frozen=True, kw_only=True, eq=False)
class Score:
    """The examples that trials are compared on; `noise` is the noise multiplier of a score, None if they are public.

    Guarantee: with `noise`, a score is one Gaussian release of sensitivity 1 about these examples: the number of right
    answers changes by at most 1 with one of them.
    Assumes: without, they are public. The model answers each example by itself.
    """

    inputs: Tensor
    targets: Tensor
    noise: float | None

    def __call__(self, model: nn.Module, stream: KeyStream) -> float:
        """Return the number of right answers, noisy if the examples are private; the noise is that of `stream`."""
        right = (predicted_classes(model, self.inputs) == self.targets.cpu()).sum().double().reshape(1)
        if self.noise is None:
            return float(right)
        (released,) = GridRelease(sensitivity=1.0, noise_multiplier=self.noise, size=1).release([right], stream)
        return float(released)

    @property
    def events(self) -> tuple[GaussianRelease, ...]:
        """What a score costs."""
        if self.noise is None:
            return ()
        return (GaussianRelease(noise_multiplier=self.noise, label="score on the held-out examples"),)

    @property
    def digest(self) -> str:
        """A digest of the examples, for the secret file only."""
        return examples_digest(self.inputs, self.targets)


def validation_score(config: RunConfig, loaded: LoadedData, validate_on: str | None, score_noise: float) -> Score:
    """Return the score on a public data set (`validate_on`), or on the held-out examples with noise.

    Raises: InvalidInputError if there are neither or both, if the public examples do not fit, are the run's own test
    set or are read from where the private ones are, or if the split into training and held-out examples would depend on
    a number that is not public.
    """
    noise = validate_positive("score_noise", score_noise)
    if (validate_on is None) == (loaded.holdout_inputs is None):
        raise InvalidInputError(
            f"holdout is {config.holdout} and validate_on {validate_on!r}; valid to compare the trials on: held-out "
            "examples (holdout > 0) or a public data set (validate_on), one of them"
        )
    if validate_on is None:
        if config.training.adjacency != "zero-out":
            raise InvalidInputError(
                "examples are held out by their number, which is not public with a sampling_rate or population; valid: "
                "validate_on, a public data set"
            )
        assert loaded.holdout_inputs is not None
        assert loaded.holdout_targets is not None
        return Score(inputs=loaded.holdout_inputs, targets=loaded.holdout_targets, noise=noise)
    public = load_data(validate_on, preprocessing=loaded.preprocessing or None)
    if public.input_shape != loaded.input_shape or public.classes > loaded.classes:
        raise InvalidInputError(
            f"validate_on {validate_on} has inputs of shape {list(public.input_shape)} in {public.classes} classes; "
            f"valid: {list(loaded.input_shape)} in {loaded.classes}, as {config.dataset}"
        )
    score = Score(inputs=public.test_inputs, targets=public.test_targets, noise=None)
    if score.digest == examples_digest(loaded.test_inputs, loaded.test_targets):
        raise InvalidInputError(
            f"validate_on {validate_on} has the test examples of the run, whose accuracy would then be that of a "
            "choice by it; valid: other public examples"
        )
    if _is_same_source(validate_on, config.dataset):
        raise InvalidInputError(
            f"validate_on {validate_on} is where the private examples of {config.dataset} are read from; valid: other "
            "public examples, or holdout > 0 without validate_on"
        )
    return score


def _is_same_source(one: str, other: str) -> bool:
    """Return whether two names of data are one, or paths of which one is in the other: no look at the examples."""
    paths = [Path(name).expanduser().resolve() for name in (one, other)]
    return one == other or (
        all(path.exists() for path in paths)
        and (paths[0] in (paths[1], *paths[1].parents) or paths[1] in paths[0].parents)
    )


def search_event(
    config: RunConfig, tried: Sequence[Candidate], loaded: LoadedData, score: Score, *, mean: float, shape: float
) -> RepeatAndSelect:
    """Return what the search releases, with the noise that `config` gives or that its epsilon needs.

    Guarantee: no candidate's trial costs more than the event's. All have the event's noise multiplier, and its sampling
    rate and steps are the largest of any of them: the Rényi divergences of Poisson-sampled Gaussian steps grow with
    the sampling rate (they are convex in it and 0 at rate 0) and with the number of steps.
    Raises: InvalidInputError for a method without a guarantee; PrivacyError if epsilon is not enough.
    """
    training = config.training
    if not training.private:
        raise InvalidInputError(
            f"the method {config.method} is not private; valid: a private one, to search in a budget"
        )
    if training.noise_seed is not None:
        raise InvalidInputError("noise_seed is given; valid for a search: none, since the number of trials is secret")
    extra: tuple[GaussianRelease, ...] = score.events
    for network in dict.fromkeys(candidate.config.network for candidate in tried):
        model = build_model(replace(config, network=network), loaded.input_shape, loaded.classes)
        release = redistribution_release(config, model)
    if release is not None and isinstance(release.event, UnprotectedRelease):
        raise InvalidInputError(f"{release.event.label}: {release.event.reason}; valid: a way that is in the budget")
    if release is not None and isinstance(release.event, GaussianRelease):
        extra = (release.event, *extra)
    rate = max(candidate.config.training.rate(len(loaded.train_inputs)) for candidate in tried)
    steps = max(candidate.config.training.steps for candidate in tried)
    noise, epsilon, delta = training.noise_multiplier, training.epsilon, training.delta
    if noise is None:
        assert epsilon is not None
        return calibrated_repeat_and_select(
            epsilon, delta, sampling_rate=rate, steps=steps, mean=mean, shape=shape, extra_events=extra
        )
    one = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=steps)
    event = RepeatAndSelect(trial=(one, *extra), mean=mean, shape=shape)
    cost = epsilon_spent([event], delta, "rdp")
    if epsilon is not None and cost > epsilon:
        raise PrivacyError(
            f"the search with noise multiplier {noise:g} costs epsilon {cost:.6g}, above {epsilon:g}; leave out "
            "noise_multiplier to have it calibrated"
        )
    return event
