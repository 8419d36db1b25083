"""A run and its account: reserves steps in the ledger before they run, saves and resumes, and never reuses noise."""

__all__ = ["Interlude", "PaidRun", "Question"]

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

import securesgd
from securesgd.clipping.engine import Loss
from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy import (
    GaussianRelease,
    Ledger,
    NoiseScheme,
    PrivacyEvent,
    PrivacyStatement,
    SampledGaussianSteps,
    UnprotectedRelease,
    affordable_steps,
    calibrated_noise_multiplier,
)
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, tensors_digest
from securesgd.training.examples import Examples
from securesgd.training.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Interlude:
    """`action` runs before step `step`, after `event` has been written to the ledger (None: it reads no private data).

    Assumes: the action looks at the examples only through what `event` describes, with all its noise drawn from the
    stream it is given; then running it again after a crash is the same release.
    """

    step: int
    event: GaussianRelease | UnprotectedRelease | None
    action: Callable[[nn.Module, Examples, KeyStream], None]

    @property
    def cost(self) -> tuple[PrivacyEvent, ...]:
        """What the calibration of the steps' noise must leave room for."""
        return (self.event,) if isinstance(self.event, GaussianRelease) else ()


_MOVED = {"securesgd.baselines.adlm.network": "securesgd.adlm.network"}
"""Where losses were when the committed rows were made: the digest, and with it the noise of a seed, must not change."""


@dataclass(frozen=True)
class Question:
    """The same noise may only ever answer the same question: under another one, the difference would have no noise."""

    settings: TrainingSettings
    model: nn.Module
    loss: Loss
    examples: int
    processes: int
    interlude: Interlude | None
    sensitivity: float
    """Of a clipped sum as the engine computes it."""

    def digest(self, noise_multiplier: float, *, by_process: bool = True) -> str:
        """Return a digest by which a resumed run is compared with the one that was started.

        The model counts by its structure and its tensors' names, shapes and whether they are trained; loss and
        interlude by their names. What their code computes cannot be compared. Without `by_process` the number of
        processes does not count.
        """
        tensors = sorted(f"{name} {list(t.shape)} {t.dtype}" for name, t in self.model.state_dict().items())
        trained = sorted(name for name, p in self.model.named_parameters() if p.requires_grad)
        module = getattr(self.loss, "__module__", "")
        loss = _MOVED.get(module, module), getattr(self.loss, "__qualname__", type(self.loss).__name__)
        between = None if self.interlude is None else (self.interlude.step, self.interlude.event)
        parts = (
            self.settings.fingerprint(noise_multiplier),
            repr(self.model),
            tensors,
            trained,
            loss,
            self.examples,
            self.processes if by_process else None,
            between,
            self.sensitivity,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class PaidRun:
    """The open ledger and files of one run; on rank 0 only. Build it with `start` or `resume`."""

    def __init__(
        self,
        files: RunFolder,
        settings: TrainingSettings,
        ledger: Ledger,
        randomness: Randomness,
        begin: Checkpoint,
        interlude: Interlude | None,
    ) -> None:
        self.files, self.settings, self.ledger, self.randomness = files, settings, ledger, randomness
        self.interlude = interlude
        self.begin = begin
        """The checkpoint to go on from; of a new run that of step 0."""
        self.record = begin.record
        self.noise_multiplier = float(begin.record["noise_multiplier"])
        self.rate = float(begin.record["sampling_rate"])
        self.stream = randomness.name(begin.record["question"])

    @classmethod
    def start(cls, files: RunFolder, question: Question, tensors: dict[str, Tensor], data_digest: str) -> "PaidRun":
        """Return a new run: calibrated noise, secret key and step-0 checkpoint on disk, an empty ledger."""
        settings, interlude, examples = question.settings, question.interlude, question.examples
        rate = settings.rate(examples)
        noise = _noise_multiplier(settings, rate, interlude)
        asked, seed = question.digest(noise), settings.noise_seed
        # Two seeded runs share their noise only if they are the same run: same question, data and first weights.
        everything = f"{question.digest(noise, by_process=False)} {data_digest} {tensors_digest(tensors)}"
        randomness = Randomness.secret() if seed is None else Randomness.from_seed(seed, everything)
        record = {
            "version": securesgd.__version__,
            "step": 0,
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "question": asked,
        }
        begin = Checkpoint(tensors, record)
        if files.ledger.exists():
            _remove_unused_ledger(files)
        files.write_secret(randomness, data_digest)
        # No target can be kept by a run that also releases something without protection; its statement says so.
        unprotected = interlude is not None and isinstance(interlude.event, UnprotectedRelease)
        ledger = Ledger.create(
            files.ledger,
            delta=settings.delta,
            target_epsilon=None if unprotected else settings.epsilon,
            accountant=settings.accountant,
            # A number of examples that is not public does not go into a public file.
            dataset_size=examples if settings.adjacency == "zero-out" else settings.population,
            adjacency=settings.adjacency,
            noise=_noise_scheme(question, noise) if noise else None,
        )
        try:
            files.save(begin)
        except BaseException:
            ledger.close()
            raise
        return cls(files, settings, ledger, randomness, begin, interlude)

    @classmethod
    def resume(cls, files: RunFolder, question: Question, _: dict[str, Tensor], data_digest: str) -> "PaidRun":
        """Return a run to go on with, after checking that it asks the very same questions of the very same data."""
        settings, interlude = question.settings, question.interlude
        randomness, begin = files.read_secret(data_digest), files.load()
        try:
            asked = question.digest(float(begin.record["noise_multiplier"]))
            same, head = begin.record["question"] == asked, begin.record.get("ledger")
        except (KeyError, TypeError, ValueError):
            raise DamagedFileError(f"{files.checkpoint} is not a training checkpoint; it was left untouched") from None
        if not same:
            # Another learning rate, say, leads to other gradients; under the same noise the difference has none left.
            raise InvalidInputError(
                f"settings, model, loss, number of examples or of processes are not those {files.path} was started "
                "with; resume with the same, or start a new run"
            )
        ledger = Ledger.open(files.ledger)
        try:
            if head is not None:
                ledger.require_head(*head)
            return cls(files, settings, ledger, randomness, begin, interlude)
        except BaseException:
            ledger.close()
            raise

    def pay(self, step: int, not_private: str) -> float:
        """Pay for the block of steps that `step` is in, from `step` on; return the epsilon paid so far.

        Steps of a method that is not private cost everything once; `not_private` says why.
        """
        if not self.settings.private:
            self._pay_once(UnprotectedRelease(label="training", reason=not_private))
            return self.ledger.epsilon
        stop = min((step // self.settings.block_steps + 1) * self.settings.block_steps, self.settings.steps)
        self.ledger.reserve(self._steps(stop - step), first_step=step, stream=self.stream)
        return self.ledger.epsilon

    def pay_interlude(self) -> None:
        """Pay for the interlude; if it was paid before (the run was resumed) it is the same release, and free."""
        if self.interlude is not None and self.interlude.event is not None:
            self._pay_once(self.interlude.event)

    def save(self, tensors: dict[str, Tensor], step: int) -> None:
        """Replace the checkpoint by that after `step` steps, all of which must be paid for."""
        self._require_paid(step - 1)
        self.files.save(Checkpoint(tensors, self.record | {"step": step, "ledger": list(self.ledger.head)}))

    def finish(self, weights: dict[str, Tensor]) -> PrivacyStatement:
        """Write the trained weights, remove secret and checkpoint, and return the privacy statement."""
        self._require_paid(self.settings.steps - 1)
        statement = self.ledger.statement()
        record = {
            "version": securesgd.__version__,
            "steps": self.settings.steps,
            "noise_multiplier": self.noise_multiplier,
            "ledger": list(self.ledger.head),
        }
        self.files.finish(Checkpoint(weights, record))
        return statement

    def _pay_once(self, event: PrivacyEvent) -> None:
        if event not in self.ledger.events:
            self.ledger.record(event)

    def _require_paid(self, step: int) -> None:
        if self.settings.private:
            self.ledger.require_step(step, stream=self.stream)

    def _steps(self, count: int) -> SampledGaussianSteps:
        return SampledGaussianSteps(sampling_rate=self.rate, noise_multiplier=self.noise_multiplier, steps=count)


def _noise_scheme(question: Question, noise_multiplier: float) -> NoiseScheme:
    """Return the terms of the noise, for the ledger."""
    settings = question.settings
    size = sum(p.numel() for p in question.model.parameters() if p.requires_grad)
    release = GridRelease(sensitivity=question.sensitivity, noise_multiplier=noise_multiplier, size=size)
    return NoiseScheme(
        clipping_norm=settings.max_grad_norm,
        sensitivity=question.sensitivity,
        grid=release.grid,
        bound=release.bound,
        coordinates=size,
        seeded=settings.noise_seed is not None,
    )


def _remove_unused_ledger(files: RunFolder) -> None:
    """Clear the way for a run that died before its first step. Raises: DamagedFileError if steps were released."""
    with Ledger.open(files.ledger) as ledger:
        if ledger.events:
            raise DamagedFileError(
                f"{files.checkpoint} is missing, so the run cannot be resumed; its ledger still counts"
            )
        files.ledger.unlink()  # a header without a release says nothing; it is written again


def _noise_multiplier(settings: TrainingSettings, rate: float, interlude: Interlude | None) -> float:
    """Return the noise multiplier given, or else calibrated. Raises: PrivacyError if the steps would cost too much."""
    if not settings.private:
        return 0.0
    extra = () if interlude is None else interlude.cost
    epsilon, noise, steps, name = settings.epsilon, settings.noise_multiplier, settings.steps, settings.accountant
    if noise is None:
        assert epsilon is not None
        return calibrated_noise_multiplier(epsilon, settings.delta, rate, steps, accountant=name, extra_events=extra)
    if epsilon is not None:
        # Refuse at the start what the ledger would refuse at a later step.
        affordable = affordable_steps(epsilon, settings.delta, rate, noise, spent=extra, accountant=name, at_most=steps)
        if affordable < steps:
            raise PrivacyError(
                f"{steps} steps with noise multiplier {noise:g} cost more than epsilon = {epsilon:g}; "
                f"{affordable} steps are affordable, or leave out noise_multiplier to have it calibrated"
            )
    return float(noise)
