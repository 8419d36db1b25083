"""Random numbers by purpose: an attack, the votes that measure it and the draws that prove a flip never share any."""

__all__ = ["stream"]

import hashlib

import torch


def stream(seed: int, purpose: str, part: int = 0) -> torch.Generator:
    """Return the generator of (seed, purpose, part), the same at every call.

    torch's CPU generator reads only the low 32 bits of its seed, so the three are hashed rather than shifted together.
    """
    digest = hashlib.sha256(f"{seed}|{purpose}|{part}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
