"""A run and its ledger: steps are reserved before they run, checkpoints are saved, and noise is never used twice."""

__all__ = ["AccountedRun", "noise_multiplier_of"]

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from securesgd import __version__
from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy import (
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
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, tensors_digest
from securesgd.training.asked_steps import AskedSteps
from securesgd.training.fingerprint import ResumeFingerprint
from securesgd.training.one_off_release import OneOffRelease
from securesgd.training.settings import TrainingSettings


class AccountedRun:
    """The open ledger and files of one run; on rank 0 only. Build it with `start` or `resume`."""

    def __init__(
        self,
        files: RunFolder,
        settings: TrainingSettings,
        ledger: Ledger,
        randomness: Randomness,
        begin: Checkpoint,
        one_off_release: OneOffRelease | None,
    ) -> None:
        self.files, self.settings, self.ledger, self.randomness = files, settings, ledger, randomness
        self.one_off_release = one_off_release
        self.begin = begin
        """The checkpoint to resume from; of a new run that of step 0."""
        self.record = begin.record
        self.noise_multiplier = float(begin.record["noise_multiplier"])
        self.rate = float(begin.record["sampling_rate"])
        self.stream = randomness.name(begin.record["question"])

    @classmethod
    def start(
        cls, files: RunFolder, fingerprint: ResumeFingerprint, initial: Checkpoint, data_digest: str
    ) -> "AccountedRun":
        """Return a new run: calibrated noise, an empty ledger, secret key and step-0 checkpoint on disk."""
        settings, release, examples = fingerprint.settings, fingerprint.one_off_release, fingerprint.examples
        rate = settings.rate(examples)
        noise = noise_multiplier_of(settings, rate, release)
        seed = settings.noise_seed
        # Two seeded runs share their noise only if they are the same run: same fingerprint, data and first weights.
        context = f"{fingerprint.digest(noise, by_process=False)} {data_digest} {tensors_digest(initial.tensors)}"
        randomness = Randomness.secret() if seed is None else Randomness.from_seed(seed, context)
        record = initial.record | {
            "version": __version__,
            "step": 0,
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "question": fingerprint.digest(noise),
            **fingerprint.machine(),
        }
        begin = Checkpoint(initial.tensors, record)
        if files.ledger.exists():
            _remove_unused_ledger(files)
        # No target holds for a run that also releases something without protection; its statement says so.
        unprotected = release is not None and isinstance(release.event, UnprotectedRelease)
        ledger = Ledger.create(
            files.ledger,
            delta=settings.delta,
            target_epsilon=None if unprotected else settings.epsilon,
            accountant=settings.accountant,
            # A number of examples that is not public does not go into a public file.
            dataset_size=examples if settings.adjacency == "zero-out" else settings.population,
            adjacency=settings.adjacency,
            noise=_noise_scheme(fingerprint, noise) if noise else None,
        )
        try:  # the ledger is ours alone now: another process that starts at the same moment writes no other key
            files.write_secret(randomness, data_digest)
            files.save(begin)
        except BaseException:
            ledger.close()
            raise
        return cls(files, settings, ledger, randomness, begin, release)

    @classmethod
    def resume(
        cls, files: RunFolder, fingerprint: ResumeFingerprint, _: Checkpoint, data_digest: str
    ) -> "AccountedRun":
        """Return the run at its last checkpoint.

        Raises: InvalidInputError if its fingerprint or its data are not those it was started with; DamagedFileError.
        """
        randomness, begin = files.read_secret(data_digest), files.load()
        try:
            digest = fingerprint.digest(float(begin.record["noise_multiplier"]))
            same, head = begin.record["question"] == digest, begin.record.get("ledger")
        except (KeyError, TypeError, ValueError):
            raise DamagedFileError(f"{files.checkpoint} is not a training checkpoint; it was left untouched") from None
        if not same:
            # Another learning rate leads to other gradients; under the same noise their difference has no noise left.
            raise InvalidInputError(
                "settings, first weights, model, loss, optimizer, number of examples or of processes are not those "
                f"{files.path} was started with; resume with the same, or start a new run"
            )
        ledger = Ledger.open(files.ledger)
        try:
            if files.finished:  # by another process, which held the ledger until now
                raise InvalidInputError(f"{files.path} was finished just now, so it is not trained further")
            if head is not None:
                ledger.require_head(*head)
            return cls(files, fingerprint.settings, ledger, randomness, begin, fingerprint.one_off_release)
        except BaseException:
            ledger.close()
            raise

    def require_machine(self, machine: Mapping[str, Any]) -> None:
        """Return if steps that may be run again are computed on the kind of machine they were computed on.

        The noise of a step is a function of the key, whatever the machine; the last bits of the sums it is added to are
        not. Repeated elsewhere, a step would be a second release under the same noise. On another number of threads it
        would be one, too, but that number can be set: a warning says that it is.
        Raises: InvalidInputError naming the device, the processor, or the versions of this package's sums and of torch.
        """
        for what, words in (("arithmetic", ""), ("device", ""), ("processor", "a processor with ")):
            first, here = self.record.get(what, "an earlier version"), machine[what]
            if first != here:
                raise InvalidInputError(
                    f"{self.files.path} was started on {words}{first}; valid: to resume it there, or to finish it as "
                    f"it is, got {here}"
                )
        first, here = self.record.get("threads", machine["threads"]), machine["threads"]
        if first != here:
            warnings.warn(
                f"{self.files.path} was started on {first} threads, here are {here}: it is resumed on {first}, so that "
                "a step that is run again has the same bits",
                stacklevel=2,
            )

    def asked_steps(self, step: int) -> AskedSteps:
        """Return the record of what the steps from `step` on, that of the checkpoint, were asked and gave.

        Raises: DamagedFileError if it is damaged, or has a step that the ledger lacks; or if it lacks a step that was
        run before the last block was paid for: restored with the checkpoint of the same moment, it would let those
        steps be asked anything once more.
        """
        begun, chain = bool(self.ledger.events), str(self.record.get("asked", ""))
        asked = AskedSteps(self.files.asked, self.randomness, step, chain, begun=begun)
        try:
            if asked.steps:
                self._require_reserved(max(asked.steps))
            blocks = [r.block.first_step for r in self.ledger.records if r.block and r.block.stream == self.stream]
            if step + len(asked.steps) < max(blocks, default=0):
                raise DamagedFileError(
                    f"{self.files.asked} lacks steps that were run, by {self.files.ledger.name}; valid: files of one "
                    "moment, or to finish the run as it is"
                )
        except DamagedFileError:
            asked.close()
            raise
        except PrivacyError:
            asked.close()
            raise DamagedFileError(
                f"{self.files.ledger} lacks a step that {self.files.asked.name} has: lines were cut off"
            ) from None
        return asked

    def reserve_block(self, step: int, not_private: str) -> float:
        """Reserve the block of steps that `step` is in, from `step` on; return the epsilon of `epsilon_with`.

        Steps of a method that is not private are one unprotected release; `not_private` is its reason.
        """
        if not self.settings.private:
            self._record_once(UnprotectedRelease(label="training", reason=not_private))
        else:
            stop = min((step // self.settings.block + 1) * self.settings.block, self.settings.steps)
            self.ledger.reserve(self._steps(stop - step), first_step=step, stream=self.stream)
        return self.epsilon_with(step)

    def record_one_off_release(self, step: int) -> float:
        """Write the one-off release to the ledger, before step `step`; return the epsilon of `epsilon_with`.

        After a resume it is the same release, and costs nothing more.
        """
        if self.one_off_release is not None and self.one_off_release.event is not None:
            self._record_once(self.one_off_release.event)
        return self.epsilon_with(step)

    def epsilon_with(self, step: int) -> float:
        """Return the epsilon of the ledger up to the last line that a run needs until it has run step `step`.

        An attempt that was killed may have left lines after it: `ledger.epsilon`, and every statement, count them too.
        """
        release = self.one_off_release
        later = release.event if release is not None and release.step > step else None
        needed = [
            record.epsilon
            for record in self.ledger.records
            if (record.event != later if record.block is None else record.block.first_step <= step)
        ]
        return needed[-1] if needed else 0.0

    def save(self, state: Checkpoint, step: int) -> float:
        """Replace the checkpoint by that after `step` steps, all of which must be reserved; return the epsilon paid."""
        self._require_reserved(step - 1)
        record = self.record | state.record | {"step": step, "ledger": list(self.ledger.head)}
        self.files.save(Checkpoint(state.tensors, record))
        return self.ledger.epsilon

    def finish(self, weights: dict[str, Tensor], steps: int) -> PrivacyStatement:
        """Write the weights after `steps` steps, remove secret and checkpoint, and return the privacy statement.

        The statement counts all reserved steps, also those of a block that a stopped run did not use.
        """
        self._require_reserved(steps - 1)
        statement = self.ledger.statement()
        record = {
            "version": __version__,
            "steps": steps,
            "noise_multiplier": self.noise_multiplier,
            "ledger": list(self.ledger.head),
        }
        self.files.finish(Checkpoint(weights, record))
        return statement

    def _record_once(self, event: PrivacyEvent) -> None:
        if event not in self.ledger.events:
            self.ledger.record(event)

    def _require_reserved(self, step: int) -> None:
        if self.settings.private:
            self.ledger.require_step(step, stream=self.stream)

    def _steps(self, count: int) -> SampledGaussianSteps:
        return SampledGaussianSteps(sampling_rate=self.rate, noise_multiplier=self.noise_multiplier, steps=count)


def _noise_scheme(fingerprint: ResumeFingerprint, noise_multiplier: float) -> NoiseScheme:
    """Return how the noise is made, for the ledger."""
    settings = fingerprint.settings
    size = sum(p.numel() for p in fingerprint.model.parameters() if p.requires_grad)
    release = GridRelease(sensitivity=fingerprint.sensitivity, noise_multiplier=noise_multiplier, size=size)
    return NoiseScheme(
        clipping_norm=settings.max_grad_norm,
        sensitivity=fingerprint.sensitivity,
        grid=release.grid,
        bound=release.bound,
        coordinates=size,
        seeded=settings.noise_seed is not None,
    )


def _remove_unused_ledger(files: RunFolder) -> None:
    """Remove the ledger of a run that ended before its first step. Raises: DamagedFileError if steps were released."""
    with Ledger.open(files.ledger) as ledger:
        if ledger.events:
            raise DamagedFileError(
                f"{files.checkpoint} is missing, so the run cannot be resumed; its ledger still counts"
            )
        files.ledger.unlink()  # a header without a release says nothing; it is written again


def noise_multiplier_of(settings: TrainingSettings, rate: float, one_off_release: OneOffRelease | None) -> float:
    """Return the noise multiplier given, or else calibrated. Raises: PrivacyError if the steps would cost too much."""
    if not settings.private:
        return 0.0
    extra = () if one_off_release is None else one_off_release.cost
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
