"""The secret random numbers of a private training run: who is sampled, the noise, the draws inside the model.

Differential privacy holds towards readers who do not know these numbers: with them, noise can be subtracted and the
sampled examples are known. So the key has 128 bits from the operating system, lives outside the configuration and the
results, and is deleted when training ends. A fixed `seed` is for tests and research; such a run guarantees nothing.

Every draw is a function of (key, purpose, step), not of what was drawn before. Running a step again, after a crash or
on another number of threads, gives the same sample and noise: it repeats a release, it does not make a new one.
"""

__all__ = ["MOST_BY_WORD", "Randomness", "seeded_generator"]

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from securesgd.runtime.geometric_gaps import gap_sample
from securesgd.runtime.key_stream import KeyStream

Purpose = Literal["sampling", "noise", "model", "loop", "features", "one-off release"]
_STATE_WORDS = slice(3, 627)  # of torch's CPU generator, as 64-bit words
MOST_BY_WORD = 100_000
"""Examples up to which each has a word of its own in every step; above it the gaps between those sampled are drawn.

Both have the same law. The first takes 1 ms at this number and is what seeded runs were recorded with; the second does
not take longer for more examples.
"""


@dataclass(frozen=True)
class Randomness:
    """All random numbers of one run, by purpose and step."""

    key: bytes = field(repr=False)

    @classmethod
    def secret(cls) -> "Randomness":
        """Return fresh randomness that nobody can predict: 128 bits from the operating system."""
        return cls(secrets.token_bytes(16))

    @classmethod
    def from_seed(cls, seed: int, context: str) -> "Randomness":
        """Return reproducible randomness. Whoever knows seed and context can undo the noise.

        `context` must name all that is asked and of which data: the same noise on two data sets would cancel in the
        difference of the results, and show the example they differ by to anybody.
        """
        return cls(hashlib.sha256(f"securesgd seed {int(seed)} for {context}".encode()).digest()[:16])

    def name(self, context: str) -> str:
        """Return a public name of this randomness used in `context`; it tells nothing about the key."""
        return hashlib.sha256(self.key + context.encode()).hexdigest()[:32]

    def bound_to(self, context: str) -> "Randomness":
        """Return the randomness of one context: independent of this one and of those of all other contexts."""
        return Randomness(hashlib.sha256(b"securesgd bound " + self.key + context.encode()).digest()[:16])

    def stream(self, purpose: Purpose, step: int) -> KeyStream:
        """Return the words of one step: independent of those of all other purposes and steps."""
        return KeyStream(self.key).child(f"{purpose} {step}")

    def poisson_sample(self, step: int, count: int, rate: float) -> NDArray[np.int64]:
        """Return the examples of one step: each of `count` is in with probability `rate`, independently of all others.

        The sample may be empty; its size varies. That is what the accountant assumes, and what it must stay. Up to
        `MOST_BY_WORD` examples the probability is `rate` rounded down to a multiple of 2⁻⁶⁴; above, the law is within
        the bound of `gap_sample`, and the cost is that of the sample, not of `count`.
        """
        if rate >= 1:
            return np.arange(count)
        if count > MOST_BY_WORD:
            return gap_sample(self.stream("sampling", step), count, rate)
        words = self.stream("sampling", step).words(count)
        return np.flatnonzero(words < np.uint64(int(rate * 2.0**64)))

    def seed_model(self, position: int, purpose: Purpose = "model") -> None:
        """Seed torch's own generator for the dropout and noise layers of one step (and rank).

        With the purpose "loop", for the code of a caller around the step, such as augmentations.

        Privacy rests on these draws being unknown too: with them, removing an example would shift the noise of all that
        follow it in the batch. So on the CPU the whole state is set from the key, not 32 bits of it.
        """
        stream = self.stream(purpose, position).words(2 + 624)
        seed = int(stream[0] >> np.uint64(1))
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # the same, without the notes for devices that may come later: a tenth of a small network's step
            torch.default_generator.manual_seed(seed)
        state = torch.get_rng_state()
        words = state.numpy()[: _STATE_WORDS.stop * 8].view(np.uint64)[_STATE_WORDS]
        if _state_is_mersenne_twister():
            words[:] = stream[2:] >> np.uint64(32)
            torch.set_rng_state(state)


def seeded_generator(seed: int, purpose: str, part: int = 0) -> torch.Generator:
    """Return the public generator of (seed, purpose, part), the same at every call: for measurements, not for privacy.

    An attack, the votes that measure it and the draws that prove a flip have different purposes, so they share no
    random numbers. torch's CPU generator reads only the low 32 bits of its seed, so the three are hashed rather than
    shifted together.
    """
    digest = hashlib.sha256(f"{seed}|{purpose}|{part}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


@cache
def _state_is_mersenne_twister() -> bool:
    """Return whether torch keeps the 624 words of its CPU generator where we write them; checked against numpy's."""
    state = torch.Generator().manual_seed(5).get_state().numpy()
    if state.size < _STATE_WORDS.stop * 8:
        return False
    words = state[: _STATE_WORDS.stop * 8].view(np.uint64)[_STATE_WORDS]
    return bool(np.array_equal(words, np.random.RandomState(5).get_state(legacy=False)["state"]["key"]))
