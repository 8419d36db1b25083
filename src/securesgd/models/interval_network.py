"""A network trained to have good interval bounds: a box around each input goes through the layers beside the input.

In training mode three streams run side by side: the input itself, the centre m and the radius ρ of its box,

    m' = W m + b        ρ' = |W| ρ        for linear layers,        ends [m − ρ, m + ρ]  for monotone ones,

and the last layer bounds the margins z_y − z_j themselves (rows W_y − W_j). The loss of an example is
κ·CE(logits) + (1 − κ)·CE(worst logits in the box): an ordinary loss of one example, so DP-SGD applies unchanged. The
radius of the box grows from 0 while κ falls from 1 (`IntervalSettings`).

These bounds are for training and ignore rounding; `certificates.interval` proves.
Reference: Gowal et al. 2018, "On the effectiveness of interval bound propagation"; initialisation and ramp of Shi et
al. 2021, "Fast certified robust training with short warmup".
"""

__all__ = ["IntervalConvolution", "IntervalLinear", "IntervalMargins", "IntervalNetwork", "IntervalSettings"]

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from securesgd.errors import InvalidInputError, nearest
from securesgd.models.layer_graph import Operation, layer_graph
from securesgd.validate import validate_count, validate_positive, validate_types

INITIALISATIONS = ("interval", "own")


@dataclass(frozen=True, kw_only=True)
class IntervalSettings:
    """How the box and its share of the loss change in training."""

    train_radius: float = 0.1
    """l_inf radius of the box at the end of the ramp; somewhat more than the radius to be certified."""
    clean_weight: float = 0.3
    """κ at the end of the ramp: the share of the loss without a box."""
    warm_up: float = 0.1
    """Share of the steps before the ramp."""
    ramp: float = 0.5
    """Share of the steps during which the radius grows."""
    clip_box: bool = field(default=True, repr=False)
    """Whether boxes end at 0 and 1, as the inputs of images do; false for columns with other ranges."""
    initialisation: str = "interval"
    """`interval`: weights of standard deviation √(2π)/fan-in, for which boxes neither grow nor shrink; `own`: as is."""

    def __post_init__(self) -> None:
        validate_types(self)
        validate_positive("train_radius", self.train_radius)
        if not 0 <= self.clean_weight <= 1:
            raise InvalidInputError(f"clean_weight is {self.clean_weight!r}; valid: 0 <= clean_weight <= 1")
        if not (self.warm_up >= 0 and self.ramp >= 0 and self.warm_up + self.ramp <= 1):
            raise InvalidInputError(
                f"warm_up is {self.warm_up!r} and ramp {self.ramp!r}; valid: shares >= 0 with a sum of at most 1"
            )
        if self.initialisation not in INITIALISATIONS:
            valid = nearest(self.initialisation, INITIALISATIONS)
            raise InvalidInputError(f"unknown initialisation {self.initialisation!r}: {valid}")


class _Shared(nn.Module):
    """A layer of the user's network that also takes boxes: it shares its parameters, and is no part of the network."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias


class IntervalLinear(_Shared):
    """[rows, 3, features] → [rows, 3, features]: input, centre and radius through W, W and |W|."""

    def forward(self, streams: Tensor) -> Tensor:
        """Return the streams after the layer."""
        signed, radius = torch.split(streams, [2, 1], dim=1)
        return torch.cat([linear(signed, self.weight, self.bias), linear(radius, self.weight.abs())], dim=1)


class IntervalConvolution(_Shared):
    """[rows, 3, channels, height, width] → [rows, 3, maps, …]: input, centre and radius through W, W and |W|."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer)
        self.stride, self.padding, self.dilation, self.groups = (
            layer.stride, layer.padding, layer.dilation, layer.groups
        )  # fmt: skip
        self.kernel_size, self.padding_mode, self.in_channels = layer.kernel_size, "zeros", layer.in_channels

    def forward(self, streams: Tensor) -> Tensor:
        """Return the streams after the layer."""
        options: Any = (self.stride, self.padding, self.dilation, self.groups)
        signed, radius = torch.split(streams, [2, 1], dim=1)
        signed = torch.conv2d(signed.flatten(0, 1), self.weight, self.bias, *options)
        radius = torch.conv2d(radius.squeeze(1), self.weight.abs(), None, *options)
        return torch.cat([signed.view(-1, 2, *signed.shape[1:]), radius.unsqueeze(1)], dim=1)


class IntervalMargins(_Shared):
    """The last layer, [rows, 3, features] → [rows, 1 + classes, classes].

    The first line holds the logits z of the input; line 1 + y the largest values of z_j − z_y in the box, for each j.
    """

    def forward(self, streams: Tensor) -> Tensor:
        """Return logits and worst-case logits for every label."""
        signed, radius = torch.split(streams, [2, 1], dim=1)
        clean, centre = torch.split(linear(signed, self.weight, self.bias), [1, 1], dim=1)
        classes = len(self.weight)
        spread = linear(radius, self.differences().abs().flatten(0, 1)).view(-1, classes, classes)
        return torch.cat([clean, centre - centre.transpose(1, 2) + spread], dim=1)

    def differences(self) -> Tensor:
        """Return W_j − W_y at [y, j]."""
        return self.weight.unsqueeze(0) - self.weight.unsqueeze(1)


class IntervalNetwork(nn.Module):
    """A network of the user, unchanged, with what it takes to train it for interval bounds.

    In eval mode it computes what the network does. In training mode it returns logits and worst-case logits, of which
    `loss` makes a loss per example; `project`, called after each step, moves the schedule of the radius on.

    Raises: InvalidInputError naming a layer without a sound interval bound, or if the last layer is not Linear or used
    twice; in training mode also if a layer or parameter was replaced since construction.
    """

    steps_done: Tensor

    def __init__(
        self,
        network: nn.Module,
        input_shape: tuple[int, ...],
        settings: IntervalSettings | None = None,
        *,
        steps: int | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        if settings is not None and changes:
            raise InvalidInputError(f"settings are given twice: {', '.join(changes)}")
        try:
            self.settings = settings or IntervalSettings(**changes)
        except TypeError as error:
            raise InvalidInputError(str(error).removeprefix("IntervalSettings.__init__() ")) from None
        if not isinstance(network, nn.Module):
            raise InvalidInputError(f"network is a {type(network).__name__}; valid: a torch.nn.Module")
        self.input_shape = tuple(int(size) for size in input_shape)
        self.steps = None if steps is None else validate_count("steps", steps, at_least=1)
        self.network = network
        graph = layer_graph(network, self.input_shape)
        _require_trainable(network, graph.operations[-1])
        if [operation.module for operation in graph.layers()].count(graph.operations[-1].module) > 1:
            raise InvalidInputError(f"{graph.operations[-1].name} is the last layer and used before; valid: used once")
        self._operations = graph.operations
        self._layers = _Layers(
            {operation.name: _boxed(operation, graph.operations[-1]) for operation in graph.layers()}
        )
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))
        if self.settings.initialisation == "interval":
            self._initialise()

    @property
    def box_layers(self) -> dict[str, nn.Module]:
        """The layers that compute in training mode, by name: they own nothing, and share the network's parameters."""
        return self._layers.by_name

    @property
    def ramp(self) -> float:
        """How far the ramp is, from 0 to 1."""
        if self.steps is None:
            raise InvalidInputError("steps is None; valid: the number of training steps, by which the radius grows")
        share = int(self.steps_done) / self.steps - self.settings.warm_up
        return min(1.0, max(0.0, share / self.settings.ramp)) if self.settings.ramp else float(share >= 0)

    @property
    def radius(self) -> float:
        """The radius of the box now."""
        return self.ramp * self.settings.train_radius

    @property
    def clean_weight(self) -> float:
        """κ now."""
        return 1 - (1 - self.settings.clean_weight) * self.ramp

    def forward(self, x: Tensor) -> Tensor:
        """Return logits in eval mode; in training mode logits and worst-case logits, as `IntervalMargins` has them."""
        if not self.training:
            return self.network(x)
        self._require_own_parameters()
        lower, upper = x - self.radius, x + self.radius
        if self.settings.clip_box:
            lower, upper = lower.clamp(0, 1), upper.clamp(0, 1)
        values = [_from_ends(torch.stack([x, lower, upper], dim=1))]
        for operation in self._operations[1:]:
            values.append(self._run(operation, [values[place] for place in operation.inputs]))
        return values[-1]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example: κ·CE(logits) + (1 − κ)·CE(worst-case logits); CE alone in eval mode."""
        if outputs.dim() == 2:
            return cross_entropy(outputs, targets, reduction="none")
        rows = torch.arange(len(outputs), device=outputs.device)
        clean = cross_entropy(outputs[:, 0], targets, reduction="none")
        worst = cross_entropy(outputs[rows, 1 + targets], targets, reduction="none")
        return self.clean_weight * clean + (1 - self.clean_weight) * worst

    @torch.no_grad()
    def project(self) -> None:
        """Count a step. Nothing is projected: the name is that of what training calls after each step."""
        self.steps_done += 1

    def extra_repr(self) -> str:
        """Return the settings: a run with others is another run."""
        input_range = (0.0, 1.0) if self.settings.clip_box else None
        return f"{self.settings}, steps={self.steps}, input_range={input_range}"

    def _require_own_parameters(self) -> None:
        """Pass if the layers that take boxes have the network's parameters still."""
        own = {id(parameter) for parameter in self.network.parameters()}
        boxed = {id(parameter) for layer in self.box_layers.values() for parameter in layer.parameters()}
        trained = {id(parameter) for parameter in self.network.parameters() if parameter.requires_grad}
        if not trained <= boxed <= own:
            raise InvalidInputError(
                "a layer or parameter of the network was replaced, so that its boxes would be those of the old one; "
                "valid: a new IntervalNetwork, or values copied into the parameters"
            )

    def _run(self, operation: Operation, inputs: list[Tensor]) -> Tensor:
        """Return the three streams after one operation."""
        if operation.module is not None:
            return self.box_layers[operation.name](inputs[0])
        if operation.kind == "sum":
            return inputs[0] + inputs[1]
        (streams,) = inputs
        if operation.kind == "affine":
            scale, shift = (torch.as_tensor(value).to(streams) for value in (operation.scale, operation.shift))
            return torch.cat([streams[:, :2] * scale + shift, streams[:, 2:] * scale.abs()], dim=1)
        assert operation.function is not None
        if operation.kind in ("reshape", "average-pool"):
            return _each_stream(operation.function, streams)
        return _from_ends(_each_stream(operation.function, _to_ends(streams)))

    @torch.no_grad()
    def _initialise(self) -> None:
        for layer in self.box_layers.values():
            weight, bias = layer.weight, layer.bias
            assert isinstance(weight, Tensor)
            weight.normal_(std=math.sqrt(2 * math.pi) / weight[0].numel())
            if isinstance(bias, Tensor):
                bias.zero_()


class _Layers:
    """Holds modules out of sight of `nn.Module`, so that their parameters are not listed twice."""

    def __init__(self, by_name: dict[str, nn.Module]) -> None:
        self.by_name = by_name


class _Mixed(torch.autograd.Function):
    """Keeps the first of three streams and mixes the others: `low` and `high` have the weights of (second, third).

    One pass over memory each way, where slices, sums and stacks take several.
    """

    @staticmethod
    def forward(ctx: Any, streams: Tensor, low: tuple[float, float], high: tuple[float, float]) -> Tensor:
        ctx.low, ctx.high = low, high
        return _mixed(streams, low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        low, high = ctx.low, ctx.high
        return _mixed(gradients[0], (low[0], high[0]), (low[1], high[1])), None, None


def _mixed(streams: Tensor, low: tuple[float, float], high: tuple[float, float]) -> Tensor:
    out = torch.empty_like(streams)
    out[:, 0] = streams[:, 0]
    for place, (a, b) in ((1, low), (2, high)):
        torch.add(streams[:, 1], streams[:, 2], alpha=b / a, out=out[:, place])
        if a != 1:
            out[:, place] *= a
    return out


def _to_ends(streams: Tensor) -> Tensor:
    """Return (input, m − ρ, m + ρ) of (input, m, ρ)."""
    return _Mixed.apply(streams, (1.0, -1.0), (1.0, 1.0))  # type: ignore[no-untyped-call]


def _from_ends(ends: Tensor) -> Tensor:
    """Return (input, m, ρ) of (input, m − ρ, m + ρ)."""
    return _Mixed.apply(ends, (0.5, 0.5), (-0.5, 0.5))  # type: ignore[no-untyped-call]


def _each_stream(function: Callable[[Tensor], Tensor], streams: Tensor) -> Tensor:
    """Return function(stream) of each of the streams [rows, streams, …]."""
    out = function(streams.flatten(0, 1))
    return out.view(*streams.shape[:2], *out.shape[1:])


def _boxed(operation: Operation, last: Operation) -> nn.Module:
    layer = operation.module
    if isinstance(layer, nn.Conv2d):
        return IntervalConvolution(layer)
    assert isinstance(layer, nn.Linear)
    return IntervalMargins(layer) if operation is last else IntervalLinear(layer)


def _require_trainable(network: nn.Module, last: Operation) -> None:
    """Pass if the network ends in a Linear layer and has no dropout, whose draws would differ between the streams."""
    if last.kind != "linear":
        raise InvalidInputError(f"the last layer is {last.name}; valid: Linear, whose margins are bounded together")
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InvalidInputError(
                f"{name} ({type(module).__name__}) cannot be trained with interval bounds; leave it out"
            )
