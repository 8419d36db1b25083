"""The settings of a training run. Those that change the claim come first, those of speed last."""

__all__ = ["AUGMENTATIONS", "OPTIMIZERS", "SCHEDULES", "TrainingSettings"]

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, get_args

from securesgd.errors import InvalidInputError, nearest
from securesgd.privacy.accounting import Adjacency, validate_accountant
from securesgd.runtime.machine import PRECISIONS, Precision
from securesgd.validate import (
    validate_count,
    validate_delta,
    validate_noise_multiplier,
    validate_positive,
    validate_sampling_rate,
    validate_types,
)

Optimizer = Literal["sgd", "adam", "own"]
Schedule = Literal["constant", "cosine", "linear", "own"]
Augmentation = Literal["none", "shift", "flip", "shift-and-flip"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
SCHEDULES: tuple[str, ...] = get_args(Schedule)
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)
"""`own`: the user gives it to `train`, and the configuration only says that."""
MAX_STEPS, MAX_COPIES = 10**7, 1000
"""Runs above these would not end: ten million steps are four months at one a second."""
LARGEST = 1e30  # of a rate or a norm: single precision ends at 3.4e38
_LEAST_BLOCK, _MOST_BLOCKS = 50, 50
_NEWER = {"augmentation": "none", "kept_copies": False, "precision": "float32", "consistency": 0.0}
_ONLY_SPEED = {"micro_batch", "block_steps", "checkpoint_steps"}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of DP-SGD, validated on construction.

    Privacy: give `epsilon` (the noise is calibrated to it), or `noise_multiplier` (epsilon is reported), or both (the
    run is refused if it would spend more than epsilon). `batch_size` is the *expected* size: sampling is Poisson, and
    sums are divided by it.
    `private=False` trains without privacy, and the ledger says so.

    Adjacency: the sampling rate is batch_size / number of examples, which makes that number public and the claim about
    *zeroing out* one example. With a `sampling_rate`, or a public `population` the examples are a part of (the rate is
    then batch_size / population), the claim is about *adding or removing* one.
    """

    private: bool = True
    """Whether training is DP-SGD. False: plain gradients, and the ledger says so."""
    delta: float
    """Delta of the guarantee; well below 1 / number of examples."""
    epsilon: float | None = None
    """Target: the noise is calibrated to it."""
    noise_multiplier: float | None = None
    """Noise in sensitivities, instead of a target, or besides one that it must keep to."""
    batch_size: int
    """Expected number of examples in a step: sampling is Poisson, and sums are divided by this."""
    steps: int
    """Number of steps."""
    sampling_rate: float | None = None
    """Probability of each example to be in a step; the claim is then about adding or removing one."""
    population: int | None = None
    """Public number that the examples are a part of; the sampling rate is batch_size / population."""
    max_grad_norm: float = 1.0
    """Every example's gradient is clipped to this l2 norm."""
    accountant: str = "pld"
    """Of epsilon: pld, or rdp, which is faster and looser."""
    noise_seed: int | None = None
    """None: secret randomness. A number makes the run repeatable; such a run guarantees no privacy."""

    learning_rate: float = 0.5
    """Of the optimizer, at its highest."""
    optimizer: Optimizer = "sgd"
    """sgd or adam."""
    momentum: float = 0.0
    """Of sgd."""
    schedule: Schedule = "constant"
    """How the learning rate falls: constant, cosine or linear."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows from zero."""
    ema_decay: float = 0.0
    """Above 0, the result is a moving average of the weights over the steps: post-processing, no privacy cost."""
    copies: int = 1
    """Passes of each example through a noisy model; gradients are averaged before clipping, at no privacy cost."""
    augmentation: Augmentation = "none"
    """How each copy of an image is moved at random: none, shift, flip or shift-and-flip."""
    kept_copies: bool = False
    """Pass the copies through a fixed front end (of the networks with wavelets) once, and keep the result."""
    consistency: float = 0.0
    """Weight in the loss of how far the noisy copies of an example are apart; for copies >= 2, at no privacy cost."""

    precision: Precision = "float32"
    """Of the passes through the model: float32, or bfloat16 where that is faster; gradients are clipped in float32."""
    micro_batch: int | None = None
    """Examples in memory at once; None for all."""
    block_steps: int | None = None
    """Steps reserved ahead in one ledger line; None: 50, or 2 % of the steps if that is more."""
    checkpoint_steps: int = 50
    """Steps between two checkpoints."""

    def __post_init__(self) -> None:
        validate_types(self)
        validate_delta(self.delta)
        validate_accountant(self.accountant)
        if not self.private and (self.epsilon is not None or self.noise_multiplier is not None):
            raise InvalidInputError(
                "epsilon and noise_multiplier are for private training, and this method is not: leave them out"
            )
        if not self.private and self.precision != "float32":
            raise InvalidInputError(f"precision is {self.precision!r}; valid without privacy: 'float32'")
        if self.private and self.epsilon is None and self.noise_multiplier is None:
            raise InvalidInputError("give epsilon (the noise is calibrated to it) or noise_multiplier, got neither")
        if self.epsilon is not None:
            validate_positive("epsilon", self.epsilon)
        if self.noise_multiplier is not None:
            validate_noise_multiplier(self.noise_multiplier)
        for name in ("batch_size", "checkpoint_steps"):
            validate_count(name, getattr(self, name), at_least=1)
        validate_count("steps", self.steps, at_least=1, at_most=MAX_STEPS)
        if self.block_steps is not None:
            validate_count("block_steps", self.block_steps, at_least=1)
        validate_count("copies", self.copies, at_least=1, at_most=MAX_COPIES)
        if self.sampling_rate is not None and self.population is not None:
            raise InvalidInputError("give sampling_rate or population, not both: the population sets the sampling rate")
        if self.sampling_rate is not None:
            validate_sampling_rate(self.sampling_rate)
        if self.population is not None:
            validate_count("population", self.population, at_least=self.batch_size)
        if self.micro_batch is not None:
            validate_count("micro_batch", self.micro_batch, at_least=1)
        validate_count("warmup_steps", self.warmup_steps, at_least=0)
        for name in ("max_grad_norm", "learning_rate"):
            if validate_positive(name, getattr(self, name)) > LARGEST:
                raise InvalidInputError(f"{name} is {getattr(self, name)!r}; valid: a number > 0, up to {LARGEST:g}")
        for name in ("momentum", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)!r}; valid: a number with 0 <= {name} < 1")
        if not 0 <= self.consistency <= LARGEST:
            raise InvalidInputError(f"consistency is {self.consistency!r}; valid: a number from 0 to {LARGEST:g}")
        if self.consistency and self.copies < 2:
            raise InvalidInputError(
                f"consistency is {self.consistency:g}, but copies is {self.copies}; valid: copies >= 2, which are to "
                "agree, or consistency = 0"
            )
        choices = (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("augmentation", AUGMENTATIONS),
            ("precision", PRECISIONS),
        )
        for name, valid in choices:
            if getattr(self, name) not in valid:
                raise InvalidInputError(
                    f"unknown {name} {getattr(self, name)!r}: {nearest(getattr(self, name), valid)}"
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingSettings":
        """Return the settings of a plain dictionary; an unknown key raises with the nearest valid name."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidInputError(f"unknown training setting {name!r}: {nearest(name, known)}")
        missing = [name for name in ("delta", "batch_size", "steps") if name not in values]
        if missing:
            raise InvalidInputError(f"training settings need {', '.join(missing)}")
        return cls(**values)

    @classmethod
    def absent_from(cls, values: dict[str, Any]) -> set[str]:
        """Return the settings that a table of a run lacks since its version did not have them; none for another table.

        What a run writes has all settings that are not None.
        """
        always = {field.name for field in fields(cls) if field.default not in (None, MISSING)} - set(_NEWER)
        return set(_NEWER) - set(values) if always <= set(values) else set()

    @property
    def adjacency(self) -> Adjacency:
        """Which two data sets the claim compares."""
        return "zero-out" if self.sampling_rate is None and self.population is None else "add-or-remove-one"

    def rate(self, examples: int) -> float:
        """Return the probability with which each of `examples` examples is in a step's sample.

        Raises: InvalidInputError if the batch is larger than the data (whose number is public only without a rate).
        """
        if self.sampling_rate is not None:
            return self.sampling_rate
        if self.population is None and self.batch_size > examples:
            raise InvalidInputError(
                f"batch_size is {self.batch_size} but there are {examples} examples; valid: 1 to {examples}"
            )
        return self.batch_size / (self.population or examples)

    @property
    def block(self) -> int:
        """Steps of one ledger line. Each costs an epsilon, so a long run has no more than fifty."""
        return self.block_steps or max(_LEAST_BLOCK, math.ceil(self.steps / _MOST_BLOCKS))

    def learning_rate_at(self, step: int, peak: float | None = None) -> float:
        """Return the learning rate of step `step`: warm-up from zero to `peak`, then the schedule down to zero.

        `peak` is `learning_rate` if it is None.
        """
        peak = self.learning_rate if peak is None else peak
        if step < self.warmup_steps:
            return peak * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        shape = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}
        return peak * shape[self.schedule]

    def fingerprint(self, noise_multiplier: float) -> str:
        """Return a digest of all settings that change a released number; a resumed run must have the same."""
        values = {name: value for name, value in asdict(self).items() if name not in _ONLY_SPEED}
        for name, default in _NEWER.items():  # the digest, and the noise of a seed, are those of earlier versions
            if values[name] == default:
                del values[name]
        # micro_batch changes the order of additions, so the last bits: a re-run must use the same one.
        values |= {"noise_multiplier": noise_multiplier, "micro_batch": self.micro_batch}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]
