"""A network as a list of operations that interval bounds know, read from the user's module without changing it.

torch.fx runs the module's forward once with symbols in place of tensors and notes every call. What it notes is kept
only if each step has a sound bound (`Kind`); everything else is refused by its name. `evaluate` runs the list, and
construction compares it with the module itself.
"""

__all__ = ["LayerGraph", "Operation", "layer_graph"]

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from securesgd.errors import InvalidInputError
from securesgd.models.graph_reader import read_graph
from securesgd.models.noise_layer import NoisyLayer
from securesgd.models.operations import LayerGraph, Operation


def layer_graph(network: nn.Module, input_shape: tuple[int, ...]) -> LayerGraph:
    """Return the operations of a network in eval mode, for inputs of this shape.

    Guarantee: each operation is one of `Kind`, and the list computes what the network does at random inputs.
    Assumes: the network computes the same at other inputs, as torch.fx sees no decision by values that Python hides.
    Raises: InvalidInputError naming the first layer or function without a sound bound; also for hooks, which would
    change what a layer computes, and for a forward that decides by the values of its input, changes its buffers or
    overwrites a value that it uses again.

    Noise layers of this package count as absent: the graph is that of the network without its noise.
    """
    was_training = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        _require_no_hooks(network)
        before = {name: buffer.clone() for name, buffer in network.named_buffers()}
        graph = read_graph(network, input_shape)
        _require_same(network, graph, input_shape)
        for name, buffer in network.named_buffers():
            if name not in before or not torch.equal(before[name].nan_to_num(), buffer.nan_to_num()):
                raise InvalidInputError(f"the network changes its buffer {name} when it runs; it has no interval bound")
        return graph
    finally:
        for module, training in was_training:
            module.training = training


def _require_no_hooks(network: nn.Module) -> None:
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise InvalidInputError("there are forward hooks for all modules, which may change what a layer computes")
    for name, module in network.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise InvalidInputError(f"{name or 'the network'} has forward hooks, which may change what it computes")


def _require_same(network: nn.Module, graph: LayerGraph, input_shape: tuple[int, ...]) -> None:
    """Pass if the list computes what the network does, at inputs in and out of the usual range."""
    like = next(network.parameters(), torch.zeros(1))
    x = torch.rand(4, *input_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(like)
    noisy = [module for module in network.modules() if isinstance(module, NoisyLayer)]
    with torch.no_grad():
        for inputs in (x, 3 * x - 1, -x, torch.zeros_like(x)):
            try:
                for module in noisy:
                    module.given = module.clean(inputs)
                out, expected = graph.evaluate(inputs), network(inputs)
            finally:
                for module in noisy:
                    module.given = None
            scale = float(expected.abs().max()) + 1e-6
            if out.shape != expected.shape or not bool(((out - expected).abs() <= 1e-4 * scale).all()):
                raise InvalidInputError("the network does not compute what its layers do; it has no interval bound")
