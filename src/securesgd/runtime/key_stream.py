"""Secret random words: AES-128 in counter mode, which nobody without the key can tell from true randomness."""

__all__ = ["KeyStream"]

import hashlib
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_BLOCK = 16  # bytes
_ZEROS = bytes(2**20)


class KeyStream:
    """A stream of random words from a 128-bit key; `child` gives streams of their own, independent of this one.

    Assumes: AES-128 is a pseudorandom permutation and SHA-256 a pseudorandom function (the only assumption that is not
    arithmetic). A key is used for one stream, below 2⁴⁸ blocks of it.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != _BLOCK:
            raise ValueError(f"key has {len(key)} bytes; valid: {_BLOCK}")
        self._key, self._used = key, 0

    @classmethod
    def secret(cls) -> "KeyStream":
        """Return a stream that nobody can predict: 128 bits from the operating system."""
        return cls(secrets.token_bytes(_BLOCK))

    @classmethod
    def from_generator(cls, generator: np.random.Generator) -> "KeyStream":
        """Return a stream whose key is drawn from `generator`: repeatable, and as secret as the generator's state."""
        return cls(generator.bytes(_BLOCK))

    def child(self, name: str) -> "KeyStream":
        """Return the stream called `name`: always the same one, whatever was read from this or from others."""
        return KeyStream(hashlib.sha256(self._key + name.encode()).digest()[:_BLOCK])

    def generator(self) -> np.random.Generator:
        """Return a numpy generator seeded from the next words: for draws that no guarantee rests on."""
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence([int(word) for word in self.words(4)])))

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` 64-bit words of the stream."""
        size = -(-8 * count // _BLOCK) * _BLOCK
        start = self._used.to_bytes(_BLOCK)
        self._used += size // _BLOCK
        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(start)).encryptor()
        stream = np.empty(size, dtype=np.uint8)
        for at in range(0, size, len(_ZEROS)):  # the key stream is the encryption of zeros
            part = stream[at : at + len(_ZEROS)]
            encryptor.update_into(_ZEROS[: len(part)] if len(part) < len(_ZEROS) else _ZEROS, part.data)
        return stream.view("<u8")[:count]
