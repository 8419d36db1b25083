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
    """States of torch's own generators (CPU and the model's CUDA devices) and of any held by a module.

    `beyond_torch` holds those of numpy's and Python's global generators, if they were asked for: reading them takes
    2 % of the step of a small network.
    """

    states: list[tuple[torch.Generator, Tensor]]
    beyond_torch: tuple[dict[str, Any], tuple[Any, ...]] | None = None

    @classmethod
    def of(cls, model: nn.Module, *, beyond_torch: bool = False) -> "RandomState":
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
        return cls(states, _global_states() if beyond_torch else None)

    def untouched(self) -> bool:
        """Return whether no generator was drawn from since the state was recorded."""
        if self.beyond_torch is not None:
            (numpy_now, python_now), (numpy_before, python_before) = _global_states(), self.beyond_torch
            words, words_before = numpy_now["state"], numpy_before["state"]
            moved = words["pos"] != words_before["pos"] or not np.array_equal(words["key"], words_before["key"])
            if moved or python_now != python_before:
                return False
        return all(torch.equal(generator.get_state(), state) for generator, state in self.states)

    def restore(self) -> None:
        """Wind every generator back to the recorded state."""
        for generator, state in self.states:
            generator.set_state(state)
        if self.beyond_torch is not None:
            np.random.set_state(self.beyond_torch[0])  # noqa: NPY002
            random.setstate(self.beyond_torch[1])


def _global_states() -> tuple[dict[str, Any], tuple[Any, ...]]:
    return np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


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
