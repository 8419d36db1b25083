"""Memory the allocator should keep between steps instead of giving it back and getting it anew, page by page."""

__all__ = ["keep_memory"]

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def keep_memory() -> bool:
    """Tell glibc to keep freed memory of this process for its next step; return whether it was told.

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
