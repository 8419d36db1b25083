"""Audits of a configuration: train once with canaries, guess, and compare what is proven with what is claimed.

Does an audit cost privacy? What the white box sees depends on the canaries alone, which are nobody's data. The black
box reads a second model trained on the examples, which no ledger pays for. So the examples are those of a built-in
public data set, or else random ones of the same number and shape, and audit.json can be published; with the user's own
examples it must be kept as private as they are, and says so.
"""

__all__ = ["AuditSettings", "audit_config", "audit_training", "audited_training", "self_test"]

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from securesgd import __version__
from securesgd.audit.bounds import box_bounds, guesses_of, largest_bound
from securesgd.audit.canaries import CanaryCounts
from securesgd.audit.claim import Claim
from securesgd.audit.game import AuditedTraining, play
from securesgd.audit.guesses import count_right
from securesgd.audit.record import FORMAT
from securesgd.audit.sabotage import SABOTAGES
from securesgd.build import build_model, redistribution_release
from securesgd.config import RunConfig
from securesgd.data.catalog import CATALOG
from securesgd.data.load import load_data
from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import InvalidInputError, nearest
from securesgd.methods import method
from securesgd.models.interval_network import IntervalNetwork
from securesgd.privacy import SampledGaussianSteps, epsilon_spent
from securesgd.runtime.machine import environment, torch_device
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import seeded_generator
from securesgd.training.accounted_run import noise_multiplier_of
from securesgd.training.loop import per_example_cross_entropy
from securesgd.validate import validate_count, validate_types

MOST_MEMORY = 2**28  # numbers that the white box keeps: steps · canaries


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings of an audit."""

    canaries: CanaryCounts = field(default_factory=CanaryCounts)
    failure_prob: float = 0.05
    """Probability that any of the four bounds exceeds the true epsilon."""
    seed: int | None = None
    """None: secret randomness. A number makes the audit repeatable."""
    sabotage: str | None = None
    """A name of `audit.sabotage.SABOTAGES`: training is broken there, and the audit must notice."""
    insert: bool = True
    """False: coins are tossed, but no canary is in the data; the audit must then prove nothing."""

    def __post_init__(self) -> None:
        validate_types(self)
        if not 0 < self.failure_prob < 0.5:
            raise InvalidInputError(f"failure_prob is {self.failure_prob!r}; valid: 0 < failure_prob < 0.5")
        if self.seed is not None:
            validate_count("seed", self.seed, at_least=0)
        if self.sabotage is not None and self.sabotage not in SABOTAGES:
            raise InvalidInputError(f"unknown sabotage {self.sabotage!r}: {nearest(self.sabotage, SABOTAGES)}")


def audited_training(
    config: RunConfig,
    claim: Claim,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    steps: int | None = None,
    network: nn.Module | None = None,
    own_examples: tuple[Tensor | StoredInputs, Tensor] | None = None,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    device: torch.device | None = None,
) -> AuditedTraining:
    """Return the training of a configuration, ready to be audited: a network, on examples that are public.

    `network` replaces a fresh one of the configuration, and `own_examples` those of a built-in data set, or random
    ones; `steps` are those that the training runs, if they are fewer than those that the claim counts. The network is
    trained on `device`.
    Raises: InvalidInputError if `own_examples` are on disk.
    """
    # A canary is not an image: it is not moved, and its features are computed in each step.
    settings = replace(config.training, augmentation="none", kept_copies=False)
    low, high = input_range or (0.0, 1.0)
    inputs: Tensor | StoredInputs
    network = (build_model(config, input_shape, classes) if network is None else network).to(device)
    if own_examples is not None:
        inputs, targets = own_examples
    elif config.dataset in CATALOG:
        loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed)
        inputs, targets = loaded.train_inputs, loaded.train_targets
    else:
        generator = seeded_generator(config.seed, "audit examples")
        count = round(settings.batch_size / claim.sampling_rate)
        inputs = low + (high - low) * torch.rand(count, *input_shape, generator=generator)
        targets = torch.randint(classes, (count,), generator=generator)
    if isinstance(inputs, StoredInputs):
        raise InvalidInputError("the examples are on disk, not in memory; valid: an audit without --own-data")
    return AuditedTraining(
        network=network,
        loss=network.loss if isinstance(network, IntervalNetwork) else per_example_cross_entropy,
        settings=settings,
        steps=steps or claim.steps,
        sampling_rate=claim.sampling_rate,
        noise_multiplier=claim.noise_multiplier,
        inputs=inputs,
        targets=targets,
        classes=classes,
        input_range=(low, high),
        private=own_examples is not None,
    )


def audit_training(
    training: AuditedTraining,
    claim: Claim,
    settings: AuditSettings | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Train once with canaries and return what its guesses prove about the claim: the content of audit.json.

    Guarantee: if the training keeps its claim, all bounds are at most the true epsilon with probability at least
    1 − failure_prob; if no canary is inserted, all are 0 with at least that probability (`theory.audit`).
    Assumes: for the guarantee of `tradeoff`, that the training is of the claim's family: Poisson-sampled Gaussian steps
    with whatever noise. That a bound exceeds the claim needs no more than the claim's own curve.
    Raises: InvalidInputError for a claim that is not finite, or settings that need too much memory.

    Under torch.distributed the first process plays alone, and all return its result.
    """
    settings = settings or AuditSettings()
    if not math.isfinite(claim.epsilon) or claim.noise_multiplier <= 0:
        raise InvalidInputError(f"the claimed epsilon is {claim.epsilon}; valid: a finite one, to be audited")
    counts = settings.canaries
    if training.steps * counts.traced > MOST_MEMORY:
        most = MOST_MEMORY // training.steps
        raise InvalidInputError(f"there are {counts.traced} canaries; valid for {training.steps} steps: at most {most}")

    def show(step: int) -> None:
        if on_progress is not None:
            on_progress(step / training.steps)

    result = Processes().on_first(
        lambda: play(
            training, counts, seed=settings.seed, sabotage=settings.sabotage, insert=settings.insert, on_step=show
        )
    )
    boxes = {
        box: box_bounds(
            box, len(coins), count_right(scores, coins, guesses_of(box, len(coins))), claim, settings.failure_prob
        )
        for box, scores, coins in (
            ("white_box", result.white_box, result.white_coins),
            ("black_box", result.black_box, result.black_coins),
        )
    }
    largest = largest_bound(boxes)
    return {
        "format": FORMAT,
        "claim": asdict(claim),
        **boxes,
        "epsilon_lower_bound": largest,
        "holds": largest <= claim.epsilon,
        "confidence": 1 - settings.failure_prob,
        "canaries": asdict(counts),
        "private": training.private,
        "seed": settings.seed,
        "sabotage": settings.sabotage,
        "inserted": settings.insert,
        "coins_sha256": result.coins_sha256,
        "seconds": round(result.seconds, 1),
        "version": __version__,
        "environment": environment(),
    }


def audit_config(
    config: RunConfig,
    settings: AuditSettings | None = None,
    *,
    own_data: bool = False,
    device: str | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Audit a configuration without a run folder: calibrate its noise as training does, and train once with canaries.

    Returns and guarantees what `audit_training` does. With `own_data` its examples are those of the configuration,
    whatever they are, and the result is private. `device` is where it trains: cpu (None), cuda, cuda:1, …
    Raises: InvalidInputError for a method without privacy; InvalidInputError, PrivacyError as training would.
    """
    chosen, place = config.training, torch_device(device)
    if not method(config.method).private:
        raise InvalidInputError(f"method is {config.method}, which claims no privacy; valid: a private method")
    named, own_examples = CATALOG.get(config.dataset), None
    if named is None or own_data:
        loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
        shape, classes, count = loaded.input_shape, loaded.classes, len(loaded.train_inputs)
        own_examples = (loaded.train_inputs, loaded.train_targets) if own_data else None
    else:
        shape, classes, count = named.input_shape, named.classes, named.train_size - config.holdout
    model, rate = build_model(config, shape, classes), chosen.rate(count)
    release = redistribution_release(config, model)
    noise = noise_multiplier_of(chosen, rate, release)
    event = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=noise, steps=chosen.steps)
    events = [event, *(() if release is None else release.cost)]
    claim = Claim(
        epsilon=chosen.epsilon or epsilon_spent(events, chosen.delta, chosen.accountant),
        delta=chosen.delta,
        sampling_rate=rate,
        noise_multiplier=noise,
        steps=chosen.steps,
    )
    training = audited_training(
        config, claim, input_shape=shape, classes=classes, network=model, own_examples=own_examples, device=place
    )
    return audit_training(training, claim, settings, on_progress=on_progress)


def self_test(audit: Callable[[AuditSettings], dict[str, Any]], settings: AuditSettings) -> dict[str, dict[str, Any]]:
    """Return the audits, by name, of training as shipped, of each sabotage, and with canaries never inserted (null)."""
    kinds: dict[str, dict[str, Any]] = {"as-shipped": {}, **{name: {"sabotage": name} for name in SABOTAGES}}
    kinds["null"] = {"insert": False}
    return {name: audit(replace(settings, **change)) for name, change in kinds.items()}
