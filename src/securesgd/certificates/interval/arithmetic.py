"""How the deployed network rounds, and how this package's own float64 bounds do.

A sum of n products, in any order and with or without fused operations, is off by at most γ(n)·Σ|terms| with
γ(n) = n u/(1 − n u) (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1), plus what underflow
loses: at most the smallest normal number per operation and per operand, also where denormals count as zero.
"""

__all__ = ["UNIT64", "Arithmetic", "arithmetic_of", "gamma"]

import math
from dataclasses import dataclass

import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import require_full_precision

UNIT64 = 2.0**-53


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The floating-point type of a network: unit of rounding, smallest normal and largest number."""

    dtype: torch.dtype
    unit: float
    tiny: float
    largest: float


def gamma(terms: float, unit: float) -> float:
    """Return γ(terms), or infinity where the formula says nothing (terms·unit >= 1/2)."""
    total = terms * unit
    return total / (1 - total) * (1 + 1e-15) if total < 0.5 else math.inf


def arithmetic_of(network: nn.Module) -> Arithmetic:
    """Return the arithmetic of a network, the type of its parameters.

    Raises: InvalidInputError for parameters of other or of several types, and where torch is set to round products of
    float32 more coarsely than float32 does.
    """
    kinds = {parameter.dtype for parameter in network.parameters()}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) or "none"
        raise InvalidInputError(f"the network's parameters are of type {names}; valid: all float32 or all float64")
    (dtype,) = kinds
    if dtype == torch.float32:
        _require_whole_float32(next(network.parameters()).device)
    info = torch.finfo(dtype)
    return Arithmetic(dtype, float(info.eps) / 2, float(info.tiny), float(info.max))


def _require_whole_float32(device: torch.device) -> None:
    require_full_precision(device.type)
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        raise InvalidInputError("torch.backends.cudnn.allow_tf32 is True; valid for proofs: False")
