"""The loss of a model, noisy or not, with its gradient averaged over noise draws (EOT), and the votes of those draws.

The first layer is linear, so it is computed once per image, only the rest of the network runs per draw, and the
gradient comes back through the layer once (`models/split_network.py`). All draws of an image are in one pass.

The images of a pass share their noise draws. Each image still sees independent draws, fresh at every evaluation, which
is all an attack needs; what is *measured* is measured by the harness, with noise of its own for every image.
"""

__all__ = ["CONFIRM_DRAWS", "Objective", "ObjectiveValues", "evaluation_mode"]

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securesgd.attacks.losses import LOSSES, smoothed_margin
from securesgd.errors import InvalidInputError, nearest
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork

CONFIRM_DRAWS = 100
"""Draws of the second evaluation that decides whether a noisy image is wrong: ten evaluations of twenty draws each are
many chances for a lucky one."""
_SURE = 3.0  # standard deviations of the votes


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectiveValues:
    """Loss, votes and gradient of one evaluation of the objective, a row per image."""

    loss: Tensor
    margin: Tensor
    """How far the attack is ahead in mean probability, in [-1, 1]; above 0 it has won on these draws."""
    won: Tensor
    """Where the attack is ahead in votes beyond the chance of these draws; without noise, where it is ahead."""
    votes: Tensor
    """Draws won by each class, [n, classes]."""
    probabilities: Tensor
    """Mean over the draws, [n, classes]."""
    gradient: Tensor | None


class Objective:
    """A loss to be made large: of the label, or minus that of the target if `targeted`.

    `draws` noise draws per evaluation; 0 is the network without its noise. A model without noise is evaluated once.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str,
        draws: int,
        generator: torch.Generator,
        *,
        targeted: bool = False,
        rows: int = 500,
    ) -> None:
        if loss not in LOSSES:
            raise InvalidInputError(f"unknown loss {loss!r}: {nearest(loss, LOSSES)}")
        self.loss, self.generator, self.targeted, self.rows = LOSSES[loss], generator, targeted, rows
        self.model = SplitNetwork(model) if isinstance(model, NoisyNetwork) else model
        self.noisy = isinstance(model, NoisyNetwork) and draws > 0
        self.draws = draws if self.noisy else 1
        self.passes = 0
        """Images times draws evaluated so far."""
        self._fixed: Tensor | None = None

    def fix_noise(self) -> None:
        """Draw noise for every evaluation until the next `fix_noise`, so that two images can be compared on it."""
        self._fixed = self._noise(self.draws) if self.noisy else None

    def evaluate(self, x: Tensor, labels: Tensor, *, gradient: bool = True) -> ObjectiveValues:
        """Return loss, margin, votes and, if asked for, the gradient at each image."""
        return self._evaluate(x, labels, self.draws, gradient, self._fixed)

    def confirm(self, x: Tensor, labels: Tensor) -> ObjectiveValues:
        """Return the values without gradient, on fresh draws and more of them."""
        return self._evaluate(x, labels, max(self.draws, CONFIRM_DRAWS) if self.noisy else 1, False, None)

    def _evaluate(self, x: Tensor, labels: Tensor, draws: int, gradient: bool, noise: Tensor | None) -> ObjectiveValues:
        size = max(1, self.rows // draws)
        batches = [slice(start, start + size) for start in range(0, len(x), size)]
        parts = [self._evaluate_batch(x[batch], labels[batch], draws, gradient, noise) for batch in batches]
        self.passes += len(x) * draws
        loss, votes, probabilities = (torch.cat([part[i] for part in parts]) for i in range(3))
        slope = torch.cat([part[3] for part in parts]) if gradient else None
        margin = smoothed_margin(probabilities, labels)
        own = votes.gather(1, labels[:, None])[:, 0]
        other = votes.scatter(1, labels[:, None], -1).amax(1)
        ahead = other - own
        if self.targeted:
            loss, margin, ahead, slope = -loss, -margin, -ahead, None if slope is None else -slope
        won = ahead > (_SURE if self.noisy else 0.0) * (own + other).sqrt()
        return ObjectiveValues(
            loss=loss, margin=margin, won=won, votes=votes, probabilities=probabilities, gradient=slope
        )

    def _evaluate_batch(
        self, x: Tensor, labels: Tensor, draws: int, gradient: bool, noise: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return loss, votes, mean probabilities and, if asked for, the loss's gradient of one pass."""
        x = x.detach().requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            logits = self._logits(x, draws, noise)
            loss = self.loss(logits, labels)
            slope = (_gradient(loss, x),) if gradient else ()
        loss, logits = loss.detach(), logits.detach()
        votes = nn.functional.one_hot(logits.argmax(2), logits.shape[2]).sum(0)
        return loss, votes, logits.softmax(2).mean(0), *slope

    def _logits(self, x: Tensor, draws: int, noise: Tensor | None) -> Tensor:
        """Return the logits of every draw, [draws, n, classes]."""
        if not isinstance(self.model, SplitNetwork):
            return self.model(x)[None]
        h = self.model.clean(x)
        if self.noisy:
            h = (h[None] + (self._noise(draws) if noise is None else noise)[:, None]).flatten(0, 1)
        return self.model.outputs(h).reshape(draws, len(x), -1)

    @torch.no_grad()
    def _noise(self, draws: int) -> Tensor:
        """Return what `draws` draws add to the first layer's output."""
        assert isinstance(self.model, SplitNetwork)
        shape = (draws, *self.model.noise_shape)
        return self.model.spread(torch.randn(shape, generator=self.generator, dtype=self.model.dtype))


def _gradient(loss: Tensor, x: Tensor) -> Tensor:
    """Return the loss's gradient, zero where the loss cannot be differentiated: an attack sees that as flat."""
    gradient = torch.autograd.grad(loss.sum(), x, allow_unused=True)[0] if loss.requires_grad else None
    return torch.zeros_like(x) if gradient is None else gradient


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode within the context, and every one of its modules back into its own mode after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
