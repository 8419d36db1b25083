"""Networks by name: those of the paper's experiments and small ones for tight privacy budgets, as plain torch modules.

None has batch statistics: examples stay separate in training, as clipping needs, and in testing, as the certificate
needs. Weights come from torch's own initialisation; seed with `torch.manual_seed` or load a state before use.

A row of `NETWORKS` adds a network; an import path, `package.module:function`, is accepted wherever a name is.
"""

__all__ = ["NETWORKS", "network", "network_from_function"]

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from securesgd.errors import InvalidInputError, nearest
from securesgd.models.feature_weights import ChannelWeights, FrequencyWeights
from securesgd.models.front_end import FrontEnd
from securesgd.models.scattering import CHANNELS, ORDERS, Scattering
from securesgd.models.standardise import Standardise
from securesgd.models.wavelets import WAVELET_CHANNELS, Wavelets
from securesgd.runtime.import_path import is_import_path, load_function

InputShape = tuple[int, int, int]
_SECOND_ORDER = 0.5  # size of the channels of order 2


def mnist_cnn(input_shape: InputShape, classes: int, hidden: int = 256) -> nn.Sequential:
    """Return the paper's MNIST network: 5×5 convolutions with 32 and 64 maps, then 256 units.

    Each convolution keeps the image size and is followed by ReLU and 2×2 max pooling (28 → 14 → 7).
    """
    return _with_head(
        [
            nn.Conv2d(input_shape[0], 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ],
        input_shape,
        hidden,
        classes,
        nn.ReLU,
    )


def cifar_cnn(input_shape: InputShape, classes: int, hidden: int = 256) -> nn.Sequential:
    """Return the paper's CIFAR-10 network: a 3×3 convolution with 128 maps, 5×5 with 128 and 256, then 256 units.

    The paper gives kernels and widths but not the pooling. Here each convolution keeps the image size and is followed
    by ReLU and 2×2 max pooling (32 → 16 → 8 → 4), as in its MNIST network. The noisy first layer then sees the whole
    image at full resolution, and the two wide 5×5 layers run at 16×16 and 8×8, a quarter of the work they would be
    without the first pooling.
    """
    return _with_head(
        [
            nn.Conv2d(input_shape[0], 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 128, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 256, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ],
        input_shape,
        hidden,
        classes,
        nn.ReLU,
    )


def tanh_cnn(input_shape: InputShape, classes: int, hidden: int = 32) -> nn.Sequential:
    """Return the small tanh network that suits DP-SGD on MNIST (26,010 parameters for 1×28×28 and 10 classes).

    Few parameters mean little noise in total; bounded activations keep gradients from growing, so that less of them
    is clipped away (Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy",
    AAAI 2021, table 1).
    """
    return _with_head(
        [
            nn.Conv2d(input_shape[0], 16, 8, stride=2, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
        ],
        input_shape,
        hidden,
        classes,
        nn.Tanh,
    )


def digits_cnn(input_shape: InputShape, classes: int, hidden: int = 32) -> nn.Sequential:
    """Return a tanh network for images as small as 8×8: a 3×3 convolution with 16 maps, pooling, 32 units."""
    return _with_head(
        [nn.Conv2d(input_shape[0], 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)],
        input_shape,
        hidden,
        classes,
        nn.Tanh,
    )


def interval_cnn(input_shape: InputShape, classes: int, hidden: int = 0) -> nn.Sequential:
    """Return a network for interval bounds under noise: two convolutions with stride 2, then the output layer.

    Every noisy weight widens the boxes behind it, so there are few: 8,538 parameters for 1×28×28 and 10 classes. Images
    of less than 16 pixels get one 3×3 convolution. `hidden` units before the output, if any, cost more than they gain.
    """
    channels, body = input_shape[0], [nn.Conv2d(input_shape[0], 16, 3, stride=2), nn.ReLU()]
    if min(input_shape[1:]) >= 16:
        body = [nn.Conv2d(channels, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 4, stride=2), nn.ReLU()]
    return _with_head(body, input_shape, hidden, classes, nn.ReLU)


def scatter_linear(input_shape: InputShape, classes: int, hidden: int = 0) -> nn.Sequential:
    """Return one linear layer on the scattering coefficients of the image: strong features that cost no privacy.

    With colours their fine details have less weight, since there are so many coefficients.
    """
    if hidden:
        raise InvalidInputError(f"hidden is {hidden}, but the network scatter-linear has no hidden layer; leave it out")
    colours, height, width = input_shape
    details = [FrequencyWeights(height // 4, width // 4)] if colours > 1 else []
    return _with_head([FrontEnd(*_scattering(input_shape), *details)], input_shape, 0, classes, nn.Tanh)


def scatter_cnn(input_shape: InputShape, classes: int, hidden: int = 0) -> nn.Sequential:
    """Return two 3×3 tanh convolutions and a linear layer on the scattering coefficients of the image.

    16 and 32 maps for one colour, 64 and 64 for more, with 2×2 max pooling between them.
    """
    channels = CHANNELS * input_shape[0]
    first, second = (16, 32) if input_shape[0] == 1 else (64, 64)
    return _with_head(
        [
            FrontEnd(*_scattering(input_shape)),
            nn.Conv2d(channels, first, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.Tanh(),
        ],
        input_shape,
        hidden,
        classes,
        nn.Tanh,
    )


def wavelet_linear(input_shape: InputShape, classes: int, hidden: int = 0) -> nn.Sequential:
    """Return one linear layer on the moduli of wavelets: quick enough for thousands of votes for each image."""
    if hidden:
        raise InvalidInputError(f"hidden is {hidden}, but the network wavelet-linear has no hidden layer; leave it out")
    return _with_head(_wavelets(input_shape), input_shape, 0, classes, nn.Tanh)


def wavelet_cnn(input_shape: InputShape, classes: int, hidden: int = 0) -> nn.Sequential:
    """Return a 3×3 convolution with 48 maps and a linear layer (or two with `hidden`) on the moduli of wavelets."""
    channels = WAVELET_CHANNELS * (1 + input_shape[0])
    head = [nn.Conv2d(channels, 48, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    return _with_head([*_wavelets(input_shape), *head], input_shape, hidden, classes, nn.Tanh)


def _wavelets(input_shape: InputShape) -> list[nn.Module]:
    """Return the layers before a head: moduli, standardised channels, then mean 0 and variance 1 for each image."""
    wavelets = Wavelets(*input_shape)
    whole = nn.GroupNorm(1, WAVELET_CHANNELS * (1 + input_shape[0]), affine=False)
    return [FrontEnd(wavelets, Standardise(wavelets, input_shape), whole)]


def _scattering(input_shape: InputShape) -> list[nn.Module]:
    """Return the layers before a head: the transform, standardised channels, then groups of mean 0 and variance 1.

    The groups of 3 channels per colour are normalised for every image by itself; nothing is learned from data. With
    colours there are so many channels that the noise of privacy is the limit: those of order 2, which say less, have
    half the size of the others, or the head would listen to them most.
    """
    colours, height, width = input_shape
    scattering = Scattering(height, width)
    groups = nn.GroupNorm(CHANNELS // 3, CHANNELS * colours, affine=False)
    layers: list[nn.Module] = [scattering, Standardise(scattering, input_shape), groups]
    if colours > 1:
        layers.append(ChannelWeights(np.tile(np.repeat([1.0, 1.0, _SECOND_ORDER], ORDERS), colours)))
    return layers


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 32) -> nn.Sequential:
    """Return one hidden layer of ReLU units on the flattened input: for tables, whose inputs are vectors."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def linear(input_shape: tuple[int, ...], classes: int, hidden: int = 0) -> nn.Sequential:
    """Return one linear layer on the flattened input: logistic regression, the least that noise can spoil."""
    if hidden:
        raise InvalidInputError(f"hidden is {hidden}, but the network linear has no hidden layer; leave it out")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def _with_head(
    body: list[nn.Module],
    input_shape: InputShape,
    hidden: int,
    classes: int,
    activation: type[nn.Module],
) -> nn.Sequential:
    """Return `body` followed by a hidden layer (none if 0) that fits its output, and the output layer."""
    with torch.no_grad():
        try:
            size = nn.Sequential(*body)(torch.zeros(1, *input_shape)).numel()
        except RuntimeError as error:
            raise InvalidInputError(f"input_shape {input_shape} is too small for this network: {error}") from error
    if not hidden:
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(size, classes))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(size, hidden), activation(), nn.Linear(hidden, classes))


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "cifar-cnn": cifar_cnn,
    "digits-cnn": digits_cnn,
    "interval-cnn": interval_cnn,
    "linear": linear,
    "mlp": mlp,
    "mnist-cnn": mnist_cnn,
    "scatter-cnn": scatter_cnn,
    "scatter-linear": scatter_linear,
    "tanh-cnn": tanh_cnn,
    "wavelet-cnn": wavelet_cnn,
    "wavelet-linear": wavelet_linear,
}


def network(name: str, input_shape: tuple[int, ...], classes: int, hidden: int | None = None) -> nn.Module:
    """Return a freshly initialised network by name, for images of shape (channels, height, width).

    An import path `package.module:function` is imported, so it must come from the user and not from a file. Its
    function, or class, is called with (input_shape, classes) if it takes two positional arguments, else with none;
    `input_shape` may then be any. `hidden` is the width of the last hidden layer; None for the network's own.
    Raises: InvalidInputError if the name is unknown, the shape, the number of classes or of hidden units does not fit,
    or what a path leads to does not make a torch module.
    """
    if name not in NETWORKS and not is_import_path(name):
        valid = nearest(name, NETWORKS)
        raise InvalidInputError(f"network {name!r} is unknown: {valid}, or an import path like package.module:function")
    if classes < 2:
        raise InvalidInputError(f"classes is {classes}: it must be at least 2")
    if name not in NETWORKS:
        if hidden is not None:
            raise InvalidInputError(f"hidden is {hidden}, but the network {name} sets its own widths; leave it out")
        return network_from_function(load_function(name, "the network"), tuple(input_shape), classes, name)
    if (len(input_shape) != 3 and name not in ("mlp", "linear")) or min(input_shape) < 1:
        raise InvalidInputError(
            f"input_shape is {tuple(input_shape)}: for {name} it must be (channels, height, width); mlp and linear "
            "take any"
        )
    if hidden is None:
        return NETWORKS[name](input_shape, classes)
    if hidden < 1:
        raise InvalidInputError(f"hidden is {hidden}: it must be at least 1")
    return NETWORKS[name](input_shape, classes, hidden)


def network_from_function(make: Callable[..., Any], input_shape: tuple[int, ...], classes: int, name: str) -> nn.Module:
    """Return what a function of the user makes, called with (input_shape, classes) or with nothing.

    Raises: InvalidInputError, in one line with `name`, if it takes other arguments, fails, or makes no torch module.
    """
    if isinstance(make, nn.Module):
        raise InvalidInputError(f"the network {name} is a module; valid: a function, or class, that makes a new one")
    arguments = next((given for given in ((input_shape, classes), ()) if _takes(make, given)), None)
    if arguments is None:
        raise InvalidInputError(f"the network {name} takes neither (input_shape, classes) nor no arguments")
    try:
        made = make(*arguments)
    except Exception as error:  # whatever a foreign function raises, the command ends with one line
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInputError(f"the network {name} cannot be made: {type(error).__name__} {reason}") from error
    if not isinstance(made, nn.Module):
        raise InvalidInputError(f"the network {name} made a {type(made).__name__}; valid: a torch.nn.Module")
    return made


def _takes(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Return whether a function can be called with these positional arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # ValueError: a function without a signature
        return False
    return True
