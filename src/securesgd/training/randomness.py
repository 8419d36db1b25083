"""The secret random numbers of a private training run: who is sampled, and the noise.

Differential privacy holds towards readers who do not know these numbers: with them, noise can be subtracted and the
sampled examples are known. So the key has 128 bits from the operating system, lives outside the configuration and the
results, and is deleted when training ends. A fixed `seed` is for tests and research; the run's statement then says so.

Every draw is a function of (key, purpose, step), not of what was drawn before. Running a step again, after a crash or
on another number of threads, gives the same sample and noise: it repeats a release, it does not make a new one.
"""

__all__ = ["Randomness"]

import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Purpose = Literal["sampling", "noise", "model", "interlude"]
_PURPOSES = get_args(Purpose)
_CHUNK = 1 << 17  # values per generator: large enough to fill vectors, small enough to share among threads


@dataclass(frozen=True)
class Randomness:
    """All random numbers of one run, by purpose and step."""

    key: int = field(repr=False)

    @classmethod
    def secret(cls) -> "Randomness":
        """Return fresh randomness that nobody can predict: 128 bits from the operating system."""
        return cls(secrets.randbits(128))

    @classmethod
    def from_seed(cls, seed: int) -> "Randomness":
        """Return reproducible randomness. Whoever knows the seed can undo the noise."""
        digest = hashlib.sha256(f"securesgd seed {int(seed)}".encode()).digest()
        return cls(int.from_bytes(digest[:16]))

    def stream(self, context: str) -> str:
        """Return a public name of this randomness used in `context`; it tells nothing about the key."""
        return hashlib.sha256(self.key.to_bytes(16) + context.encode()).hexdigest()[:32]

    def generator(self, purpose: Purpose, step: int, chunk: int = 0) -> np.random.Generator:
        """Return the generator of one step: numbers independent of those of all other purposes, steps and chunks."""
        place = (_PURPOSES.index(purpose), step, chunk)
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.key, spawn_key=place)))

    def poisson_sample(self, step: int, count: int, rate: float) -> NDArray[np.int64]:
        """Return the examples of one step: each of `count` is in with probability `rate`, independently of all others.

        The sample may be empty; its size varies. That is what the accountant assumes, and what it must stay.
        """
        return np.flatnonzero(self.generator("sampling", step).random(count) < rate)

    def add_noise(self, tensors: list[Tensor], std: float, step: int) -> None:
        """Add N(0, std²) to every element of every tensor, in place: the noise of one step.

        Drawn by numpy (ziggurat, with the full tails) in chunks that each have their own generator, so the values do
        not depend on the number of threads or on the device.
        """
        if std == 0:
            return
        total = sum(tensor.numel() for tensor in tensors)
        double = any(tensor.dtype == torch.float64 for tensor in tensors)
        values: Any = np.empty(total, dtype=np.float64 if double else np.float32)

        def fill(chunk: int) -> None:
            part = values[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            self.generator("noise", step, chunk).standard_normal(out=part, dtype=part.dtype)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(fill, range(-(-total // _CHUNK))))
        noise, start = torch.from_numpy(values), 0
        for tensor in tensors:
            piece = noise[start : start + tensor.numel()].view(tensor.shape)
            tensor.add_(piece.to(tensor.device, tensor.dtype), alpha=std)
            start += tensor.numel()

    def seed_model(self, step: int) -> None:
        """Seed torch's own generator for the dropout and noise layers of one step. Privacy does not rest on them."""
        torch.manual_seed(int(self.generator("model", step).integers(2**63)))
