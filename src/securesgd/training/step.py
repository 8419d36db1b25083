"""One step of DP-SGD: sample, clip, add up, add noise, divide; or the plain sum of a method without privacy."""

__all__ = ["NotFiniteError", "Step", "plain_sum"]

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from securesgd.clipping.batch import Batch
from securesgd.clipping.engine import ClippedSum, ClippingEngine
from securesgd.clipping.losses import Loss, per_example, row_losses
from securesgd.errors import InvalidInputError
from securesgd.models.front_end import FeatureNetwork
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.training.augmentation import augmented_copies
from securesgd.training.examples import Examples
from securesgd.training.read_ahead import ReadAhead
from securesgd.training.settings import TrainingSettings


@dataclass(frozen=True)
class Step:
    """One step's release: the noisy, clipped gradient sum over a Poisson sample, divided by the expected batch size."""

    engine: ClippingEngine
    examples: Examples
    loss: Loss
    settings: TrainingSettings
    sampling_rate: float
    noise_multiplier: float
    randomness: Randomness
    processes: Processes
    noise_of: Callable[[Sequence[Tensor]], Randomness] | None = None
    """Where the noise of these sums comes from, if not from `randomness`; called before anything is released."""
    recorded: Callable[[], None] | None = None
    """Returns when what `noise_of` began to write is on disk; called before anything is released."""
    ahead: ReadAhead[tuple[Tensor, Tensor, int]] | None = None
    """Begins to `read` the next step when one is drawn; for examples on disk."""

    def gradient(self, step: int) -> tuple[dict[str, Tensor], int, float]:
        """Return (gradients, batch size, mean loss) of step `step`; the gradients alone are private.

        Guarantee (private settings): a Gaussian mechanism of noise multiplier σ on a Poisson sample of rate q. Division
        is by the *expected* batch size, which does not depend on the sample.
        """
        inputs, targets, size = self.draw(step)
        gradients, mean_loss = self.gradient_of(inputs, targets, step)
        return gradients, size, mean_loss

    @property
    def _keeps_features(self) -> bool:
        """Whether the inputs of a batch are the kept features of its examples' copies."""
        return isinstance(self.engine.model, FeatureNetwork)

    def draw(self, step: int) -> tuple[Tensor, Tensor, int]:
        """Return this process's share of the Poisson sample of step `step`, and the size of the whole sample.

        Torch's generator is seeded for the step: random augmentations and the draws of the model come from it.
        """
        processes = self.processes
        self.randomness.seed_model(step * processes.count + processes.rank)
        read = self.read if self.ahead is None else self.ahead.take
        return processes.together(lambda: read(step))

    def read(self, step: int) -> tuple[Tensor, Tensor, int]:
        """Return what `draw` does, without a word to the other processes and without seeding torch's generator."""
        sample = self.randomness.poisson_sample(step, len(self.examples), self.sampling_rate)
        return *self.examples.batch(sample[self.processes.rank :: self.processes.count]), len(sample)

    @contextmanager
    def reading_ahead(self) -> Iterator["Step"]:
        """Give a step that reads the next sample while it computes; for examples that no generator is drawn for."""
        ahead = ReadAhead(self.read, self.settings.steps)
        try:
            yield replace(self, ahead=ahead)
        finally:
            ahead.close()

    def gradient_of(
        self, inputs: Tensor, targets: Tensor, step: int, loss: Loss | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """Return (gradients, mean loss) of step `step` for the share that `draw` returned; the gradients are private.

        Assumes: a row of `inputs` and `targets` is a function of the row that was drawn and of nothing else that is
        private, and torch's generator is as `draw` left it. `loss` is the step's own if it is None.
        """
        settings, processes, loss = self.settings, self.processes, loss or self.loss
        add_up = self.engine.clipped_sum if settings.private else partial(plain_sum, self.engine.model)
        copies, copies_given = settings.copies, self._keeps_features
        if settings.augmentation != "none" and not copies_given:
            inputs, copies_given = augmented_copies(inputs, copies, settings.augmentation), True
        sums = processes.together(
            lambda: add_up(inputs, targets, loss, copies, settings.micro_batch, copies_given=copies_given)
        )
        finite = sums.losses[~sums.losses.isnan()].double()
        losses = torch.stack([finite.sum(), finite.new_tensor(len(finite))])
        processes.add_up([*sums.gradients.values()])
        processes.add_up([losses])
        released = self._release([*sums.gradients.values()], step)
        names = [name.removeprefix("model.") for name in sums.gradients] if self._keeps_features else sums.gradients
        return dict(zip(names, released, strict=True)), (losses[0] / losses[1]).item()

    def _release(self, sums: list[Tensor], step: int) -> list[Tensor]:
        """Return the sums with the noise of the step, divided by the expected batch size."""
        randomness = self.randomness if self.noise_of is None else self.noise_of(sums)
        if not self.noise_multiplier:  # without protection, as the ledger says
            released = [total.div_(self.settings.batch_size) for total in sums]
        else:
            release = GridRelease(
                sensitivity=self.engine.sensitivity,
                noise_multiplier=self.noise_multiplier,
                size=sum(total.numel() for total in sums),
            )
            released = release.release(sums, randomness.stream("noise", step), divisor=self.settings.batch_size)
        if self.recorded is not None:
            self.recorded()
        return released


class NotFiniteError(InvalidInputError):
    """The loss of an example is NaN or infinite. Only training without privacy raises it: it depends on an example."""


def plain_sum(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    copies: int = 1,
    micro_batch: int | None = None,
    *,
    copies_given: bool = False,
) -> ClippedSum:
    """Return the sum over examples of their gradients, without clipping and so without privacy. `norms` is empty.

    Arguments as for `ClippingEngine.clipped_sum`, so that one loop serves all methods.
    Raises: NotFiniteError; InvalidInputError if `loss` does not return one loss per row.
    """
    loss = per_example(loss)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(parameters.values())).device
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    losses = [torch.zeros(0, device=device)]
    step = micro_batch or max(1, len(inputs))
    batch = Batch(parameters, inputs, targets, loss, copies, copies_given)
    for start in range(0, len(batch), step):
        rows, labels = (t.to(device) for t in batch.take(slice(start, start + step)).rows(channels_last=False))
        values = row_losses(loss, model, rows, labels)
        gradients = torch.autograd.grad(values.sum() / copies, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient
        losses.append(values.detach().view(-1, copies).mean(dim=1))
    all_losses = torch.cat(losses)
    if not bool(torch.isfinite(all_losses).all()):
        raise NotFiniteError("the loss is not finite; check the input for NaN or a learning rate that is too large")
    return ClippedSum(total, torch.zeros(0, device=device), all_losses, skipped=0)
