"""The machine a run uses: precision of sums, memory the allocator keeps, and the versions a result was made with."""

__all__ = [
    "PRECISIONS",
    "Precision",
    "compute_threads",
    "environment",
    "keep_memory",
    "processor",
    "require_full_precision",
    "torch_device",
]

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from securesgd.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

_KERNEL_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
)  # fmt: skip
Precision = Literal["float32", "bfloat16"]
"""Of the passes through a model in training. float32 leaves the types of the model as they are."""
PRECISIONS: tuple[str, ...] = get_args(Precision)
_PRECISION_SETTINGS = {  # by kind of device; those that a version of torch lacks count as not set
    "cpu": ("fp32_precision", "mkldnn.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.matmul.fp32_precision"),
    "cuda": ("fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision"),
}
_PRECISION_VARIABLES = {  # of the libraries behind torch, whose switches say nothing of them: names, and what is whole
    "cpu": (("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"),
    "cuda": (("NVIDIA_TF32_OVERRIDE",), "0"),
}


def require_full_precision(device: str) -> None:
    """Raise InvalidInputError, naming the setting, unless torch computes float32 in float32 on this kind of device.

    Every bound on rounding in this package assumes it.
    """
    import torch

    if torch.is_autocast_enabled(device):
        raise InvalidInputError("autocast is on, which computes in a shorter type; run outside of it")
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the settings below, which are checked one by one
        precision = "highest"
    if precision != "highest":
        raise InvalidInputError(
            f"float32_matmul_precision is {precision!r}; valid: 'highest', so that float32 is float32"
        )
    for name in _PRECISION_SETTINGS.get(device, ()):
        try:
            value = attrgetter(name)(torch.backends)
        except AttributeError:
            continue
        if value not in ("none", "ieee"):
            raise InvalidInputError(f"torch.backends.{name} is {value!r}; valid: 'ieee', so that float32 is float32")
    variables, whole = _PRECISION_VARIABLES.get(device, ((), ""))
    for name in variables:
        value = os.environ.get(name, "")
        if value.upper() not in ("", whole):
            raise InvalidInputError(
                f"the environment variable {name} is {value!r}; valid: {whole} or none, so that float32 is float32"
            )


def torch_device(name: str | None) -> "torch.device":
    """Return the device of a name like cpu, cuda or cuda:1; None is the CPU.

    Raises: InvalidInputError if there is none of that name here, or it has no float64: noise is added, and bounds are
    computed, in double precision, which mps does not have.
    """
    import torch

    count = torch.cuda.device_count()
    here = ", ".join(["cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))])
    try:
        device = torch.device("cpu" if name is None else name)
        torch.zeros(1, dtype=torch.float64, device=device).cpu()
    except (RuntimeError, TypeError, AssertionError):  # unknown, not built in, not there, or without float64
        raise InvalidInputError(f"device is {name!r}; valid here: {here}") from None
    return device


def processor() -> str:
    """Return what decides which kernels torch, MKL and oneDNN run on this processor, as far as they show it.

    The name and a digest of all instructions, sizes of caches (sums are cut into blocks of them) and of the variables
    by which kernels are chosen. On two processors that differ in it, sums may differ in their last bits.
    """
    import torch

    features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = features.get("cpu_name") or platform.processor() or platform.machine()
    uncounted = ("num_logical_cores", "num_physical_cores", "num_sockets")
    chosen = [
        sorted((key, value) for key, value in features.items() if key not in uncounted),
        [(variable, os.environ.get(variable)) for variable in _KERNEL_VARIABLES],
        torch.backends.mkldnn.enabled,
    ]
    digest = hashlib.sha256(repr(chosen).encode()).hexdigest()[:8]
    return f"{torch.backends.cpu.get_cpu_capability()} ({name}, {digest})"


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Within the context torch computes on this many threads: on as many, sums have the same bits."""
    import torch

    former = torch.get_num_threads()
    if count != former:  # setting it is not free, and starts a team of threads anew
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != former:
            torch.set_num_threads(former)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def keep_memory() -> bool:
    """Tell glibc to keep freed memory of this process for its next step; return whether it accepted.

    A training step on the CPU allocates and frees its activations. Past 32 MB glibc hands every buffer back to the
    system, which costs a page fault per 4 kB at the next step: about a quarter of the time of a small network's step
    (benchmarks/dpsgd_step.py: 46 against 58 ms). The process then holds its peak memory until it ends. The command line
    does this; in a program of your own, call it once before training. Other systems are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


_PACKAGES = ("securesgd", "torch", "numpy", "scipy", "dp-accounting", "matplotlib")


def environment() -> dict[str, Any]:
    """Return versions, machine and command line. Nothing in it names a path or a user."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "command": " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def _version(package: str) -> str | None:
    """Return the version of a package, or None: figures are drawn without torch, too."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
