"""First weights from public images: ordinary training on a data set that the user declares public, before DP-SGD.

The private budget then goes into what the public images do not know. Nothing here touches the private data, so it costs
no privacy: to DP-SGD these are initial weights like any others. A learned r learns from the public images, too.
"""

__all__ = ["learn_from_public"]

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from securesgd.clipping.losses import row_losses
from securesgd.data.public_images import moved_images
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.noise_layer import Scale
from securesgd.training.state import projection
from securesgd.training.step_loss import loss_of_step

BATCH, LEARNING_RATE = 128, 2e-3


def learn_from_public(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    seed: int,
    on_step: Callable[[int], object] | None = None,
) -> None:
    """Train the model in place by Adam on images that are moved at random, with the model's own noise and loss.

    Guarantee: the weights are a function of the first weights, `images`, `labels`, `steps` and `seed`; for the same
    processor and number of threads, bit for bit. Torch's generator is left as it was.
    Assumes: images and labels are public.
    Raises: InvalidInputError if the images have another shape than the model takes, or a loss is not finite.
    """
    loss, trained = loss_of_step(model, None), [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
    project = projection(model, None)
    device = trained[0].device
    with torch.random.fork_rng(), _schedules_over(model, steps):
        torch.manual_seed(seed)
        model.train()
        for step in range(steps):
            chosen = torch.randint(len(images), (BATCH,))
            inputs, targets = moved_images(images[chosen]).to(device), labels[chosen].to(device)
            value = row_losses(loss, model, inputs, targets).mean()
            if not bool(torch.isfinite(value)):
                raise InvalidInputError(f"the loss is not finite after {step} steps on public images; check the images")
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            project()
            if on_step is not None:
                on_step(step + 1)
    optimizer.zero_grad()


@contextmanager
def _schedules_over(model: nn.Module, steps: int) -> Iterator[None]:
    """Let schedules be over the public steps within the context; the private steps begin with them anew.

    They are that of the radius of interval bounds, from 0, and of the grids of a learned r, from the coarsest.
    """
    planned = model.steps if isinstance(model, IntervalNetwork) else None
    scales = {m: m.learning for m in model.modules() if isinstance(m, Scale) and m.learning is not None}
    if isinstance(model, IntervalNetwork):
        model.steps = steps
    for scale, learning in scales.items():
        scale.learning = replace(learning, steps=steps)
    try:
        yield
    finally:
        if isinstance(model, IntervalNetwork):
            model.steps = planned
            model.steps_done.zero_()
        for scale, learning in scales.items():
            scale.learning = learning
            scale.steps_done.zero_()
