"""What a forward pass moves besides its result, generators and buffers, so that the pass can be taken back."""

__all__ = ["BufferState", "RandomState"]

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of torch's own generators (CPU and the model's CUDA devices), of any held by a module, and of the global
    ones of numpy and Python."""

    states: list[tuple[torch.Generator, Tensor]]
    numpy_state: dict[str, Any]
    python_state: tuple[Any, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "RandomState":
        """Return the present state of every generator reachable as an attribute of a module of `model`."""
        found = {id(torch.default_generator): torch.default_generator}
        for device in {p.device for p in model.parameters()}:
            if device.type == "cuda":
                index = torch.cuda.current_device() if device.index is None else device.index
                generator = torch.cuda.default_generators[index]
                found[id(generator)] = generator
        for module in model.modules():
            for value in vars(module).values():
                if isinstance(value, torch.Generator):
                    found[id(value)] = value
        states = [(generator, generator.get_state()) for generator in found.values()]
        return cls(states, np.random.get_state(legacy=False), random.getstate())  # noqa: NPY002

    def untouched(self) -> bool:
        """Return whether no generator was drawn from since the state was recorded."""
        now, was = np.random.get_state(legacy=False)["state"], self.numpy_state["state"]  # noqa: NPY002
        return (
            all(torch.equal(generator.get_state(), state) for generator, state in self.states)
            and (now["pos"], now["key"].tobytes()) == (was["pos"], was["key"].tobytes())
            and random.getstate() == self.python_state
        )

    def restore(self) -> None:
        """Wind every generator back to the recorded state."""
        for generator, state in self.states:
            generator.set_state(state)
        np.random.set_state(self.numpy_state)  # noqa: NPY002
        random.setstate(self.python_state)


@dataclass(frozen=True, slots=True)
class BufferState:
    """The values of a model's buffers."""

    model: nn.Module
    values: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> "BufferState":
        """Return the present values."""
        return cls(model, {name: buffer.detach().clone() for name, buffer in model.named_buffers()})

    @torch.no_grad()
    def restore(self) -> None:
        """Set every buffer back; no graph that used them may be waiting for its backward pass."""
        for name, buffer in self.model.named_buffers():
            if name in self.values:
                buffer.data.copy_(self.values[name])
