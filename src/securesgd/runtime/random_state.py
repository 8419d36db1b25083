"""The state that a forward pass changes, random generators and buffers, captured so that it can be restored."""

__all__ = ["BufferState", "RandomState"]

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of torch's own generators (CPU and the model's CUDA devices) and of any held by a module.

    `numpy_and_python` holds those of numpy's and Python's global generators, or None: reading them takes 2 % of a step
    of a small network.
    """

    states: list[tuple[torch.Generator, Tensor]]
    numpy_and_python: tuple[dict[str, Any], tuple[Any, ...]] | None = None

    @classmethod
    def capture(cls, model: nn.Module, *, numpy_and_python: bool = False) -> "RandomState":
        """Return the present state of every generator reachable as an attribute of a module of `model`."""
        generators = {id(torch.default_generator): torch.default_generator}
        for device in {p.device for p in model.parameters()}:
            if device.type == "cuda":
                index = torch.cuda.current_device() if device.index is None else device.index
                generator = torch.cuda.default_generators[index]
                generators[id(generator)] = generator
        for module in model.modules():
            for value in vars(module).values():
                if torch.Generator in type(value).__mro__:  # what isinstance asks here takes 2 % of a small step
                    generators[id(value)] = value
        states = [(generator, generator.get_state()) for generator in generators.values()]
        return cls(states, _global_states() if numpy_and_python else None)

    def is_unchanged(self) -> bool:
        """Return whether no generator was drawn from since the state was captured."""
        if self.numpy_and_python is not None:
            (numpy_now, python_now), (numpy_before, python_before) = _global_states(), self.numpy_and_python
            words, words_before = numpy_now["state"], numpy_before["state"]
            moved = words["pos"] != words_before["pos"] or not np.array_equal(words["key"], words_before["key"])
            if moved or python_now != python_before:
                return False
        return all(torch.equal(generator.get_state(), state) for generator, state in self.states)

    def restore(self) -> None:
        """Set every generator to the captured state."""
        for generator, state in self.states:
            generator.set_state(state)
        if self.numpy_and_python is not None:
            np.random.set_state(self.numpy_and_python[0])  # noqa: NPY002
            random.setstate(self.numpy_and_python[1])


def _global_states() -> tuple[dict[str, Any], tuple[Any, ...]]:
    return np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


@dataclass(frozen=True, slots=True)
class BufferState:
    """The values of a model's buffers."""

    model: nn.Module
    values: dict[str, Tensor]

    @classmethod
    def capture(cls, model: nn.Module) -> "BufferState":
        """Return the present values of all buffers."""
        return cls(model, {name: buffer.detach().clone() for name, buffer in model.named_buffers()})

    @torch.no_grad()
    def restore(self) -> None:
        """Set every buffer to its captured value. Assumes: no graph that used it still waits for its backward pass."""
        for name, buffer in self.model.named_buffers():
            if name in self.values:
                buffer.data.copy_(self.values[name])
