"""A network with AdLM's two noises: on the input at every step, and in the loss, drawn once. Testing has neither.

    x → middle of the image → + noise, one draw per pixel for the whole batch → clipped to [-10, 10] → layers
      → last hidden layer h, normalised over the batch, clipped to [-1, 1] → logits hW + b → order-2 loss − Σ P∘W

Both noises are buffers, so that a checkpoint holds them and all parts of a batch (micro-batches, processes) get the
same draw. The draw of a step is a function of a key and the number of draws before it.
"""

__all__ = ["AdlmNetwork", "cropped_shape"]

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.baselines.adlm.budget import (
    INPUT_BOUND,
    AdlmSettings,
    affine_sensitivity,
    input_scales,
    loss_scale,
    loss_sensitivity,
    taylor_losses,
)
from securesgd.errors import InvalidInputError

_NEWEST = 0.1  # weight of the newest batch in the moments used for testing


class BatchMoments(nn.Module):
    """Normalisation by the moments of the batch in training, and by those of recent noiseless batches in testing.

    Noise that all images of a batch share is in the batch's mean, so that it is taken out again in training. The
    authors test with the moments of the test batch; stored ones keep an image's class its own.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Return h normalised per unit."""
        mean, variance = (None, None) if self.training else (self.mean, self.variance)
        return nn.functional.batch_norm(h, mean, variance, self.scale, self.offset, training=self.training)

    @torch.no_grad()
    def update(self, h: Tensor) -> None:
        """Update the stored moments with those of a noiseless batch."""
        self.mean.lerp_(h.mean(dim=0), _NEWEST)
        self.variance.lerp_(h.var(dim=0, correction=0), _NEWEST)


class AdlmNetwork(nn.Module):
    """`network` (its last layer Linear) under AdLM's noise while in training mode, and as it is in eval mode.

    Guarantee: none. The noise is the published one; docs/reference/adlm.md says why it does not protect the data.
    """

    input_scale: Tensor
    input_noise: Tensor
    loss_noise: Tensor
    key: Tensor
    draws: Tensor

    def __init__(self, network: nn.Sequential, input_shape: tuple[int, ...], settings: AdlmSettings) -> None:
        super().__init__()
        height, width = cropped_shape(input_shape, settings)[1:]
        *layers, head = network
        assert isinstance(head, nn.Linear)
        self.layers, self.head, self.settings = nn.Sequential(*layers), head, settings
        self.moments = BatchMoments(head.in_features)
        # Where the order-2 loss of equally frequent classes is least. From 0 all logits would first fall together, and
        # take the narrow hidden layer to its bounds, where it has no gradient.
        nn.init.constant_(head.bias, 4 / head.out_features - 2)
        self.register_buffer("input_scale", torch.zeros(height, width))
        self.register_buffer("input_noise", torch.zeros(height, width))
        self.register_buffer("loss_noise", torch.zeros_like(head.weight))
        self.register_buffer("key", torch.zeros((), dtype=torch.int64))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        """Return the settings: they decide the noise, so a resumed run must have the same."""
        return repr(self.settings)

    def preprocess(self, x: Tensor) -> Tensor:
        """Return the images as the first layer gets them without noise: cropped, and mapped to [-1, 1] if `signed`."""
        if self.settings.crop is not None:
            height, width = self.input_scale.shape
            top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
            x = x[..., top : top + height, left : left + width]
        return 2 * x - 1 if self.settings.signed else x

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; of a noisy pass in training mode, of a noiseless one in eval mode."""
        x = self.preprocess(x)
        *body, activation = self.layers
        hidden = nn.Sequential(*body)
        if self.training:
            if len(x) < 2:  # no moments; a batch of one has nothing to say of itself after normalisation
                return self.head(x.new_zeros(len(x), self.head.in_features))
            with torch.no_grad():
                self.moments.update(hidden(x))
            x = (x + self.input_noise).clamp(-INPUT_BOUND, INPUT_BOUND)
        return self.head(activation(self.moments(hidden(x))).clamp(-1, 1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the order-2 loss of each example, less Σ P∘W.

        The mean over a batch is then the published objective: mean loss less Σ P∘W.
        """
        labels = nn.functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        return taylor_losses(outputs, labels).sum(dim=1) - (self.loss_noise * self.head.weight).sum()

    def set_noise(self, shares: np.ndarray, batch_size: int, generator: np.random.Generator) -> None:
        """Draw P and the key of the input noise, and the noise of the first step; `shares` is beta per pixel."""
        settings, classes = self.settings, self.head.out_features
        input_scale = input_scales(shares, self.first_layer_sensitivity(), settings.input_epsilon, batch_size)
        scale_of_loss = loss_scale(loss_sensitivity(self.head.in_features, classes), settings.loss_epsilon, batch_size)
        self.input_scale.copy_(torch.from_numpy(input_scale))
        self.loss_noise.copy_(torch.from_numpy(generator.laplace(0.0, scale_of_loss, tuple(self.loss_noise.shape))))
        self.key.fill_(int(generator.integers(2**63)))
        self.draws.zero_()
        self.draw()

    def draw(self) -> None:
        """Replace the input noise by the next draw."""
        generator = np.random.default_rng((int(self.key), int(self.draws)))
        self.input_noise.copy_(torch.from_numpy(generator.laplace(0.0, self.input_scale.double().cpu().numpy())))
        self.draws.add_(1)

    def advance(self, steps: int) -> None:
        """Call after each of `steps` steps: draw the noise of the next one; after the last, forget all noise.

        A reader of the trained weights must not get the noise with them.
        """
        if int(self.draws) < steps:
            return self.draw()
        for buffer in (self.input_scale, self.input_noise, self.loss_noise, self.key, self.draws):
            buffer.zero_()
        return None

    @torch.no_grad()
    def first_layer_sensitivity(self) -> int:
        """Return Δ₂; the feature map is counted after the first pooling, as in the authors' code (14×14 on MNIST)."""
        first = next(layer for layer in self.layers if isinstance(layer, nn.Conv2d))
        x = torch.zeros(1, first.in_channels, *self.input_scale.shape, device=self.input_scale.device)
        for layer in self.layers:
            if isinstance(layer, nn.Flatten):
                break
            x = layer(x)
            if isinstance(layer, nn.MaxPool2d):
                break
        return affine_sensitivity(first.in_channels, x[0, 0].numel(), first.weight[0, 0].numel())


def cropped_shape(input_shape: tuple[int, ...], settings: AdlmSettings) -> tuple[int, int, int]:
    """Return the shape of the images after cropping. Raises: InvalidInputError if they are too small, or no images."""
    if len(input_shape) != 3:
        raise InvalidInputError(f"adlm needs images, (channels, height, width), got inputs of shape {input_shape}")
    if settings.crop is not None and settings.crop > min(input_shape[1:]):
        raise InvalidInputError(f"crop is {settings.crop} but images are {input_shape[1]}×{input_shape[2]}")
    channels, height, width = input_shape
    return (channels, settings.crop or height, settings.crop or width)
