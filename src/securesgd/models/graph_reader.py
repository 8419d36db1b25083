"""From a module to its list of operations: torch.fx notes every call of its forward, and each becomes an operation.

What has no sound bound is refused by its name.
"""

__all__ = ["read_graph"]

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from securesgd.errors import InvalidInputError
from securesgd.models.noise_layer import GaussianNoise, NoisyLayer, Scale
from securesgd.models.operations import Kind, LayerGraph, Operation
from securesgd.models.scattering import Scattering

# Not decreasing, by the module's class and by function; True where no rounding happens.
_MODULES: dict[type[nn.Module], tuple[str, bool]] = {
    nn.ReLU: ("relu", True), nn.ReLU6: ("relu6", True), nn.Hardtanh: ("hardtanh", True), nn.Tanh: ("tanh", False),
    nn.Sigmoid: ("sigmoid", False), nn.LeakyReLU: ("leaky_relu", False), nn.ELU: ("elu", False),
    nn.SELU: ("selu", False), nn.CELU: ("celu", False), nn.Softplus: ("softplus", False),
    nn.Softsign: ("softsign", False), nn.LogSigmoid: ("logsigmoid", False),
}  # fmt: skip
_EXACT = dict(_MODULES.values())
_SLOPES = {nn.LeakyReLU: "negative_slope", nn.ELU: "alpha", nn.CELU: "alpha", nn.Softplus: "beta"}
_POOLS: dict[type[nn.Module], Kind] = {
    nn.MaxPool2d: "max-pool", nn.AdaptiveMaxPool2d: "max-pool",
    nn.AvgPool2d: "average-pool", nn.AdaptiveAvgPool2d: "average-pool",
}  # fmt: skip
_POOL_FUNCTIONS: dict[str, Kind] = {
    "max_pool2d": "max-pool", "adaptive_max_pool2d": "max-pool",
    "avg_pool2d": "average-pool", "adaptive_avg_pool2d": "average-pool",
}  # fmt: skip
_RESHAPES = {"flatten", "view", "reshape", "squeeze", "unsqueeze", "contiguous"}
_SIZES = {"size", "getattr", "getitem", "len", "mul", "floordiv"}  # of shapes: numbers, not values


def read_graph(network: nn.Module, input_shape: tuple[int, ...]) -> LayerGraph:
    """Return the operations of a network that is in eval mode. Raises: InvalidInputError as `layer_graph`."""
    return _Reader(network, _trace(network), input_shape).graph()


class _Tracer(fx.Tracer):
    """Keeps the layers of torch whole; everything else is followed into."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        of_torch = type(m).__module__.startswith("torch.nn.modules") and not isinstance(m, nn.Sequential)
        return isinstance(m, NoisyLayer | Scattering) or of_torch

    def create_node(self, *arguments: Any, **keywords: Any) -> fx.Node:
        """Note a call. Raises: InvalidInputError inside an autocast, which leaves no other trace."""
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            raise InvalidInputError("the network runs in autocast, which rounds to half precision; valid: without it")
        return super().create_node(*arguments, **keywords)


def _trace(network: nn.Module) -> fx.GraphModule:
    holder = nn.Sequential(network)  # so that a network that is one layer is noted as a call
    try:
        graph = _Tracer().trace(holder)
    except InvalidInputError:
        raise
    except Exception as error:  # whatever a foreign forward does with symbols
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInputError(
            f"the network cannot be read as a list of layers ({type(error).__name__}: {reason}); interval bounds need "
            "a forward without decisions by values"
        ) from None
    return fx.GraphModule(holder, graph)


class _Reader:
    """Turns the nodes of torch.fx into operations."""

    def __init__(self, network: nn.Module, traced: fx.GraphModule, input_shape: tuple[int, ...]) -> None:
        self._modules, self._nodes = dict(traced.named_modules()), traced.graph.nodes
        self._traced, self._input_shape = traced, tuple(input_shape)
        like = next(network.parameters(), torch.zeros(1))
        self._shapes = _shapes(traced, torch.zeros(2, *input_shape).to(like))
        self._more = _shapes(traced, torch.zeros(3, *input_shape).to(like))
        self._operations: list[Operation] = []
        self._place: dict[fx.Node, int] = {}

    def graph(self) -> LayerGraph:
        for node in self._nodes:
            if node.op == "placeholder":
                if self._operations:
                    raise InvalidInputError("the network takes more than one input; interval bounds need one")
                self._add(node, Operation("input", "the input", (), self._input_shape))
            elif node.op == "output":
                return self._finished(node.args[0])
            elif node.op == "call_module":
                self._read_module(node)
            elif node.op in ("call_function", "call_method"):
                self._read_function(node)
        raise InvalidInputError("the network has no output")

    def _finished(self, output: Any) -> LayerGraph:
        if not isinstance(output, fx.Node) or output not in self._place:
            raise InvalidInputError("the network does not return one tensor that depends on its input")
        last = self._place[output]
        graph = LayerGraph(tuple(self._operations[: last + 1]))
        if len(graph.operations[-1].shape) != 1:
            raise InvalidInputError(
                f"the network's output has shape {list(graph.operations[-1].shape)}; valid: a vector of scores"
            )
        return graph

    def _add(self, node: fx.Node, operation: Operation) -> None:
        self._place[node] = len(self._operations)
        self._operations.append(operation)

    def _shape(self, node: fx.Node, name: str) -> tuple[int, ...]:
        two, three = self._shapes.get(node), self._more.get(node)
        if two is None or three is None or two[0] != 2 or three[0] != 3 or two[1:] != three[1:]:
            raise InvalidInputError(f"{name} does not keep the batch as the first dimension; it has no interval bound")
        return two[1:]

    def _source(self, node: fx.Node, name: str) -> tuple[int, ...]:
        """Return the place of the only tensor argument."""
        tensors = [argument for argument in node.all_input_nodes if argument in self._place]
        if len(tensors) != 1 or not node.args or node.args[0] is not tensors[0]:
            raise InvalidInputError(f"{name} has no interval bound here: it must have one tensor, its first argument")
        return (self._place[tensors[0]],)

    def _read_module(self, node: fx.Node) -> None:
        module, name = self._modules[str(node.target)], f"{str(node.target).removeprefix('0.')}"
        name = f"{name if name != '0' else 'the network'} ({type(self._modules[str(node.target)]).__name__})"
        source, kind = self._source(node, name), type(module)
        shape = self._shape(node, name)
        if "forward" in vars(module) or len(node.all_input_nodes) > 1 or node.kwargs:
            raise InvalidInputError(f"{name} has a forward of its own or more arguments; it has no interval bound")
        if kind is NoisyLayer:
            self._read_noisy_layer(node, module, name, source, shape)
        elif kind is nn.Linear and isinstance(module, nn.Linear):
            if len(shape) != 1:
                raise InvalidInputError(f"{name} works on a sequence; interval bounds take vectors")
            self._add(node, Operation("linear", name, source, shape, module=module))
        elif kind is nn.Conv2d and isinstance(module, nn.Conv2d):
            if module.padding_mode != "zeros":
                raise InvalidInputError(f"{name} has padding_mode {module.padding_mode!r}; valid: zeros")
            self._add(node, Operation("convolution", name, source, shape, module=module))
        elif kind in _MODULES:
            self._read_activation(node, module, name, source, shape)
        elif kind in _POOLS:
            if getattr(module, "return_indices", False):
                raise InvalidInputError(f"{name} returns indices; it has no interval bound")
            self._add(node, Operation(_POOLS[kind], name, source, shape, function=module))
        elif kind in (nn.Flatten, nn.Unflatten):
            self._add(node, Operation("reshape", name, source, shape, function=_to_shape(shape)))
        elif kind in (nn.Identity, nn.Dropout, nn.Dropout2d) and not (module.training and kind is not nn.Identity):
            self._place[node] = source[0]
        else:
            raise InvalidInputError(f"{name} has no sound interval bound; valid: {_valid()}")

    def _read_noisy_layer(
        self, node: fx.Node, module: nn.Module, name: str, source: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        """Read the layer of a noisy network and its scale; its noise counts as absent."""
        assert isinstance(module, NoisyLayer)
        layer = module.layer
        if type(layer) not in (nn.Identity, nn.Linear, nn.Conv2d) or type(module.noise) is not GaussianNoise:
            raise InvalidInputError(f"{name} has no sound interval bound")
        if isinstance(layer, nn.Linear) and len(self._operations[source[0]].shape) != 1:
            self._operations.append(Operation("reshape", name, source, (layer.in_features,), function=_flat))
            source = (len(self._operations) - 1,)
        self._place[node] = source[0]
        if isinstance(layer, nn.Linear | nn.Conv2d):
            kind: Kind = "linear" if isinstance(layer, nn.Linear) else "convolution"
            self._add(node, Operation(kind, name, source, shape, module=layer))
        if type(module.scale) is Scale:
            here = (self._place[node],)
            self._add(node, Operation("affine", f"{name}.scale", here, shape, scale=module.scale.values))

    def _read_activation(
        self, node: fx.Node, module: nn.Module, name: str, source: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        slope = _SLOPES.get(type(module))
        if slope is not None and not getattr(module, slope) >= 0:
            raise InvalidInputError(f"{name} decreases ({slope} < 0); interval bounds need monotone activations")
        if isinstance(module, nn.Softplus):
            _require_smooth_softplus(name, module.beta, module.threshold)
        if getattr(module, "inplace", False):
            self._require_last_use(node, name)
        curve, exact = _MODULES[type(module)]
        self._add(
            node, Operation("activation", name, source, shape, function=_not_in_place(module), exact=exact, curve=curve)
        )

    def _require_last_use(self, node: fx.Node, name: str) -> None:
        """Pass if nobody else reads what an operation in place overwrites, under this name or as a view of it."""
        source = node.all_input_nodes[0]
        while True:
            if source.op == "placeholder" or len(source.users) > 1:
                raise InvalidInputError(f"{name} overwrites a value that is used elsewhere; valid: inplace=False")
            above = source.all_input_nodes[0]
            is_same = self._place[source] == self._place.get(above)
            if not is_same and self._operations[self._place[source]].kind != "reshape":
                return
            source = above

    def _read_function(self, node: fx.Node) -> None:
        target = _function_name(node.target)
        name = f"the function {target}"
        home = getattr(node.target, "__module__", None) or "torch"  # functions in C have none
        if home.split(".")[0] not in ("torch", "_operator", "builtins"):
            raise InvalidInputError(f"{name} of {home} has no sound interval bound; valid: {_valid()}")
        if node not in self._shapes and target in _SIZES:  # a size, not a tensor
            return
        tensors = [argument for argument in node.all_input_nodes if argument in self._place]
        if not tensors:
            if node in self._shapes:
                raise InvalidInputError(f"{name} makes a tensor without the input; it has no interval bound")
            return
        shape = self._shape(node, name)
        if target in ("add", "sub", "mul", "truediv", "div"):
            self._read_arithmetic(node, target, name, shape)
            return
        source, rest = self._source(node, name), node.args[1:]
        function = getattr(functional, target, None) or getattr(torch, target, None)
        if target in _RESHAPES:
            self._add(node, Operation("reshape", name, source, shape, function=_to_shape(shape)))
        elif target == "dropout" and not (node.kwargs.get("training", rest[1] if len(rest) > 1 else True)):
            self._place[node] = source[0]
        elif target in _POOL_FUNCTIONS and not node.kwargs.get("return_indices") and function is not None:
            fixed = _fixed(function, rest, node.kwargs, name)
            self._add(node, Operation(_POOL_FUNCTIONS[target], name, source, shape, function=fixed))
        elif target.rstrip("_") in _EXACT and function is not None:
            plain, keywords = target.rstrip("_"), {k: v for k, v in node.kwargs.items() if k != "inplace"}
            if any(isinstance(v, int | float) and v < 0 for v in (*rest, *keywords.values())) and plain != "hardtanh":
                raise InvalidInputError(f"{name} has a negative slope; interval bounds need monotone activations")
            if target != plain or node.kwargs.get("inplace") or any(value is True for value in rest):
                self._require_last_use(node, name)
            of = getattr(functional, plain, None) or getattr(torch, plain)
            if plain == "softplus":
                given = dict(zip(("beta", "threshold"), rest, strict=False)) | keywords
                _require_smooth_softplus(name, given.get("beta", 1.0), given.get("threshold", 20.0))
            fixed = _fixed(of, tuple(value for value in rest if value is not True), keywords, name)
            self._add(
                node, Operation("activation", name, source, shape, function=fixed, exact=_EXACT[plain], curve=plain)
            )
        else:
            raise InvalidInputError(f"{name} has no sound interval bound; valid: {_valid()}")

    def _read_arithmetic(self, node: fx.Node, target: str, name: str, shape: tuple[int, ...]) -> None:
        """Read a sum of two values, or an affine map by constants."""
        if node.kwargs or len(node.args) != 2:
            raise InvalidInputError(f"{name} with options has no interval bound")
        a, b = node.args
        inside = [isinstance(x, fx.Node) and x in self._place for x in (a, b)]
        if all(inside):
            places = self._place[a], self._place[b]  # type: ignore[index]
            if target != "add" or self._operations[places[0]].shape != self._operations[places[1]].shape:
                raise InvalidInputError(f"{name} of two values has no interval bound; valid: sums of one shape")
            self._add(node, Operation("sum", name, places, shape))
            return
        constant = self._constant(b if inside[0] else a, name)
        source = (self._place[a if inside[0] else b],)  # type: ignore[index]
        scale: Tensor | float
        if target == "add":
            scale, shift = 1.0, constant
        elif target == "mul":
            scale, shift = constant, 0.0
        elif target == "sub":
            scale, shift = (1.0, -constant) if inside[0] else (-1.0, constant)
        elif inside[0] and bool(torch.as_tensor(constant != 0).all()):
            scale, shift = 1 / constant, 0.0
        else:
            raise InvalidInputError(f"{name} by zero or by a value of the network has no interval bound")
        if self._operations[source[0]].shape != shape:
            raise InvalidInputError(f"{name} changes the shape; it has no interval bound")
        own = getattr(operator, "truediv" if target == "div" else target)
        function = (lambda x: own(x, constant)) if inside[0] else (lambda x: own(constant, x))
        self._add(node, Operation("affine", name, source, shape, function=function, scale=scale, shift=shift))

    def _constant(self, value: Any, name: str) -> "Tensor | float":
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, fx.Node) and value.op == "get_attr":
            tensor: Any = self._traced
            for part in str(value.target).split("."):
                tensor = getattr(tensor, part)
            if isinstance(tensor, Tensor) and not (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
                if tensor.dim() == len(self._input_shape) + 1 and len(tensor) == 1:
                    tensor = tensor[0]
                return tensor.detach()
        raise InvalidInputError(f"{name} with something that is no fixed number or buffer has no interval bound")


def _shapes(traced: fx.GraphModule, x: Tensor) -> dict[fx.Node, tuple[int, ...]]:
    """Return the shape of every tensor in a run on x."""
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = tuple(value.shape)
            return value

    try:
        with torch.no_grad():
            Run(traced).run(x)
    except Exception as error:  # whatever a foreign layer raises
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInputError(f"the network does not take inputs of shape {list(x.shape[1:])}: {reason}") from None
    return shapes


def _function_name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _require_smooth_softplus(name: str, beta: Any, threshold: Any) -> None:
    """Pass if softplus, which is the identity above the threshold, drops there by no more than one part in 10^10."""
    if not beta >= 1e-3 or threshold != 20:
        raise InvalidInputError(
            f"{name} has beta {beta} and threshold {threshold}; interval bounds need beta >= 0.001 and threshold 20"
        )


def _to_shape(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.reshape(len(x), *shape)


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def _not_in_place(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the module as a function that leaves its input alone."""
    return (lambda x: module(x.clone())) if getattr(module, "inplace", False) else module


def _fixed(function: Callable[..., Any], rest: Any, keywords: Any, name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of one tensor, with all other arguments as they were."""
    if any(isinstance(value, fx.Node) for value in (*rest, *keywords.values())):
        raise InvalidInputError(f"{name} with computed arguments has no interval bound")
    return lambda x: function(x, *rest, **keywords)


def _valid() -> str:
    return "Linear, Conv2d, Flatten, pooling, sums, affine maps by constants, " + ", ".join(
        module.__name__ for module in _MODULES
    )
