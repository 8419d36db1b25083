"""The secret random numbers of a private training run: who is sampled, and the noise.

Differential privacy holds towards readers who do not know these numbers: with them, noise can be subtracted and the
sampled examples are known. So the key has 128 bits from the operating system, lives outside the configuration and the
results, and is deleted when training ends. A fixed `seed` is for tests and research; the run's statement then says so.

Every draw is a function of (key, purpose, step), not of what was drawn before. Running a step again, after a crash or
on another number of threads, gives the same sample and noise: it repeats a release, it does not make a new one.
"""

__all__ = ["Randomness"]

import hashlib
import math
import secrets
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Purpose = Literal["sampling", "noise", "model", "interlude"]
_PURPOSES = get_args(Purpose)
_STATE_WORDS = slice(3, 627)  # of torch's CPU generator, as 64-bit words


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

    def generator(self, purpose: Purpose, step: int) -> np.random.Generator:
        """Return the generator of one step: numbers independent of those of all other purposes and steps."""
        place = (_PURPOSES.index(purpose), step)
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.key, spawn_key=place)))

    def poisson_sample(self, step: int, count: int, rate: float) -> NDArray[np.int64]:
        """Return the examples of one step: each of `count` is in with probability `rate`, independently of all others.

        The sample may be empty; its size varies. That is what the accountant assumes, and what it must stay.
        """
        return np.flatnonzero(self.generator("sampling", step).random(count) < rate)

    def add_noise(self, tensors: list[Tensor], std: float, step: int) -> None:
        """Add N(0, std²) to every element of every tensor, in place: the noise of one step.

        The values do not depend on the number of threads or on the device.
        """
        if std == 0:
            return
        total = sum(tensor.numel() for tensor in tensors)
        double = any(tensor.dtype == torch.float64 for tensor in tensors)
        noise, start = _normals(self.generator("noise", step), total, torch.float64 if double else torch.float32), 0
        for tensor in tensors:
            piece = noise[start : start + tensor.numel()].view(tensor.shape)
            tensor.add_(piece.to(tensor.device, tensor.dtype), alpha=std)
            start += tensor.numel()

    def seed_model(self, position: int) -> None:
        """Seed torch's own generator for the dropout and noise layers of one step (and rank).

        Privacy rests on these draws being unknown too: with them, removing an example would shift the noise of all that
        follow it in the batch. So on the CPU the whole state is set from the key, not 32 bits of it.
        """
        generator = self.generator("model", position)
        torch.manual_seed(int(generator.integers(2**63)))
        state = torch.get_rng_state()
        words = state.numpy()[: _STATE_WORDS.stop * 8].view(np.uint64)[_STATE_WORDS]
        if _state_is_mersenne_twister():
            words[:] = generator.integers(2**32, size=624, dtype=np.uint64)
            torch.set_rng_state(state)


@cache
def _state_is_mersenne_twister() -> bool:
    """Return whether torch keeps the 624 words of its CPU generator where we write them; checked against numpy's."""
    state = torch.Generator().manual_seed(5).get_state().numpy()
    if state.size < _STATE_WORDS.stop * 8:
        return False
    words = state[: _STATE_WORDS.stop * 8].view(np.uint64)[_STATE_WORDS]
    return bool(np.array_equal(words, np.random.RandomState(5).get_state(legacy=False)["state"]["key"]))


def _normals(generator: np.random.Generator, count: int, dtype: torch.dtype) -> Tensor:
    """Return independent standard normals, by Box and Muller from 32-bit uniforms (so up to 6.7 standard deviations).

    Written here because noise is a tenth of a DP-SGD step of a small network: numpy's ziggurat takes three times as
    long, and torch.randn, as fast as this, has a generator that keeps only 32 bits of its seed: a reader could try all.
    """
    half = -(-count // 2)
    raw = torch.from_numpy(generator.bit_generator.random_raw(half).view(np.uint32)).to(dtype)
    radius, angle = raw[:half], raw[half:]
    # (x + ½)·2⁻³² is never 0, and small values keep all their digits: they are the tail.
    radius.add_(0.5).mul_(2.0**-32).log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
    angle.mul_(2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())])[:count]
