"""Layer-wise relevance propagation by the epsilon rule: how much each input value contributed to a network's output.

Reference: Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance
Propagation", PLoS ONE 2015, equation 58.
"""

__all__ = ["propagate_relevance"]

import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError

_WEIGHTED = (nn.AvgPool2d, nn.Conv2d, nn.Linear)
_ROUTING = (nn.Flatten, nn.MaxPool2d)
_ELEMENTWISE = (nn.Dropout, nn.Hardtanh, nn.Identity, nn.ReLU, nn.Sigmoid, nn.Tanh)


def propagate_relevance(network: nn.Sequential, inputs: Tensor, epsilon: float = 1.0) -> Tensor:
    """Return the relevance of each input value for the sum of all outputs, in the shape of `inputs`.

    A layer z = Wx + b gives x_i the part x_i w_ij / (z_j + epsilon·sign z_j) of the relevance of its output j. Pooling
    by the maximum gives all of it to the maximum; elementwise activations pass it on unchanged. The sum over a
    layer's inputs is that over its outputs, less what biases and epsilon absorb.
    Raises: InvalidInputError for a layer without a rule, or a network in training mode.
    """
    if network.training:
        raise InvalidInputError("relevances are of a network in eval mode; call network.eval() first")
    received, layers = [inputs.detach()], list(network)
    with torch.no_grad():
        for layer in layers:
            received.append(layer(received[-1]))
    relevance = received.pop()
    for layer in reversed(layers):
        relevance = _layer_relevance(layer, received.pop(), relevance, epsilon)
    return relevance


def _layer_relevance(layer: nn.Module, x: Tensor, relevance: Tensor, epsilon: float) -> Tensor:
    """Return the relevance of a layer's input from that of its output."""
    if isinstance(layer, _ELEMENTWISE):
        return relevance
    if not isinstance(layer, _WEIGHTED + _ROUTING):
        valid = ", ".join(sorted(kind.__name__ for kind in _WEIGHTED + _ROUTING + _ELEMENTWISE))
        raise InvalidInputError(f"there is no relevance rule for the layer {type(layer).__name__}; valid: {valid}")
    with torch.enable_grad():
        x = x.requires_grad_()
        z = layer(x)
        weighted = isinstance(layer, _WEIGHTED)
        # Σ_j w_ij s_j is the gradient of Σ_j s_j z_j, whatever the layer's geometry.
        received = relevance / (z + epsilon * torch.where(z >= 0, 1.0, -1.0)).detach() if weighted else relevance
        (gradient,) = torch.autograd.grad(z, x, received)
    return x.detach() * gradient if weighted else gradient
