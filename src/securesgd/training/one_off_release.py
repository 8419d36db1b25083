"""A release besides the steps: it reads the private data once, before a given step, at the cost of its own event."""

__all__ = ["OneOffRelease"]

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from securesgd.privacy import GaussianRelease, PrivacyEvent, UnprotectedRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.tensors import tensors_digest
from securesgd.training.asked_steps import AskedSteps
from securesgd.training.examples import Examples


@dataclass(frozen=True, kw_only=True)
class OneOffRelease:
    """`action` runs before step `step`, after `event` has been written to the ledger.

    `event` is None if the action reads no private data.
    Assumes: the action reads the examples only as `event` describes, and draws all its noise from the stream it is
    given; then running it again after a crash is the same release. What it has made of the model is recorded before
    anybody sees it (`AskedSteps`), and is refused if it was something else before, with the same noise in it.
    """

    step: int
    event: GaussianRelease | UnprotectedRelease | None
    action: Callable[[nn.Module, Examples, KeyStream], None]

    @property
    def cost(self) -> tuple[PrivacyEvent, ...]:
        """The events that the calibration of the steps' noise must leave room for."""
        return (self.event,) if isinstance(self.event, GaussianRelease) else ()

    def run(
        self,
        model: nn.Module,
        examples: Examples,
        randomness: Randomness,
        processes: Processes,
        asked: AskedSteps | None = None,
    ) -> None:
        """Run the action with all its randomness, torch's too, from the run's key.

        So every attempt and every rank computes the same. `asked` is there on rank 0 if steps are recorded.
        Raises: InvalidInputError if an earlier attempt gave something else; the model is as it was before, then.
        """
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        stream = randomness.stream("one-off release", self.step)
        torch.manual_seed(int(stream.words(1)[0] >> np.uint64(1)))
        processes.together(lambda: self.action(model, examples, stream))
        processes.copy_from_first(model.state_dict().values())
        try:
            processes.on_first(lambda: asked and asked.record_release(self.step, tensors_digest(model.state_dict())))
        except BaseException:
            model.load_state_dict(before)
            raise
