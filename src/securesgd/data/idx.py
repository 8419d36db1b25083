"""The idx format of MNIST and Fashion-MNIST: a magic number, the dimensions, then the bytes."""

__all__ = ["idx_array"]

import math
import struct

import numpy as np
from numpy.typing import NDArray

from securesgd.errors import DamagedFileError

_UNSIGNED_BYTES = 0x08


def idx_array(content: bytes) -> NDArray[np.uint8]:
    """Return the array an idx file of unsigned bytes holds; it shares memory with `content` and is read-only.

    Raises: DamagedFileError if it is no such file or its length is not what its header says.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DamagedFileError(f"not an idx file of unsigned bytes: it starts with {content[:4]!r}")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise DamagedFileError(f"an idx file of {content[3]} dimensions needs {header} bytes, got {len(content)}")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DamagedFileError(
            f"an idx file of shape {shape} needs {math.prod(shape)} values, got {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
