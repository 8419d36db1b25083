"""How many examples go through the model at once, if the user does not say: as many as stay in a fixed memory.

A small piece whose activations stay near the cache is also faster than a large one: on the paper's networks by a
quarter (`benchmarks/dpsgd_step.py`). The number is a function of the model and the shape of an example alone, never of
free memory or of values, so that a run that is resumed adds in the same order.
"""

__all__ = ["FEWEST", "examples_at_once"]

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

ACTIVATION_BYTES = 96 * 2**20
"""What autograd may hold of one piece."""
FEWEST = 64
"""Smaller pieces cost more by their fixed work than they save."""


def examples_at_once(losses: Callable[[], Tensor], examples: int, parameters: Iterable[Tensor]) -> int:
    """Return how many examples fit, from the tensors that autograd keeps in a pass over `examples` of them.

    `losses` runs the pass. A tensor is counted once, however often it is kept; `parameters` are not counted.
    """
    shared = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor.detach())
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    with saved_tensors_hooks(pack, unpack), torch.enable_grad():
        losses()
    per_example = sum(sizes.values()) / examples
    return max(FEWEST, math.floor(ACTIVATION_BYTES / max(per_example, 1.0)))
