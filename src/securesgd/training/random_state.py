"""The random generators a model draws from, so that a forward pass can be taken back."""

__all__ = ["RandomState"]

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of torch's own generators (CPU and the model's CUDA devices) and of any held by a module."""

    states: list[tuple[torch.Generator, Tensor]]

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
        return cls([(generator, generator.get_state()) for generator in found.values()])

    def untouched(self) -> bool:
        """Return whether no generator was drawn from since the state was recorded."""
        return all(torch.equal(generator.get_state(), state) for generator, state in self.states)

    def restore(self) -> None:
        """Wind every generator back to the recorded state."""
        for generator, state in self.states:
            generator.set_state(state)
