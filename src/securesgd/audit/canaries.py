"""Canaries: examples that are in the training data by the toss of a coin, and leave a trace of their own.

Three kinds, in one training run:

weights  The network gets a table of one more weight per canary (`nn.Embedding`), and the canary's loss is a multiple of
         its own entry. So its gradient has one coordinate, that no other example has, and a norm far above the limit:
         after clipping exactly the limit. It goes through the engine, the sum and the noise as every gradient does.
biases   The same for the bias of an `nn.Linear`, whose gradient is 99.5 % bias and the rest weight.
data     Random black-and-white inputs with random classes, for the black box: they are learned like other examples.

The gradients of all other examples are exactly zero in these coordinates, and the canaries' do not depend on the
network, so that what the white box sees depends on no other example at all.
"""

__all__ = ["LONG", "AuditedNetwork", "CanaryCounts", "audited_examples", "audited_loss"]

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.clipping.engine import Loss
from securesgd.errors import InvalidInputError
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.noisy import NoisyNetwork
from securesgd.training.examples import TensorExamples
from securesgd.validate import validate_count

LONG = 100.0
"""The gradients of `weights` and `biases` canaries, in clipping norms."""
INPUT = 0.1
"""What the layer of the `biases` canaries is applied to: a gradient's part in its weight, by that in its bias."""
MOST_EXAMPLES = 2**20


@dataclass(frozen=True, kw_only=True)
class CanaryCounts:
    """How many canaries of each kind there are."""

    weights: int = 20_000
    biases: int = 1_000
    data: int = 1_000

    def __post_init__(self) -> None:
        for name in ("weights", "biases", "data"):
            validate_count(name, getattr(self, name), at_least=10, at_most=MOST_EXAMPLES // 4)

    @property
    def traced(self) -> int:
        """The number of canaries that the white box is about."""
        return self.weights + self.biases


class AuditedNetwork(nn.Module):
    """A network with a coordinate more for each canary of the kinds `weights` and `biases`.

    An input row is the number of a `weights` canary (0: none), then the numbers of the input. An output row is that of
    the network, flat, then the value of the row's `weights` canary, then those of all `biases` canaries.
    Raises: InvalidInputError for a network of tokens, which are not numbers that rows could be made of.
    """

    def __init__(self, network: nn.Module, input_shape: tuple[int, ...], counts: CanaryCounts) -> None:
        super().__init__()
        if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in network.modules()):
            raise InvalidInputError("the network takes tokens (it has an Embedding); valid for audits: one of numbers")
        self.network, self.input_shape = network, input_shape
        device = next(network.parameters()).device
        self.marks = nn.Embedding(counts.weights + 1, 1, padding_idx=0, device=device)
        self.biases = nn.Linear(1, counts.biases, device=device)
        for parameter in (*self.marks.parameters(), *self.biases.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs of the network and of the canaries."""
        outputs = self.network(rows[:, 1:].reshape(len(rows), *self.input_shape))
        number = rows[:, 0].detach().long().clamp(0, self.marks.num_embeddings - 1)
        constant = torch.full_like(rows[:, :1].detach(), INPUT)
        return torch.cat([outputs.flatten(1), self.marks(number), self.biases(constant)], dim=1)

    def project(self) -> None:
        """Do what the network does after each step."""
        if isinstance(self.network, NoisyNetwork | IntervalNetwork):
            self.network.project()

    def traces(self, gradients: dict[str, Tensor]) -> NDArray[np.float64]:
        """Return the part of a released gradient along the gradient of each canary, as a unit vector: shape [traced].

        Those of the `weights` canaries come first.
        """
        marks, bias = gradients["marks.weight"][1:, 0], gradients["biases.bias"]
        bias_part = (bias + INPUT * gradients["biases.weight"][:, 0]) / (1 + INPUT**2) ** 0.5
        return torch.cat([marks.double(), bias_part.double()]).cpu().numpy()


def audited_loss(model: AuditedNetwork, loss: Loss, classes: int, max_grad_norm: float) -> Loss:
    """Return the loss of the audited network: `loss` for targets below `classes`, a canary's own value for others."""

    def of_row(outputs: Tensor, targets: Tensor) -> Tensor:
        width = outputs.shape[1] - 1 - model.biases.out_features
        shape = (classes,) if width == classes else (width // classes, classes)  # an IntervalNetwork has more lines
        number = targets - classes
        is_canary = number >= 0
        ordinary = loss(outputs[:, :width].reshape(len(outputs), *shape), targets.where(~is_canary, 0))
        place = (width + number.clamp(min=0)).unsqueeze(1)
        length = torch.where(number > 0, (1 + INPUT**2) ** 0.5, 1.0)
        return torch.where(is_canary, LONG * max_grad_norm / length * outputs.gather(1, place)[:, 0], ordinary)

    return of_row


def audited_examples(
    inputs: Tensor,
    targets: Tensor,
    coins: NDArray[np.bool_],
    counts: CanaryCounts,
    data_canaries: tuple[Tensor, Tensor],
    classes: int,
) -> TensorExamples:
    """Return the examples together with the canaries whose coin says so: `weights`, `biases`, `data`, in that order."""
    chosen = torch.from_numpy(coins)
    marks = torch.arange(1, counts.weights + 1)[chosen[: counts.weights]]
    biases = torch.arange(counts.biases)[chosen[counts.weights : counts.traced]]
    data = chosen[counts.traced :]
    blank = torch.zeros(len(marks) + len(biases), inputs[0].numel())
    values = torch.cat([inputs.flatten(1).float(), blank, data_canaries[0][data].flatten(1).float()])
    numbers = torch.zeros(len(values), 1)
    numbers[len(inputs) : len(inputs) + len(marks), 0] = marks.float()
    labels = torch.cat([targets, torch.full_like(marks, classes), classes + 1 + biases, data_canaries[1][data]])
    return TensorExamples(torch.cat([numbers, values], dim=1), labels)
