"""What a training reports: of each step, and when the run is finished."""

__all__ = ["StepReport", "TrainingResult", "load_finished"]

import time
from dataclasses import dataclass
from pathlib import Path

from securesgd.privacy import Ledger, PrivacyStatement
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, load_tensors
from securesgd.training.state import TrainingState


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What the person who trains learns of a step. **Private**: epsilon does not cover loss and batch size."""

    step: int
    steps: int
    loss: float
    """Mean over the examples of the sample whose loss is finite; NaN if there is none."""
    batch_size: int
    epsilon: float
    """Of the steps so far, the whole block of the last one included, and of the one-off release once it was made."""
    seconds: float
    learning_rate: float | None = None
    """Of this step; None if the optimizer has none."""
    held_out: float | None = None
    """Accuracy on held-out examples, now and then, if there are any."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    steps: int
    """Steps that ran: fewer than the settings' if the run was ended early."""
    noise_multiplier: float
    statement: PrivacyStatement
    seconds: float


def load_finished(state: TrainingState, processes: Processes, files: RunFolder, started: float) -> TrainingResult:
    """Return the result of a run that was finished before, and load its weights into the model."""

    def load() -> tuple[Checkpoint, PrivacyStatement]:
        files.tidy()
        stored = load_tensors(files.model)
        with Ledger.open(files.ledger) as ledger:
            ledger.require_head(*stored.record["ledger"])  # lines cut off the end would lower its epsilon
            return stored, ledger.statement()

    stored, statement = processes.on_first(load)
    steps = int(stored.record["steps"])
    state.load_weights(stored.tensors, steps)
    state.model.eval()
    return TrainingResult(
        folder=files.path,
        steps=steps,
        noise_multiplier=float(stored.record["noise_multiplier"]),
        statement=statement,
        seconds=time.perf_counter() - started,
    )
