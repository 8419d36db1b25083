"""Whether single precision is single precision: torch can be told to compute float32 in a shorter type."""

__all__ = ["require_full_precision"]

from operator import attrgetter

import torch

from securesgd.errors import InvalidInputError

_SWITCHES = {  # by kind of device; those a version of torch does not have are as good as not set
    "cpu": ("fp32_precision", "mkldnn.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.matmul.fp32_precision"),
    "cuda": ("fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision"),
}


def require_full_precision(device: str) -> None:
    """Pass if torch computes float32 in float32 on this kind of device: every bound on rounding here rests on it.

    Raises: InvalidInputError with the switch that says otherwise.
    """
    if torch.is_autocast_enabled(device):
        raise InvalidInputError("autocast is on, which computes in a shorter type; run outside of it")
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the switches below, which say more
        precision = "highest"
    if precision != "highest":
        raise InvalidInputError(
            f"float32_matmul_precision is {precision!r}; valid: 'highest', so that float32 is float32"
        )
    for name in _SWITCHES.get(device, ()):
        try:
            value = attrgetter(name)(torch.backends)
        except AttributeError:
            continue
        if value not in ("none", "ieee"):
            raise InvalidInputError(f"torch.backends.{name} is {value!r}; valid: 'ieee', so that float32 is float32")
